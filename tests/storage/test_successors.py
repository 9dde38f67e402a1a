"""Work on a log that ends after another log of its name was made: in the same folder, and not to its harm."""

from __future__ import annotations

import threading
from pathlib import Path
from uuid import UUID

import pytest

from millstream.errors import KafkaStorageError
from millstream.model import TopicPartition
from millstream.protocol.batch import encode_batch, read_header
from millstream.protocol.record import Record
from millstream.storage import flusher, names
from millstream.storage.cleanable import find_cleanable
from millstream.storage.cleaning import Cleaning
from millstream.storage.cleaning_job import Rewritten, Scanned
from millstream.storage.compaction import Compaction, Interrupted
from millstream.storage.disk import Disk
from millstream.storage.log import Log
from millstream.storage.store import Store
from tests.storage.held import Held
from tests.storage.ledger import COMPACTED
from tests.storage.logs import NOW_MS, OTHER_ID, PARTITION, SMALL, TOPIC_ID, World, fill


def put(log: Log, key: bytes) -> None:
    data = encode_batch([Record(b"v" * 50, key, (), NOW_MS)])
    log.append(memoryview(data), read_header(data), 0)


def succeed(store: Store, way: str) -> tuple[Log, UUID]:
    """Have another log of the same name."""
    topic_id = TOPIC_ID if way == "moved away and back" else OTHER_ID
    if way == "set aside":
        assert store.get(PARTITION, topic_id) is None
    else:
        store.delete(PARTITION)
    return store.create(PARTITION, topic_id, COMPACTED), topic_id


@pytest.mark.parametrize("way", ["deleted", "set aside", "moved away and back"])
@pytest.mark.parametrize("end", ["finish", "abandon"])
def test_a_swap_that_was_begun_is_not_for_a_later_log(world: World, way: str, end: str) -> None:
    store = world.store()
    old = store.create(PARTITION, TOPIC_ID, COMPACTED)
    for number in range(200):
        put(old, b"%d" % (number % 5))
    compaction = Compaction(find_cleanable(old, old.end_offset, NOW_MS), NOW_MS)
    cleaning = Cleaning(world.disk, compaction.prepare(1 << 20, 0.9, bytes(16)))
    *_, scanned = cleaning.scan_keys()
    assert isinstance(scanned, Scanned)
    *_, rewritten = cleaning.rewrite(scanned.groups[0])
    assert isinstance(rewritten, Rewritten)
    compaction.begin_swap(scanned.groups[0], rewritten)
    new, topic_id = succeed(store, way)
    for number in range(5):
        put(new, b"%d" % number)
    beside = Path(new.folder, names.offset_name(rewritten.base_offset, names.LOG + names.SWAP))
    if end == "abandon":
        beside.write_bytes(b"of a compaction of the new one")
    compaction.make_durable()
    if end == "finish":
        with pytest.raises(Interrupted):
            compaction.finish_swap()
    cleaning.close()
    compaction.abandon()
    compaction.discard()
    assert beside.exists() == (end == "abandon")
    beside.unlink(missing_ok=True)
    store.remove_deleted()
    store.close()
    store = world.store()
    found = store.get(PARTITION, topic_id)
    assert found is not None
    assert found.end_offset == 5
    store.close()


def test_what_was_committed_of_a_log_is_not_said_of_a_later_one(world: World) -> None:
    store = world.store()
    old = store.create(PARTITION, TOPIC_ID, SMALL)
    fill(old, 50)
    other = store.create(TopicPartition("other", 0), OTHER_ID, SMALL)
    fill(other, 5)
    committed = {old: 50, other: 5}
    fill(succeed(store, "deleted")[0], 1)
    assert store.checkpoints.write_high_watermarks(committed)
    assert store.checkpoints.read_high_watermarks() == {other.partition: 5}
    store.close()


def test_a_flush_that_waited_for_its_turn_writes_nothing_into_a_later_log(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = world.store()
    old = store.create(PARTITION, TOPIC_ID, SMALL)
    fill(old, 3, leader_epoch=7)
    is_syncing, may_sync, fsync_dir = threading.Event(), threading.Event(), world.disk.fsync_dir

    def held(path: str) -> None:
        if path == old.folder:
            is_syncing.set()
            assert may_sync.wait(10)
        fsync_dir(path)

    refused: list[KafkaStorageError] = []

    def flush() -> None:
        try:
            old.flush()
        except KafkaStorageError as error:
            refused.append(error)

    monkeypatch.setattr(world.disk, "fsync_dir", held)
    first = threading.Thread(target=flush)
    first.start()
    assert is_syncing.wait(10)
    fill(old, 3, leader_epoch=8)
    second = threading.Thread(target=flush)
    second.start()
    succeed(store, "deleted")
    may_sync.set()
    first.join(10)
    second.join(10)
    assert refused
    assert not Path(world.path, "a", str(PARTITION), names.EPOCHS_FILE).exists()
    store.close()


@pytest.mark.parametrize("at", ["write_file", "fsync_file"])
def test_a_flush_under_way_leaves_the_epochs_of_a_later_log_alone(
    world: World, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    store = world.store()
    old = store.create(PARTITION, TOPIC_ID, SMALL)
    fill(old, 3, leader_epoch=7)
    refused: list[KafkaStorageError] = []

    def flush() -> None:
        try:
            old.flush()
        except KafkaStorageError as error:
            refused.append(error)

    flushing = Held(flush)
    reach = getattr(flusher, at)

    def held(disk: Disk, path: str, *data: bytes) -> None:
        flushing.wait()
        reach(disk, path, *data)

    monkeypatch.setattr(flusher, at, held)
    flushing.begin()
    if at == "write_file":
        threading.Timer(0.2, flushing.release).start()
    new, _ = succeed(store, "deleted")
    fill(new, 2, leader_epoch=0)
    epochs = Path(new.folder, names.EPOCHS_FILE)
    beside = epochs.with_name(names.EPOCHS_FILE + names.BESIDE)
    beside.write_bytes(b"")  # as if the later log were just flushed, too
    flushing.let_go()
    assert refused
    assert beside.read_bytes() == b""
    assert not epochs.exists()
    store.close()


def test_a_checkpoint_that_is_being_written_says_nothing_of_a_later_log(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = world.store()
    fill(store.create(PARTITION, TOPIC_ID, SMALL), 50)
    is_writing, may_write, replace_file = threading.Event(), threading.Event(), world.disk.replace_file

    def held(path: str, data: bytes) -> None:
        if path.endswith("recovery-point-offset-checkpoint"):
            is_writing.set()
            assert may_write.wait(10)
        replace_file(path, data)

    monkeypatch.setattr(world.disk, "replace_file", held)
    writing = threading.Thread(target=store.checkpoints.write)
    writing.start()
    assert is_writing.wait(10)
    store.delete(PARTITION)
    threading.Timer(0.2, may_write.set).start()
    store.create(PARTITION, OTHER_ID, SMALL)
    writing.join(10)
    written = Path(world.path, "a", "recovery-point-offset-checkpoint").read_text()
    assert str(PARTITION.topic) not in written
    store.close()
