"""What a store finds after it was killed or the power was lost."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from millstream.config.log import LogConfig
from millstream.errors import KafkaStorageError
from millstream.protocol.batch import ControlMarker, encode_marker
from millstream.storage.log import Log
from tests.storage.logs import NOW_MS, PARTITION, SMALL, TOPIC_ID, World, append, batch, fill, offsets


def latest_without_indexes(world: World, log: Log) -> int:
    """The first segment's largest timestamp, once a power loss took its indexes, which were never flushed."""
    for suffix in (".index", ".timeindex"):
        path = Path(log.folder, f"{0:020d}{suffix}")
        assert str(path) not in world.disk.synced
        path.write_bytes(b"")
    store = world.store()
    found = store.get(PARTITION, TOPIC_ID)
    assert found is not None
    latest = found.segments.first.max_timestamp
    store.close()
    return latest


def test_the_mark_of_a_clean_stop_is_gone_while_the_store_is_open(world: World) -> None:
    store = world.store()
    mark = Path(world.path, "a", ".kafka_cleanshutdown")
    assert not mark.exists()
    store.close(broker_epoch=12)
    assert json.loads(mark.read_text()) == {"version": 0, "brokerEpoch": 12}
    world.disk.synced.clear()
    store = world.store()
    assert not mark.exists()
    assert f"{world.path}/a" in world.disk.synced
    assert store.dirs[0].broker_epoch == 12
    store.close(clean=False)
    assert not mark.exists()
    store = world.store()
    assert not store.dirs.were_clean
    store.close()


def test_a_kill_leaves_logs_to_recover_from_their_recovery_points(world: World) -> None:
    store = world.store()
    log = store.create(PARTITION, TOPIC_ID, SMALL)
    fill(log, 100)
    store.checkpoints.write()
    checkpoint = Path(world.path, "a", "recovery-point-offset-checkpoint")
    active = log.segments.active.base_offset
    assert checkpoint.read_text() == f"0\n1\norders 0 {active}\n"
    first = Path(log.folder, "00000000000000000000.log")
    store.close(clean=False)
    damaged = bytearray(first.read_bytes())
    damaged[70] ^= 1
    first.write_bytes(damaged)
    last = Path(log.folder, f"{active:020d}.log")
    last.write_bytes(last.read_bytes() + b"torn")
    store = world.store()
    found = store.get(PARTITION, TOPIC_ID)
    assert found is not None
    assert found.end_offset == 100
    with pytest.raises(KafkaStorageError):
        found.read(0, 1000)
    assert offsets(found, start=log.segments[1].base_offset) == list(range(log.segments[1].base_offset, 100))
    store.close()


def test_indexes_that_a_power_loss_took_after_a_flush_and_a_roll_are_derived_again(world: World) -> None:
    """The recovery point is at the end of a segment when the log goes on in another, and the power goes."""
    store = world.store()
    log = store.create(PARTITION, TOPIC_ID, SMALL)
    append(log, batch(b"a", producer_id=1, epoch=0, sequence=0, is_transactional=True))
    append(log, encode_marker(ControlMarker(False, 4), producer_id=1, producer_epoch=0, timestamp_ms=NOW_MS))
    log.flush()
    store.checkpoints.write()
    log.roll()
    store.close(clean=False)
    for suffix in (".index", ".timeindex", ".txnindex"):
        path = Path(log.folder, f"{0:020d}{suffix}")
        assert str(path) not in world.disk.synced
        path.unlink()
    store = world.store()
    found = store.get(PARTITION, TOPIC_ID)
    assert found is not None
    assert found.aborted_transactions(0, 2) == [(1, 0)]
    first = found.offset_for_timestamp(NOW_MS)
    assert first is not None
    assert first.offset == 0
    store.close()


def test_indexes_that_recovery_made_and_a_power_loss_took_are_derived_again(world: World) -> None:
    """They were durable at the clean stop, whose recovery point is still the one that is written down."""
    store = world.store()
    log = store.create(PARTITION, TOPIC_ID, SMALL)
    fill(log, 5, step_ms=10)
    store.close()
    world.store().close(clean=False)
    world.disk.synced.clear()
    store = world.store()
    found = store.get(PARTITION, TOPIC_ID)
    assert found is not None
    found.roll()
    store.close(clean=False)
    assert latest_without_indexes(world, log) == NOW_MS + 40


