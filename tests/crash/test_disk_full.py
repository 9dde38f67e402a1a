"""A full disk: producers get a retriable error, reads go on, writing resumes when there is room."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.crash.load import read_all
from tests.processes import BrokerProcess, until
from tests.small_disk import fill, mounted
from tests.wire import Wire, append, batch, create_topic, end_offset, fetch, produce, values

KAFKA_STORAGE_ERROR = 56
DISK_BYTES = 32 << 20
ROOM_BYTES = 3 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few MB in memory."""
    with mounted(tmp_path / "small", DISK_BYTES) as folder:
        yield folder


def test_writing_stops_and_resumes(small_disk: Path, broker_process: Callable[..., BrokerProcess]) -> None:
    broker = broker_process(small_disk / "data", log_segment_bytes=str(1 << 20)).start()
    with Wire(broker.bootstrap) as wire:
        create_topic(wire, "full", partitions=2)
        assert append(wire, "full", b"first") == 0
        filler = fill(small_disk, ROOM_BYTES)
        written: list[bytes] = [b"first"]
        refused = None
        for number in range(100):
            value = b"%d" % number + bytes(100_000)
            answer = produce(wire, "full", batch([value]))
            if answer.error_code:
                refused = answer
                break
            assert answer.base_offset == len(written)
            written.append(value)
        assert refused is not None, "the disk never became full"
        assert refused.error_code == KAFKA_STORAGE_ERROR
        assert "space" in (refused.error_message or "").lower()
        # the other partition has no room either; reading goes on; nothing half-written is shown
        assert produce(wire, "full", batch([bytes(100_000)]), partition=1).error_code == KAFKA_STORAGE_ERROR
        for _ in range(3):
            assert produce(wire, "full", batch([bytes(100_000)])).error_code == KAFKA_STORAGE_ERROR
        assert list(read_all(broker.bootstrap, "full", 0).values()) == written
        assert end_offset(wire, "full") == len(written)
        assert broker.is_running
        filler.unlink()
        until(
            lambda: produce(wire, "full", batch([b"again"])).error_code == 0, 20, "writing resumes by itself"
        )
        written.append(b"again")
        assert append(wire, "full", b"and on") == len(written)
        written.append(b"and on")
        assert produce(wire, "full", batch([b"too"]), partition=1).base_offset == 0
        assert list(read_all(broker.bootstrap, "full", 0).values()) == written
    broker.kill()
    broker.start()
    assert list(read_all(broker.bootstrap, "full", 0).values()) == written
    assert broker.stop() == 0


def test_killed_while_the_disk_is_full(
    small_disk: Path, broker_process: Callable[..., BrokerProcess]
) -> None:
    """A broker that starts on a full disk serves reads, and takes records once there is room."""
    broker = broker_process(small_disk / "data", log_segment_bytes=str(1 << 20)).start()
    with Wire(broker.bootstrap) as wire:
        create_topic(wire, "full")
        append(wire, "full", b"kept")
        filler = fill(small_disk, 0)
        assert produce(wire, "full", batch([bytes(200_000)])).error_code == KAFKA_STORAGE_ERROR
    broker.kill()
    with filler.open("r+b") as file:
        file.truncate(filler.stat().st_size - (1 << 20))  # a start needs a little room of its own
    broker.start()
    with Wire(broker.bootstrap) as wire:
        assert values(fetch(wire, "full", 0).records) == [b"kept"]
        filler.unlink()
        until(lambda: produce(wire, "full", batch([bytes(200_000)])).error_code == 0, 20, "writing resumes")
        assert end_offset(wire, "full") == 2


def test_topics_on_a_full_disk(small_disk: Path, broker_process: Callable[..., BrokerProcess]) -> None:
    """What cannot be made is refused with an error; afterwards everything works again."""
    broker = broker_process(small_disk / "data").start()
    with Wire(broker.bootstrap) as wire:
        create_topic(wire, "before")
        filler = fill(small_disk, 0)
        with pytest.raises((AssertionError, TimeoutError, ConnectionError)):
            create_topic(wire, "during", partitions=50)
    assert broker.is_running
    filler.unlink()
    with Wire(broker.bootstrap) as wire:
        assert append(wire, "before", b"still here") == 0
        create_topic(wire, "after")
        assert append(wire, "after", b"new") == 0
    assert broker.stop() == 0
