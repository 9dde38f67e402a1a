"""A store: the logs of a broker, over restarts."""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from millstream.errors import KafkaStorageError
from millstream.model import NO_UUID, TopicPartition
from millstream.storage.meta_properties import encode_uuid
from millstream.storage.store import Store
from tests.storage.logs import (
    NOW_MS,
    OTHER_ID,
    PARTITION,
    SMALL,
    TOPIC_ID,
    World,
    append,
    batch,
    fill,
    offsets,
)


def test_logs_are_there_again_after_a_clean_restart(world: World) -> None:
    store = world.store()
    assert not store.dirs.were_clean
    for number in range(5):
        fill(store.create(TopicPartition("t", number), TOPIC_ID, SMALL), number * 20)
    store.close()
    store = world.store()
    assert store.dirs.were_clean
    assert len(store) == 5
    for number in range(5):
        log = store.get(TopicPartition("t", number), TOPIC_ID)
        assert log is not None
        assert offsets(log) == list(range(number * 20))
        assert log.recovery_point == number * 20
    store.close()


def test_partition_metadata_is_kafkas(world: World) -> None:
    store = world.store()
    log = store.create(PARTITION, TOPIC_ID, SMALL)
    assert (
        Path(log.folder, "partition.metadata").read_text() == f"version: 0\ntopic_id: {encode_uuid(TOPIC_ID)}"
    )
    assert store.topic_id(PARTITION) == TOPIC_ID
    store.close()


def test_a_log_of_another_topic_id_is_set_aside(world: World) -> None:
    store = world.store()
    fill(store.create(PARTITION, OTHER_ID, SMALL), 3)
    store.close()
    store = world.store()
    assert store.get(PARTITION, TOPIC_ID) is None
    assert store.get(PARTITION) is None
    (name,) = world.folder_names()
    assert name.startswith("orders-0.")
    assert name.endswith("-stray")
    assert Path(world.path, "a", name, "00000000000000000000.log").stat().st_size > 0
    created = store.create(PARTITION, TOPIC_ID, SMALL)
    assert created.end_offset == 0
    store.close()
    store = world.store()
    assert len(store) == 1
    store.close()


def test_logs_of_no_known_topic_are_set_aside(world: World) -> None:
    store = world.store()
    store.create(PARTITION, TOPIC_ID, SMALL)
    store.create(TopicPartition("gone", 3), OTHER_ID, SMALL)
    assert store.set_aside_strays([TOPIC_ID]) == [TopicPartition("gone", 3)]
    assert store.get(TopicPartition("gone", 3)) is None
    assert len(store) == 1
    assert {name.split(".")[0] for name in world.folder_names()} == {"orders-0", "gone-3"}
    store.close()


def test_a_folder_without_a_topic_id_takes_the_one_it_is_asked_for(world: World) -> None:
    store = world.store()
    fill(store.create(PARTITION, TOPIC_ID, SMALL), 3)
    store.close()
    metadata = Path(world.path, "a", "orders-0", "partition.metadata")
    for content in (b"", None):
        metadata.write_bytes(content) if content is not None else metadata.unlink()
        store = world.store()
        assert store.topic_id(PARTITION) == NO_UUID
        found = store.get(PARTITION, TOPIC_ID)
        assert found is not None
        assert offsets(found) == [0, 1, 2]
        assert encode_uuid(TOPIC_ID) in metadata.read_text()
        store.close()


def test_a_copy_without_a_topic_id_is_set_aside_unless_it_is_empty(world: World) -> None:
    """It may be of an earlier topic of that name, which a failing disk kept from being deleted."""
    metadata = Path(world.path, "a", "orders-0", "partition.metadata")
    for records in (0, 3):
        store = world.store()
        log = store.get(PARTITION) or store.create(PARTITION, TOPIC_ID, SMALL)
        if records:
            fill(log, records)
        store.close()
        metadata.write_bytes(b"version: 0\ntopic_id: abc")
        store = world.store()
        assert store.topic_id(PARTITION) == NO_UUID
        found = store.get(PARTITION, TOPIC_ID, is_copy=True)
        assert (found is None) == bool(records)
        store.close()
    (name,) = world.folder_names()
    assert name.startswith("orders-0.")
    assert name.endswith("-stray")


