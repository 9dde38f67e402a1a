"""The driver's side of a stream, called as Spark calls it, on a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from millstream.client.admin_blocking import Admin
from millstream.client.metadata import Metadata
from millstream.client.producer_blocking import Producer
from millstream.model import NO_UUID, TopicPartition
from millstream.streams.offsets import IDS, START
from millstream.streams.reading.errors import LostRecords, NoTopic
from millstream.streams.reading.stream import StreamReader
from millstream.streams.sink_names import topic_of
from millstream.streams.state_folder import StateFolder
from millstream.streams.subscription import Subscription
from millstream.testing import Broker, Cluster
from tests.processes import until
from tests.streams.reading import options_for, read_all, send, values_of

Name = Callable[[str], str]
Make = Callable[..., StreamReader]


@pytest.fixture
def topic(broker: Broker, new_name: Name) -> str:
    """A topic of two partitions."""
    return broker.create_topic(new_name("stream"), 2)


@pytest.fixture
def make(broker: Broker, topic: str) -> Iterator[Make]:
    """Makes readers, of the topic unless something else is named, from its beginning unless told."""
    with ExitStack() as stack:

        def reader(**options: object) -> StreamReader:
            named = "" if options.keys() & {"subscribe", "subscribePattern", "assign"} else topic
            made = StreamReader(options_for(broker, named, **{"startingOffsets": "earliest", **options}))
            stack.callback(made.stop)
            return made

        yield reader


def latest(reader: StreamReader, start: dict[str, Any]) -> dict[str, Any]:
    """How far the next batch goes, without the ids of topics, which stand beside the offsets."""
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    return {name: found for name, found in end.items() if name != IDS}


def test_offsets_have_one_text(make: Make, producer: Producer, topic: str) -> None:
    send(producer, topic, range(3))
    reader = make()
    start = reader.initialOffset()
    assert json.dumps(start) == f'{{"{topic}": {{"0": 0, "1": 0}}}}'
    end = latest(reader, start)
    assert json.dumps(end) == f'{{"{topic}": {{"0": 3, "1": 0}}}}'
    assert latest(reader, end) == end
    assert reader.reportLatestOffset() == end
    assert values_of(read_all(reader, reader.partitions(start, end))) == [0, 1, 2]


def test_the_end_does_not_move_a_stream_that_begins_there(make: Make, producer: Producer, topic: str) -> None:
    send(producer, topic, range(5))
    first = make(startingOffsets="latest")
    start = first.initialOffset()
    send(producer, topic, range(5, 8))
    assert first.initialOffset() == start == {topic: {"0": 5, "1": 0}}
    end = latest(first, start)
    assert end == {topic: {"0": 8, "1": 0}, START: start}

    # Another process does the batch again: its own idea of the start is too late, the end knows better.
    send(producer, topic, range(8, 10))
    again = make(startingOffsets="latest")
    late = again.initialOffset()
    assert late == {topic: {"0": 10, "1": 0}}
    assert values_of(read_all(again, again.partitions(late, end))) == [5, 6, 7]
    following = latest(again, end)
    assert following == {topic: {"0": 10, "1": 0}}
    assert values_of(read_all(again, again.partitions(end, following))) == [8, 9]


def test_an_idle_stream_stays_where_it_is_until_records_come(
    make: Make, producer: Producer, topic: str
) -> None:
    reader = make(startingOffsets="latest")
    begun = latest(reader, reader.initialOffset())
    assert begun == {topic: {"0": 0, "1": 0}, START: {topic: {"0": 0, "1": 0}}}
    assert latest(reader, begun) == begun
    send(producer, topic, [1], partition=1)
    assert until(lambda: latest(reader, begun) != begun, 30, "the record is seen")


def test_limits_share_out_what_a_batch_takes(make: Make, producer: Producer, topic: str) -> None:
    send(producer, topic, range(60))
    send(producer, topic, range(60, 90), partition=1)
    reader = make(maxOffsetsPerTrigger=30)
    assert reader.getDefaultReadLimit() == ReadMaxRows(30)
    offsets = [reader.initialOffset()]
    while (end := latest(reader, offsets[-1])) != offsets[-1]:
        offsets.append(end)
    assert offsets[1] == {topic: {"0": 20, "1": 10}}
    assert len(offsets) == 4
    assert offsets[-1] == {topic: {"0": 60, "1": 30}}
    end = reader.latestOffset(offsets[0], ReadAllAvailable())
    assert {name: end[name] for name in end if name != IDS} == offsets[-1]


def test_a_batch_waits_for_enough_records_but_not_for_ever(
    make: Make, producer: Producer, topic: str
) -> None:
    send(producer, topic, [0])
    reader = make(minOffsetsPerTrigger=5, maxTriggerDelay="400ms")
    assert reader.getDefaultReadLimit() == ReadMinRows(5)
    first = latest(reader, reader.initialOffset())
    send(producer, topic, [1, 2])
    patient = make(minOffsetsPerTrigger=5)
    assert latest(patient, patient.initialOffset()) == {topic: {"0": 3, "1": 0}}
    send(producer, topic, [3])
    assert latest(patient, {topic: {"0": 3, "1": 0}}) == {topic: {"0": 3, "1": 0}}
    send(producer, topic, range(4, 8))
    assert latest(patient, {topic: {"0": 3, "1": 0}}) == {topic: {"0": 8, "1": 0}}
    until(lambda: latest(reader, first) != first, 30, "the delay has passed")


def test_available_now_ends_where_the_topic_ended(
    make: Make, producer: Producer, admin: Admin, topic: str
) -> None:
    send(producer, topic, range(5))
    reader = make(maxOffsetsPerTrigger=3, partition__metadata__cache__ttl__ms=-1)
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    send(producer, topic, range(5, 9))
    admin.add_partitions(topic, 3)
    first = latest(reader, start)
    second = latest(reader, first)
    assert (first, second) == ({topic: {"0": 3, "1": 0}}, {topic: {"0": 5, "1": 0}})
    assert latest(reader, second) == second
    ahead = {topic: {"0": 9, "1": 0, "2": 0}}  # a checkpoint may be further than the topic was at the start
    assert latest(reader, ahead) == ahead


def test_new_partitions_are_read_from_their_beginning(
    make: Make, producer: Producer, admin: Admin, topic: str
) -> None:
    reader = make(startingOffsets="latest", partition__metadata__cache__ttl__ms=-1, maxRecordsPerPartition=1)
    begun = latest(reader, reader.initialOffset())
    admin.add_partitions(topic, 3)
    send(producer, topic, range(5), partition=2)
    admin.delete_records({TopicPartition(topic, 2): 2})  # no loss: the query had not come upon it
    end = until(lambda: _other(latest(reader, begun), begun), 30, "the partition is seen")
    assert end[topic]["2"] == 5
    planned = reader.partitions(begun, end)
    assert len(planned) == 3, "nobody looks for what is not there any more"
    assert values_of(read_all(reader, planned)) == [2, 3, 4]
    admin.delete_records({TopicPartition(topic, 2): 4})  # nor is this a loss
    assert values_of(read_all(reader, make().partitions(begun, end))) == [4]


def _other(found: dict[str, Any], than: dict[str, Any]) -> dict[str, Any] | None:
    return found if found != than else None


def test_where_latest_was_goes_for_the_partitions_there_were(
    make: Make, broker: Broker, producer: Producer, admin: Admin, topic: str, tmp_path: Path
) -> None:
    """An app keeps it, and its next query may begin there when the topic has grown."""
    send(producer, topic, range(3))
    wanted = Subscription((topic,))
    first = StateFolder(tmp_path, "app")
    assert json.loads(first.latest_once(broker.bootstrap, wanted)) == {topic: {"0": 3, "1": 0}}
    first.keep_starts()
    admin.add_partitions(topic, 3)
    with Producer(broker.bootstrap) as aware:
        send(aware, topic, [3])
        send(aware, topic, [4], partition=2)
    assert json.loads(StateFolder(tmp_path, "app").latest_once("127.0.0.1:1", wanted)) == {
        topic: {"0": 3, "1": 0}
    }, "known without a broker"
    reader = make(startingOffsets=StateFolder(tmp_path, "app").latest_once(broker.bootstrap, wanted))
    start = reader.initialOffset()
    assert start == {topic: {"0": 3, "1": 0, "2": 0}}
    assert values_of(read_all(reader, reader.partitions(start, latest(reader, start)))) == [3, 4]


def test_topics_that_come_to_match_a_pattern_are_read(
    make: Make, broker: Broker, producer: Producer, new_name: Name
) -> None:
    prefix = new_name("pattern")
    broker.create_topic(topic_of(prefix), 1)  # the decisions of a sink are for nobody
    pattern = f"({topic_of('')})?{prefix}.*"
    assert not Subscription(pattern=pattern).takes(topic_of(prefix))
    reader = make(subscribePattern=pattern, partition__metadata__cache__ttl__ms=-1)
    begun = latest(reader, reader.initialOffset())
    assert begun == {}
    broker.create_topic(f"{prefix}-new", 1)
    send(producer, f"{prefix}-new", range(2))
    end = until(lambda: _other(latest(reader, begun), begun), 30, "the topic is seen")
    assert values_of(read_all(reader, reader.partitions(begun, end))) == [0, 1]


def test_a_topic_that_is_gone_is_told(
    make: Make, broker: Broker, producer: Producer, new_name: Name, caplog: pytest.LogCaptureFixture
) -> None:
    topic = broker.create_topic(new_name("gone"), 1)
    send(producer, topic, range(3))
    strict, lax = (make(subscribe=topic, failOnDataLoss=word) for word in ("true", "false"))
    end = latest(strict, strict.initialOffset())
    assert end == latest(lax, lax.initialOffset())
    broker.delete_topic(topic)
    fresh = make(subscribe=topic)
    with pytest.raises(LostRecords, match=f"{topic}-0 is gone, the query had read up to 3"):
        latest(fresh, end)
    with pytest.raises(NoTopic):
        fresh.initialOffset()
    assert until(lambda: _other(latest(lax, end), end) == {}, 30, "the topic is left out")
    assert "is gone" in caplog.text


def test_a_topic_that_was_made_anew_is_told(
    make: Make, broker: Broker, producer: Producer, new_name: Name
) -> None:
    topic = broker.create_topic(new_name("anew"), 1)
    send(producer, topic, [7])
    end = {topic: {"0": 5}}
    with pytest.raises(LostRecords, match=f"{topic}-0 ends at offset 1, but had been read up to 5"):
        latest(make(subscribe=topic), end)
    lax = make(subscribe=topic, failOnDataLoss="false")
    assert latest(lax, end) == {topic: {"0": 1}}
    assert lax.partitions(end, {topic: {"0": 1}}) == []


def test_topics_that_are_not_read_any_more_are_told(make: Make, broker: Broker, new_name: Name) -> None:
    """They are not gone: the checkpoint is of another source, or more was subscribed to."""
    topic, other = (broker.create_topic(new_name("read"), 1) for _ in range(2))
    for there in (other, "deleted-too"):
        with pytest.raises(
            LostRecords, match=f"{there}-0 is not among what is read now, and the query had re"
        ):
            latest(make(subscribe=topic), {there: {"0": 5}})
    with pytest.raises(LostRecords, match=f"{topic}-7 is gone, the query had read up to 5"):
        latest(make(subscribe=topic), {topic: {"7": 5}})


def made_anew(broker: Broker, topic: str, numbers: Iterable[int]) -> None:
    broker.delete_topic(topic)
    broker.create_topic(topic, 1)
    with Producer(broker.bootstrap, linger_ms=0) as aware:
        send(aware, topic, numbers)


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("has_ids", [False, True])
def test_a_topic_that_was_made_anew_and_is_as_long_is_told(
    make: Make, broker: Broker, producer: Producer, new_name: Name, is_restarted: bool, has_ids: bool
) -> None:
    """By its id, which the reader has met, or the checkpoint; an old checkpoint has none."""
    topic = broker.create_topic(new_name("anew"), 1)
    send(producer, topic, range(3))

    def reader(fails: str) -> StreamReader:
        return make(subscribe=topic, failOnDataLoss=fails, partition__metadata__cache__ttl__ms=-1)

    strict, lax = reader("true"), reader("false")
    begun: dict[str, Any] = {}
    for each in (strict, lax):
        begun = each.latestOffset(each.initialOffset(), ReadAllAvailable())
    assert list(begun[IDS]) == [topic]
    if not has_ids:
        del begun[IDS]
    made_anew(broker, topic, range(10, 15))
    if is_restarted:
        strict, lax = reader("true"), reader("false")
    if is_restarted and not has_ids:
        end = strict.latestOffset(begun, ReadAllAvailable())
        assert values_of(read_all(strict, strict.partitions(begun, end))) == [13, 14], "nobody can know"
        return
    with pytest.raises(LostRecords, match=f"topic {topic} was deleted and made anew, {topic}-0 had been re"):
        latest(strict, begun)
    end = lax.latestOffset(begun, ReadAllAvailable())
    again = reader("true")  # a batch that is done again by another process is the same one
    for each in (lax, again):
        assert values_of(read_all(each, each.partitions(begun, end))) == [10, 11, 12, 13, 14]
    with Producer(broker.bootstrap, linger_ms=0) as aware:
        send(aware, topic, [15])
    for each in (lax, again):
        after = each.latestOffset(end, ReadAllAvailable())
        assert START not in after
        assert values_of(read_all(each, each.partitions(end, after))) == [15]


@pytest.mark.parametrize("when", ["unnoticed", "while it waits", "planned"])
def test_a_topic_is_made_anew_while_a_batch_is_planned(
    make: Make,
    broker: Broker,
    producer: Producer,
    new_name: Name,
    monkeypatch: pytest.MonkeyPatch,
    when: str,
) -> None:
    """None of its records stands for one of the old topic: neither are they read at offsets of that, nor are
    its own first ones passed over."""
    topic = broker.create_topic(new_name("anew"), 1)
    send(producer, topic, range(3))
    keeps = 3_600_000 if when == "unnoticed" else -1
    options = {"subscribe": topic, "partition__metadata__cache__ttl__ms": keeps}
    lax = make(**options, failOnDataLoss="false")
    begun = lax.latestOffset(lax.initialOffset(), ReadAllAvailable())
    if when == "planned":  # and then the query is killed, and does the batch again
        send(producer, topic, range(3, 5))
    elif when == "unnoticed":
        made_anew(broker, topic, range(10, 15))
    else:

        def watch(*_: object) -> bool:
            made_anew(broker, topic, range(10, 15))
            return True

        monkeypatch.setattr(lax._asked(), "watch", watch)
    end = lax.latestOffset(begun, ReadAllAvailable())
    if when == "planned":
        made_anew(broker, topic, range(10, 15))
    assert end[IDS] == begun[IDS]
    strict, lax = make(**options), make(**options, failOnDataLoss="false")
    with pytest.raises(
        LostRecords, match=f"{topic}-0: .* offsets 3 to 4 .*the topic was deleted and made anew"
    ):
        read_all(strict, strict.partitions(begun, end))
    assert values_of(read_all(lax, lax.partitions(begun, end))) == []
    after = lax.latestOffset(end, ReadAllAvailable())
    assert values_of(read_all(lax, lax.partitions(end, after))) == [10, 11, 12, 13, 14]


def test_a_topic_made_anew_begins_at_its_first_record_though_a_batch_is_small(
    make: Make, broker: Broker, producer: Producer, new_name: Name
) -> None:
    topic = broker.create_topic(new_name("anew"), 1)
    send(producer, topic, range(4))
    reader = make(
        subscribe=topic,
        failOnDataLoss="false",
        maxOffsetsPerTrigger=3,
        partition__metadata__cache__ttl__ms=-1,
    )
    offsets = [reader.initialOffset()]
    for _ in range(2):
        offsets.append(reader.latestOffset(offsets[-1], ReadMaxRows(3)))
    made_anew(broker, topic, range(10, 15))
    for _ in range(2):
        offsets.append(reader.latestOffset(offsets[-1], ReadMaxRows(3)))
    batches = [
        values_of(read_all(reader, reader.partitions(start, end))) for start, end in pairwise(offsets[2:])
    ]
    assert batches == [[10, 11, 12], [13, 14]]


def test_brokers_without_ids_of_topics_are_read(
    make: Make, producer: Producer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Metadata, "_topic", lambda self, answer, real=Metadata._topic: replace(real(self, answer), id=NO_UUID)
    )
    send(producer, topic, range(2))
    reader = make()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end == {topic: {"0": 2, "1": 0}}
    assert values_of(read_all(reader, reader.partitions(start, end))) == [0, 1]


@pytest.mark.parametrize("fails", ["true", "false"])
def test_what_an_open_transaction_holds_back_is_not_lost(
    make: Make, broker: Broker, topic: str, new_name: Name, fails: str
) -> None:
    """A query that had read on regardless, or is to begin behind it, waits for the transaction to end."""
    with Producer(broker.bootstrap, transactional_id=new_name("txn")) as txn:
        txn.begin_transaction()
        send(txn, topic, [1, 2])
        begun = {topic: {"0": 2, "1": 0}}
        reader = make(kafka__isolation__level="read_committed", failOnDataLoss=fails)
        assert latest(reader, begun) == begun
        later = make(
            kafka__isolation__level="read_committed", failOnDataLoss=fails, startingOffsets=json.dumps(begun)
        )
        assert later.initialOffset() == begun
        txn.commit_transaction()
        send_more(txn, topic, 3)
    end = until(lambda: _other(latest(reader, begun), begun), 30, "the transaction is over")
    assert values_of(read_all(reader, reader.partitions(begun, end))) == [3]


def send_more(txn: Producer, topic: str, number: int) -> None:
    with txn.transaction():
        send(txn, topic, [number])


def test_what_was_read_is_committed_for_a_group(
    make: Make, producer: Producer, admin: Admin, topic: str, new_name: Name
) -> None:
    send(producer, topic, range(4))
    group = new_name("group")
    reader = make(kafka__group__id=group)
    reader.commit({topic: {"0": 3, "1": 0}})
    assert admin.group_lag(group) == {TopicPartition(topic, 0): 1, TopicPartition(topic, 1): 0}
    make().commit({topic: {"0": 3, "1": 0}})  # nobody to commit for


def test_a_restart_of_the_broker_is_survived(new_name: Name) -> None:
    with Broker() as own, Producer(own.bootstrap, linger_ms=0) as producer:
        topic = own.create_topic(new_name("restart"), 1)
        send(producer, topic, [1])
        reader = StreamReader(options_for(own, topic, startingOffsets="earliest"))
        try:
            start = reader.initialOffset()
            begun = latest(reader, start)
            own.restart()
            send(producer, topic, [2])
            end = until(lambda: _other(latest(reader, begun), begun), 20, "the new record is seen")
            assert values_of(read_all(reader, reader.partitions(start, end))) == [1, 2]
        finally:
            reader.stop()


def test_leaders_that_move_are_followed(new_name: Name) -> None:
    with Cluster(brokers=3) as cluster, Producer(cluster.bootstrap, linger_ms=0) as producer:
        topic = new_name("moving")
        cluster.create_topic(topic, 3, replication_factor=3, configs={"min.insync.replicas": "2"})
        for partition in range(3):
            send(producer, topic, [partition], partition=partition)
        options = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic}
        reader = StreamReader(options | {"startingOffsets": "earliest"})
        try:
            start = reader.initialOffset()
            begun = latest(reader, start)
            assert latest(reader, begun) == begun  # watched at all three brokers
            assert values_of(read_all(reader, reader.partitions(start, begun))) == [0, 1, 2]
            cluster[cluster.leader(topic, 0)].kill()
            for partition in range(3):
                send(producer, topic, [10 + partition], partition=partition)
            end = {topic: {"0": 2, "1": 2, "2": 2}}
            until(lambda: latest(reader, begun) == end, 30, "the new records are seen")
            assert values_of(read_all(reader, reader.partitions(begun, end))) == [10, 11, 12]
        finally:
            reader.stop()
