"""A transaction index that is not what it was is found and made anew before readers are told by it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.errors import NotLeaderOrFollower
from millstream.model import TopicPartition
from millstream.protocol.batch import ControlMarker, encode_marker
from millstream.storage.checkpoints import BadCheckpoint
from millstream.storage.log import Log
from millstream.storage.transaction_checkpoint import (
    TRANSACTION_INDEXES,
    KnownIndexes,
    encode_known,
    parse_known,
)
from millstream.storage.transaction_index import Checksum
from tests.storage.logs import NOW_MS, PARTITION, SMALL, TOPIC_ID, FaultyFile, World, append, batch, fill

ABORTED = [(7, 0), (7, 5), (8, 1), (9, 10)]
DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "shorter": lambda path: path.write_bytes(path.read_bytes()[:-34]),
    "torn": lambda path: path.write_bytes(path.read_bytes()[:-3]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + path.read_bytes()[:34]),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
}


def record(log: Log, producer_id: int, sequence: int) -> None:
    append(log, batch(b"x", producer_id=producer_id, epoch=0, sequence=sequence, is_transactional=True))


def end(log: Log, producer_id: int, *, is_commit: bool = False) -> None:
    marker = ControlMarker(is_commit, 0)
    append(log, encode_marker(marker, producer_id=producer_id, producer_epoch=0, timestamp_ms=NOW_MS))


def write(log: Log) -> None:
    """Transactions that were aborted, one of them over three segments, and one that was committed."""
    record(log, 7, 0)
    record(log, 8, 0)
    record(log, 6, 0)
    end(log, 7)
    end(log, 6, is_commit=True)
    log.roll()
    record(log, 7, 1)
    end(log, 7)
    log.roll()
    end(log, 8)
    fill(log, 2)
    record(log, 9, 0)
    end(log, 9)
    assert log.aborted_transactions(0, log.end_offset) == ABORTED


def stopped(world: World) -> list[Path]:
    """A store with such a log, stopped cleanly; the transaction indexes of its three segments."""
    store = world.store()
    write(store.create(PARTITION, TOPIC_ID, SMALL))
    store.close()
    return sorted(Path(world.path, "a", str(PARTITION)).glob("*.txnindex"))


def aborted(world: World) -> list[tuple[int, int]]:
    """What a start tells of aborted transactions; it ends as a kill does, and counts as clean again."""
    store = world.store()
    log = store.get(PARTITION)
    assert log is not None
    found = log.aborted_transactions(0, log.end_offset)
    store.close(clean=False)
    Path(world.path, "a", ".kafka_cleanshutdown").touch()
    return found


@pytest.mark.parametrize("has_checkpoint", [True, False])
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("number", range(3))
def test_a_damaged_index_is_made_anew(
    world: World, caplog: pytest.LogCaptureFixture, number: int, damage: str, has_checkpoint: bool
) -> None:
    path = stopped(world)[number]
    whole = path.read_bytes()
    if not has_checkpoint:
        Path(world.path, "a", TRANSACTION_INDEXES).unlink()
    DAMAGES[damage](path)
    assert aborted(world) == ABORTED
    if damage != "longer":
        assert str(path) in caplog.text
    assert path.read_bytes() == whole
    caplog.clear()
    assert aborted(world) == ABORTED
    assert not caplog.text


def test_a_kill_while_an_index_is_made_anew_does_not_lose_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty one would be believed, where nothing tells its checksum and all producers are forgotten."""
    path = stopped(world)[0]
    DAMAGES["torn"](path)
    left = path.read_bytes()
    store = world.store()
    found = store.get(PARTITION)
    assert found is not None

    def kill(*_: object) -> None:
        raise SystemError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", kill)
        patch.setattr(FaultyFile, "append", kill)
        with pytest.raises(SystemError):
            found.aborted_transactions(0, found.end_offset)
    assert path.read_bytes() == left
    assert found.aborted_transactions(0, found.end_offset) == ABORTED
    store.close()


def test_any_changed_byte_of_an_index(world: World) -> None:
    path = stopped(world)[0]
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        assert aborted(world) == ABORTED, f"position {position}"
        assert path.read_bytes() == whole


def test_a_good_index_is_believed_without_a_look_at_the_log(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(world)

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("the segment was read")

    monkeypatch.setattr("millstream.storage.transaction_check.good_chunks", fail)
    assert aborted(world) == ABORTED
    assert not caplog.text


def test_what_no_checkpoint_knows_is_believed_if_there_are_no_transactions(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = world.store()
    log = store.create(PARTITION, TOPIC_ID, SMALL)
    for sequence in range(100):
        append(log, batch(b"x" * 100, producer_id=3, epoch=0, sequence=sequence))
    store.close()
    Path(world.path, "a", TRANSACTION_INDEXES).unlink()

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("the segment was read")

    monkeypatch.setattr("millstream.storage.transaction_check.good_chunks", fail)
    assert aborted(world) == []


@pytest.mark.parametrize("damage", [*DAMAGES, None])
def test_aborts_that_come_before_the_index_is_checked_stay(world: World, damage: str | None) -> None:
    """The first abort after a start does not wait until the segment has been read."""
    path = stopped(world)[2]
    if damage is not None:
        DAMAGES[damage](path)
    store = world.store()
    log = store.get(PARTITION)
    assert log is not None
    record(log, 9, 1)
    first = log.end_offset - 1
    end(log, 9)
    assert log.aborted_transactions(0, log.end_offset) == [*ABORTED, (9, first)]
    assert log.segments.active.transaction_index.entries()[-1].first_offset == first
    store.close()
    assert path.stat().st_size == 3 * 34
    assert aborted(world) == [*ABORTED, (9, first)]


def test_after_a_kill_finished_segments_are_checked_too(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    store = world.store()
    write(store.create(PARTITION, TOPIC_ID, SMALL))
    store.checkpoints.write()
    store.close(clean=False)
    path = world.file(0, ".txnindex")
    path = Path(world.path, "a", str(PARTITION), path.name)
    path.write_bytes(b"")
    store = world.store()
    log = store.get(PARTITION)
    assert log is not None
    assert log.aborted_transactions(0, log.end_offset) == ABORTED
    assert str(path) in caplog.text


def test_the_checkpoint_is_believed_whole_or_not_at_all(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    known = {
        TopicPartition("a-b", 3): KnownIndexes(0, 90, {0: Checksum(1, 0xABC), 40: Checksum(2, 5)}),
        TopicPartition("c", 0): KnownIndexes(10, 10, {}),
    }
    data = encode_known(known)
    assert parse_known(data) == known
    assert known[TopicPartition("a-b", 3)].of(40, 90) == Checksum(2, 5)
    assert known[TopicPartition("a-b", 3)].of(20, 40) == Checksum(0, 0)
    assert known[TopicPartition("a-b", 3)].of(40, 91) is None
    for position in range(len(data)):
        with pytest.raises(BadCheckpoint):
            parse_known(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
    with pytest.raises(BadCheckpoint):
        parse_known(b"")
    stopped(world)
    path = Path(world.path, "a", TRANSACTION_INDEXES)
    path.write_bytes(b"garbage")
    assert aborted(world) == ABORTED
    assert str(path) in caplog.text


def test_of_a_log_that_was_closed_meanwhile_none_are_told(world: World) -> None:
    """It was deleted, or moved away: no disk has failed."""
    log = world.open()
    write(log)
    log.close()
    log = world.open(is_clean=True, recovery_point=log.end_offset)  # nothing of them is in memory
    log.close()
    with pytest.raises(NotLeaderOrFollower):
        log.aborted_transactions(0, log.end_offset)
