"""Requests of one connection: started and answered in order, with many under way."""

from __future__ import annotations

import struct
import time

import pytest

from millstream.protocol.messages import ApiVersionsRequest, MetadataRequest
from tests.conftest import Name
from tests.processes import until
from tests.wire import (
    Wire,
    append,
    batch,
    create_topic,
    end_offset,
    fetch,
    fetch_partition,
    fetch_request,
    fetched,
    produce_request,
    produced,
    values,
)


def test_a_thousand_requests_in_one_breath(bootstrap: str, new_name: Name) -> None:
    with Wire(bootstrap) as wire:
        topic = new_name("breath")
        create_topic(wire, topic)
        frames, kinds = [], []
        for number in range(1000):
            if number % 3 == 0:
                frames.append(wire.frame(produce_request(topic, batch([b"%d" % number])), 9))
            elif number % 3 == 1:
                frames.append(wire.frame(ApiVersionsRequest(), 2))
            else:
                frames.append(wire.frame(MetadataRequest(topics=[]), 8))
            kinds.append(number % 3)
        first = wire._correlation_id - 999
        wire.socket.sendall(b"".join(frames))
        offsets = []
        for number in range(1000):
            correlation_id, answer = wire.receive()
            assert correlation_id == first + number
            if kinds[number] == 0:
                offsets.append(produced(answer).base_offset)
        assert offsets == list(range(334))


def test_bytes_that_arrive_one_by_one(bootstrap: str, new_name: Name) -> None:
    with Wire(bootstrap) as wire:
        topic = new_name("drip")
        create_topic(wire, topic)
        for byte in wire.frame(produce_request(topic, batch([b"slow"])), 9) + wire.frame(
            ApiVersionsRequest(), 2
        ):
            wire.socket.sendall(bytes([byte]))
        assert produced(wire.receive()[1]).base_offset == 0
        assert wire.receive()[1].error_code == 0


@pytest.mark.parametrize("acks", [1, -1])
def test_an_acknowledged_record_can_be_read_at_once(bootstrap: str, new_name: Name, acks: int) -> None:
    with Wire(bootstrap) as wire, Wire(bootstrap) as reader:
        topic = new_name("acked")
        create_topic(wire, topic)
        for number in range(20):
            answer = produced(wire.ask(produce_request(topic, batch([b"%d" % number]), acks=acks), 9))
            assert (answer.error_code, answer.base_offset, answer.log_start_offset) == (0, number, 0)
            assert answer.log_append_time_ms == -1
            assert values(fetch(reader, topic, number).records) == [b"%d" % number]


def test_acks_0_gets_no_answer(bootstrap: str, new_name: Name) -> None:
    with Wire(bootstrap) as wire:
        topic = new_name("silent")
        create_topic(wire, topic)
        for number in range(10):
            wire.send(produce_request(topic, batch([b"%d" % number]), acks=0), 9)
        correlation_id = wire.send(MetadataRequest(topics=[]))
        assert wire.receive()[0] == correlation_id  # not one of the produce requests
        assert end_offset(wire, topic) == 10
        assert values(fetch(wire, topic, 0).records) == [b"%d" % number for number in range(10)]


def test_acks_0_and_an_error_end_the_connection(bootstrap: str, new_name: Name) -> None:
    """The client has no other way to learn of it; as Apache Kafka does."""
    with Wire(bootstrap) as wire:
        topic = new_name("silent-error")
        create_topic(wire, topic)
        damaged = batch([b"x"])
        damaged[-1] ^= 1
        wire.send(produce_request(topic, damaged, acks=0), 9)
        assert wire.is_closed_by_broker()
    with Wire(bootstrap) as wire:
        assert end_offset(wire, topic) == 0


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_other_acks_are_refused(bootstrap: str, new_name: Name, acks: int) -> None:
    with Wire(bootstrap) as wire:
        topic = new_name("acks")
        create_topic(wire, topic)
        answer = produced(wire.ask(produce_request(topic, batch([b"x"]), acks=acks), 9))
        assert answer.error_code == 21  # INVALID_REQUIRED_ACKS
        assert end_offset(wire, topic) == 0


def test_a_waiting_fetch_is_woken_by_another_connection(bootstrap: str, new_name: Name) -> None:
    with Wire(bootstrap) as reader, Wire(bootstrap) as writer:
        topic = new_name("woken")
        create_topic(writer, topic)
        request = fetch_request({topic: [fetch_partition(0)]}, max_wait_ms=15_000, min_bytes=1)
        reader.send(request, 12)
        started = time.monotonic()
        append(writer, topic, b"wake up")
        answer = fetched(reader.receive()[1])
        assert values(answer.records) == [b"wake up"]
        assert answer.high_watermark == 1
        assert time.monotonic() - started < 5


def test_an_answer_is_not_lost_when_the_client_closes_its_sending_half(
    bootstrap: str, new_name: Name
) -> None:
    with Wire(bootstrap) as wire:
        topic = new_name("half")
        create_topic(wire, topic)
        wire.send(produce_request(topic, batch([b"last words"])), 9)
        wire.socket.shutdown(1)
        with Wire(bootstrap) as other:
            until(lambda: end_offset(other, topic) == 1, 30, "the record is written")


def test_requests_for_many_partitions_are_judged_one_by_one(bootstrap: str, new_name: Name) -> None:
    with Wire(bootstrap) as wire:
        topic = new_name("each")
        create_topic(wire, topic, partitions=3)
        damaged = batch([b"x"])
        damaged[-1] ^= 1
        request = produce_request(topic, batch([b"good"]))
        (entry,) = request.topic_data
        place = type(entry.partition_data[0])
        entry.partition_data += [
            place(index=1, records=damaged),
            place(index=2, records=batch([b"good too"])),
            place(index=9, records=batch([b"nowhere"])),
        ]
        missing = type(entry)(
            name=new_name("missing"), partition_data=[place(index=0, records=batch([b"x"]))]
        )
        request.topic_data.append(missing)
        answer = wire.ask(request, 9)
        codes = {
            (topic.name, partition.index): partition.error_code
            for topic in answer.responses
            for partition in topic.partition_responses
        }
        assert codes == {(topic, 0): 0, (topic, 1): 2, (topic, 2): 0, (topic, 9): 3, (missing.name, 0): 3}


def test_a_mangled_body_ends_only_its_own_connection(bootstrap: str, new_name: Name) -> None:
    with Wire(bootstrap) as good, Wire(bootstrap) as bad:
        topic = new_name("mangled")
        create_topic(good, topic)
        body = struct.pack(">hhih", 3, 1, 9, -1) + struct.pack(">i", 1_000_000)
        bad.send_frame(body)
        assert bad.is_closed_by_broker()
        assert append(good, topic, b"unharmed") == 0


def test_offsets_are_listed_while_a_fetch_waits_elsewhere(bootstrap: str, new_name: Name) -> None:
    with Wire(bootstrap) as waiting, Wire(bootstrap) as wire:
        topic = new_name("elsewhere")
        create_topic(wire, topic)
        waiting.send(fetch_request({topic: [fetch_partition(0)]}, max_wait_ms=15_000, min_bytes=1), 12)
        for _ in range(20):
            assert end_offset(wire, topic) == 0
