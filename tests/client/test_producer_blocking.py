"""The blocking producer, on Millstream and on Apache Kafka."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

import pytest

import millstream
from millstream import Producer
from millstream.client.face import Closed, LoopThread
from millstream.client.producer_buffer import BufferFull
from millstream.client.serializers import deserializer_of, json_decoder, serializer_of
from millstream.errors import RequestTimedOut
from millstream.testing import Broker
from tests.client.logs import records_in, values_in
from tests.client.test_producer_faults import make_topic
from tests.conftest import Name
from tests.processes import free_port


def test_results_and_callbacks(either_bootstrap: str, new_name: Name) -> None:
    topic = make_topic(either_bootstrap, new_name("b"), 1)
    told: list[Any] = []
    with Producer(either_bootstrap) as producer:
        delivery = producer.send(topic, b"one", key=b"k", timestamp_ms=5, headers=[("h", b"1")])
        assert delivery.result(10) == (topic, 0, 0, 5)
        assert delivery.done()
        assert delivery.exception() is None
        other = producer.send(topic, b"two")
        other.add_done_callback(
            lambda each: told.append((each.result().offset, threading.current_thread().name))
        )
        producer.flush(10)
        assert told == [(1, "millstream-producer")]
        assert producer.buffered_bytes == 0
    assert [record.value for record in records_in(either_bootstrap, topic)[0]] == [b"one", b"two"]


def test_many_threads(either_bootstrap: str, new_name: Name) -> None:
    topic = make_topic(either_bootstrap, new_name("b"), 4)
    with Producer(either_bootstrap, batch_bytes=1000, buffer_bytes=1 << 20) as producer:

        def send(thread: int) -> None:
            for number in range(2000):
                producer.send(topic, b"%d %d" % (thread, number), partition=thread)

        threads = [threading.Thread(target=send, args=(thread,)) for thread in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for thread_number, values in enumerate(values_in(either_bootstrap, topic, 4)):
        assert values == [b"%d %d" % (thread_number, number) for number in range(2000)]


def test_a_full_buffer_makes_send_wait(either_bootstrap: str, new_name: Name) -> None:
    topic = make_topic(either_bootstrap, new_name("b"), 1)
    limits: Any = {"batch_bytes": 10_000, "max_request_bytes": 20_000, "buffer_bytes": 40_000}
    with Producer(either_bootstrap, **limits) as producer:
        for number in range(20_000):
            producer.send(topic, b"%d" % number)
            assert producer.buffered_bytes <= 40_000
    assert values_in(either_bootstrap, topic) == [[b"%d" % number for number in range(20_000)]]


def test_a_full_buffer_and_a_broker_that_is_gone() -> None:
    limits: Any = {"batch_bytes": 1000, "max_request_bytes": 1000, "buffer_bytes": 2000, "max_block_ms": 300}
    with Broker() as broker:
        producer = Producer(broker.bootstrap, **limits)
        producer.send(broker.create_topic("t"), b"the topic is known from here on").result(10)
    try:
        started = time.monotonic()
        with pytest.raises(BufferFull, match=r"in 0.3 seconds"):
            _ = [producer.send("t", bytes(800)) for _ in range(3)]
        assert 0.2 < time.monotonic() - started < 3
    finally:
        producer.close(0.1)


def test_nobody_there() -> None:
    with Producer(f"127.0.0.1:{free_port()}", max_block_ms=300) as producer:
        delivery = producer.send("t", b"v")
        with pytest.raises(RequestTimedOut):
            delivery.result(10)


def test_a_closed_producer(either_bootstrap: str, new_name: Name) -> None:
    topic = make_topic(either_bootstrap, new_name("b"), 1)
    before = set(threading.enumerate())
    producer = Producer(either_bootstrap, linger_ms=10_000)
    delivery = producer.send(topic, b"v")
    producer.close()
    assert delivery.result(0).offset == 0, "close writes what was sent"
    producer.close()
    with pytest.raises(Closed):
        producer.send(topic, b"v")
    with pytest.raises(Closed):
        producer.flush()
    assert "millstream-producer" not in {thread.name for thread in set(threading.enumerate()) - before}


@dataclass
class Order:
    name: str
    count: int


def test_serializers(either_bootstrap: str, new_name: Name) -> None:
    topic = make_topic(either_bootstrap, new_name("b"), 1)
    with Producer(either_bootstrap, serializer="json", key_serializer="str") as producer:
        producer.send(topic, {"a": [1, None]}, key="schlüssel")
        producer.send(topic, Order("tea", 3), key=None)
        producer.send(topic, None, key="gone")
    with Producer(either_bootstrap, serializer=lambda number: b"%x" % number) as producer:
        producer.send(topic, 255)
        with pytest.raises(TypeError):
            producer.send(topic, "no number")
    with Producer(either_bootstrap) as producer:
        for _ in range(2):
            with pytest.raises(TypeError, match="bytes"):
                producer.send(topic, "a text where bytes are due")
            with pytest.raises(TypeError, match="bytes"):
                producer.send(topic, b"v", headers=[("name", "text")])  # type: ignore[list-item]
            producer.send(topic, b"good").result(10)
    first, second, third, fourth, *others = records_in(either_bootstrap, topic)[0]
    assert (json.loads(first.value or b""), first.key) == ({"a": [1, None]}, "schlüssel".encode())
    assert json_decoder(Order)(second.value or b"") == Order("tea", 3)
    assert (third.value, third.key) == (None, b"gone")
    assert fourth.value == b"ff"
    assert [record.value for record in others] == [b"good"] * 2


def test_deserializers() -> None:
    assert deserializer_of("bytes") is None
    assert (deserializer_of("str") or repr)(b"\xc3\xbc") == "ü"
    assert (deserializer_of("json") or repr)(b'{"a":1}') == {"a": 1}
    assert deserializer_of(len) is len
    assert serializer_of(None) is None
    for choose in (serializer_of, deserializer_of):
        with pytest.raises(ValueError, match="'yaml' is not one of bytes, str, json"):
            choose("yaml")  # type: ignore[arg-type]


def test_importing_millstream_imports_nothing_else() -> None:
    program = (
        "import sys; before = set(sys.modules); import millstream; print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    heavy = {"asyncio", "millstream.client", "millstream.protocol", "msgspec", "cramjam"}
    assert not heavy & set(done.stdout.split())
    assert {"Producer", "AsyncProducer", "TopicPartition"} <= set(dir(millstream))
    with pytest.raises(AttributeError, match="no attribute 'Consummer'"):
        _ = millstream.Consummer  # type: ignore[attr-defined]


def test_a_loop_in_a_thread() -> None:
    import asyncio

    thread = LoopThread("test-face")

    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return number * 2

    async def call_itself() -> None:
        thread.run(double(1))

    assert thread.run(double(21), 1) == 42
    with pytest.raises(RuntimeError, match="would never end"):
        thread.run(call_itself())
    with pytest.raises(ValueError, match="of its own"):
        thread.run(fail())
    with pytest.raises(TimeoutError, match="of its own"):
        thread.run(time_out(), 5)
    thread.close()
    thread.close()
    with pytest.raises(Closed):
        thread.run(double(1))
    thread.call_soon(print)


async def fail() -> None:
    raise ValueError("of its own")


async def time_out() -> None:
    raise TimeoutError("of its own")