def test_a_deleted_log_is_renamed_and_later_removed(world: World) -> None:
    store = world.store()
    log = store.create(PARTITION, TOPIC_ID, SMALL)
    log.config = type(SMALL)(file_delete_delay_ms=5000)
    fill(log, 10)
    store.delete(PARTITION)
    (name,) = world.folder_names()
    assert name.startswith("orders-0.")
    assert name.endswith("-delete")
    with pytest.raises(KafkaStorageError):
        append(log, batch(b"a"))
    assert store.remove_deleted() == 0
    world.clock.ms += 5000
    assert store.remove_deleted() == 1
    assert world.folder_names() == set()
    store.delete(PARTITION)
    store.close()


def test_a_restart_removes_what_was_deleted_before(world: World) -> None:
    store = world.store()
    store.create(PARTITION, TOPIC_ID, SMALL)
    store.delete(PARTITION)
    store.close()
    store = world.store()
    assert len(store) == 0
    store.remove_deleted()
    assert world.folder_names() == set()
    store.close()


def test_high_watermarks_are_written_down(world: World) -> None:
    store = world.store(("a", "b"))
    logs = [store.create(TopicPartition("t", number), TOPIC_ID, SMALL) for number in range(3)]
    store.delete(TopicPartition("t", 2))
    store.checkpoints.write_high_watermarks(dict(zip(logs, (5, 6, 7), strict=True)))
    assert Path(world.path, "a", "replication-offset-checkpoint").read_text() == "0\n1\nt 0 5\n"
    assert store.checkpoints.read_high_watermarks() == {TopicPartition("t", 0): 5, TopicPartition("t", 1): 6}
    store.close()


def test_a_new_log_does_not_go_on_in_the_folder_of_one_that_could_not_be_renamed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = world.store()
    fill(store.create(PARTITION, TOPIC_ID, SMALL), 5)

    def refuse(source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, "refused", source)

    with monkeypatch.context() as patch:
        patch.setattr(world.disk, "rename", refuse)
        with pytest.raises(KafkaStorageError):
            store.delete(PARTITION)
        with pytest.raises(KafkaStorageError):
            store.create(PARTITION, OTHER_ID, SMALL)
    log = store.create(PARTITION, OTHER_ID, SMALL)
    fill(log, 2)
    store.close(clean=False)
    store = world.store()
    found = store.get(PARTITION, OTHER_ID)
    assert found is not None
    assert offsets(found) == [0, 1]
    assert sorted(name.endswith("-stray") for name in world.folder_names()) == [False, True]
    store.close()


def test_what_is_not_a_log_is_left_alone(world: World) -> None:
    world.store().close()
    root = Path(world.path, "a")
    (root / "notes-1").write_text("a file")
    (root / "lost+found").mkdir()
    (root / "__cluster_metadata-0").mkdir()
    (root / "orders-0.abc-future").mkdir()
    store = world.store()
    assert len(store) == 0
    assert store.set_aside_strays([]) == []
    store.close()
    assert {"notes-1", "lost+found", "__cluster_metadata-0", "orders-0.abc-future"} <= {
        p.name for p in root.iterdir()
    }


def test_many_logs_are_closed_in_threads(world: World) -> None:
    store = world.store()
    for number in range(40):
        fill(store.create(TopicPartition("t", number), TOPIC_ID, SMALL), 30)
    with ThreadPoolExecutor(8) as pool:
        store.close(each=pool.map)
    store = world.store()
    assert store.dirs.were_clean
    assert all(offsets(log) == list(range(30)) for log in store)
    assert all(log.recovery_point == 30 for log in store)
    store.close()


def test_creating_a_log_costs_no_fsync(world: World) -> None:
    store = world.store()
    world.disk.synced.clear()
    log = store.create(PARTITION, TOPIC_ID, SMALL)
    fill(log, 3)
    assert world.disk.synced == []
    log.flush()
    assert {f"{log.folder}/partition.metadata", log.folder, log.dir_path} <= set(world.disk.synced)
    second = store.create(TopicPartition("t", 1), TOPIC_ID, SMALL)
    third = store.create(TopicPartition("t", 2), TOPIC_ID, SMALL)
    world.disk.synced.clear()
    for one in (second, third):
        fill(one, 1)
        one.flush()
    assert world.disk.synced.count(log.dir_path) == 1
    store.close()


def test_a_store_reads_what_another_clock_wrote(world: World) -> None:
    store: Store = world.store()
    fill(store.create(PARTITION, TOPIC_ID, SMALL), 3)
    store.close()
    world.clock.ms = NOW_MS - 10_000_000
    store = world.store()
    found = store.get(PARTITION)
    assert found is not None
    assert offsets(found) == [0, 1, 2]
    store.close()