def test_indexes_that_a_power_loss_took_after_a_cut_and_a_roll_are_derived_again(world: World) -> None:
    store = world.store()
    log = store.create(PARTITION, TOPIC_ID, SMALL)
    fill(log, 5, step_ms=10)
    log.roll()
    fill(log, 1)
    log.flush()
    store.checkpoints.write()
    log.truncate_to(3)
    world.disk.synced.clear()
    log.roll()
    store.close(clean=False)
    assert latest_without_indexes(world, log) == NOW_MS + 20


def test_kills_do_not_wear_the_recovery_point_down(world: World) -> None:
    store = world.store()
    log = store.create(PARTITION, TOPIC_ID, SMALL)
    fill(log, 5)
    log.flush()
    store.checkpoints.write()
    for _ in range(3):
        store.close(clean=False)
        store = world.store()
    checkpoint = Path(world.path, "a", "recovery-point-offset-checkpoint")
    assert checkpoint.read_text() == "0\n1\norders 0 4\n"
    store.close()


def test_what_was_cut_off_is_not_written_down_as_cleaned(world: World) -> None:
    """Recovery takes no gap below what was cleaned for a loss; what comes instead was never cleaned."""
    store = world.store()
    log = store.create(PARTITION, TOPIC_ID, SMALL)
    fill(log, 50)
    log.flush()
    log.cleaned_until = 40
    store.checkpoints.write()
    log.truncate_to(10)
    checkpoint = Path(world.path, "a", "cleaner-offset-checkpoint")
    assert checkpoint.read_text() == "0\n1\norders 0 10\n"
    store.close()


def test_a_late_checkpoint_does_not_undo_a_clean_stop(world: World) -> None:
    store = world.store()
    log = store.create(PARTITION, TOPIC_ID, SMALL)
    fill(log, 50)
    log.delete_records(5)
    store.close()
    store.checkpoints.write_starts()
    store.checkpoints.write_high_watermarks({})
    store.checkpoints.write()
    store.sync_names()
    store = world.store()
    found = store.get(PARTITION, TOPIC_ID)
    assert found is not None
    assert (found.start_offset, found.end_offset) == (5, 50)
    store.close()


def test_a_log_that_lost_its_end_starts_where_it_said(world: World) -> None:
    store = world.store()
    log = store.create(PARTITION, TOPIC_ID, LogConfig())
    fill(log, 100)
    log.flush()
    half = log.size_bytes
    fill(log, 100)
    log.delete_records(180)
    store.checkpoints.write_starts()
    store.close(clean=False)
    os.truncate(Path(world.path, "a", "orders-0", f"{0:020d}.log"), half)
    store = world.store()
    found = store.get(PARTITION, TOPIC_ID)
    assert found is not None
    assert (found.start_offset, found.end_offset) == (180, 180)
    store.close(clean=False)  # once more, before anything was written
    for end in (180, 280):
        store = world.store()
        found = store.get(PARTITION, TOPIC_ID)
        assert found is not None
        assert (found.start_offset, found.end_offset) == (180, end)
        assert offsets(found) == list(range(180, end))
        fill(found, 100, leader_epoch=1)
        found.flush()
        store.close(clean=False)


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("text", ["0\n2\np 0\n1 60\n", "0\n2\n1 60\n0 0\n", "0\n2\n0 -3\n1 60\n", "\xff"])
def test_leader_epochs_that_are_not_readable_come_from_the_batches(
    world: World, text: str, is_clean: bool
) -> None:
    store = world.store()
    log = store.create(PARTITION, TOPIC_ID, SMALL)
    fill(log, 60, leader_epoch=0)
    fill(log, 60, leader_epoch=1)
    log.flush()
    store.checkpoints.write()
    store.close(clean=is_clean)
    file = Path(world.path, "a", "orders-0", "leader-epoch-checkpoint")
    assert file.read_text() == "0\n2\n0 0\n1 60\n"
    file.write_text(text, encoding="latin-1")
    store = world.store()
    found = store.get(PARTITION, TOPIC_ID)
    assert found is not None
    assert found.epochs.entries == ((0, 0), (1, 60))
    assert offsets(found) == list(range(120))
    store.close()
    assert file.read_text() == "0\n2\n0 0\n1 60\n"
