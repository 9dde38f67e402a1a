"""Opening the log in a folder: with one look at its files after a clean stop, by recovery otherwise."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from millstream.storage import names
from millstream.storage.checkpoints import BadCheckpoint
from millstream.storage.disk import Disk
from millstream.storage.epochs import Epochs
from millstream.storage.log import Log, Surroundings
from millstream.storage.producer_state import ProducerState
from millstream.storage.recovery import find_end_offset, load_producers, rebuild_segment, replay_producers
from millstream.storage.segment import Segment
from millstream.storage.segment_list import SegmentList
from millstream.storage.swap import finish_swaps

if TYPE_CHECKING:
    from millstream.config.log import LogConfig
    from millstream.model import TopicPartition

log = logging.getLogger(__name__)

DAY_MS = 86_400_000


def create_log(
    around: Surroundings,
    folder: str,
    partition: TopicPartition,
    config: LogConfig,
    *,
    start_offset: int = 0,
    producer_expiration_ms: int = DAY_MS,
) -> Log:
    """An empty log in a new folder; its files appear with the first append."""
    segment = Segment(around.disk, folder, start_offset, 0, around.clock.now_ms())
    return Log(
        around,
        folder,
        partition,
        config,
        SegmentList([segment]),
        start_offset=start_offset,
        end_offset=start_offset,
        recovery_point=start_offset,
        epochs=Epochs(),
        producers=ProducerState(start_offset, producer_expiration_ms),
    )


def load_log(
    around: Surroundings,
    folder: str,
    partition: TopicPartition,
    config: LogConfig,
    *,
    is_clean: bool,
    recovery_point: int = 0,
    start_offset: int = 0,
    producer_expiration_ms: int = DAY_MS,
) -> Log:
    """The log in a folder. `is_clean` says that the last stop wrote everything down."""
    disk = around.disk
    found = finish_swaps(disk, folder, disk.listdir(folder))
    bases = sorted(names.offset_of(name) for name in found if name.endswith(names.LOG))
    if not bases:
        return create_log(
            around,
            folder,
            partition,
            config,
            start_offset=start_offset,
            producer_expiration_ms=producer_expiration_ms,
        )
    now_ms = around.clock.now_ms()
    segments = SegmentList(
        [Segment(disk, folder, base, disk.size(f"{folder}/{base:020d}{names.LOG}"), now_ms) for base in bases]
    )
    snapshots = sorted(names.offset_of(name) for name in found if name.endswith(names.SNAPSHOT))
    epochs = _load_epochs(disk, folder, found)
    start_offset = max(start_offset, bases[0])
    end_offset = find_end_offset(segments.active) if is_clean else None
    if end_offset is not None:
        recovery_point = end_offset
        if snapshots:
            producers = load_producers(disk, folder, segments, snapshots, end_offset, producer_expiration_ms)
        else:
            producers = ProducerState(end_offset, producer_expiration_ms)
    else:
        if is_clean:
            log.warning("%s was stopped cleanly, but its last segment is not whole", partition)
            recovery_point = min(recovery_point, segments.active.base_offset)
        segments, producers, end_offset = _recover(
            around, folder, config, segments, snapshots, epochs, recovery_point, producer_expiration_ms
        )
        recovery_point = max(min(recovery_point, end_offset), segments.first.base_offset)
        snapshots = [offset for offset in snapshots if offset <= end_offset]
        start_offset = min(start_offset, end_offset)
    for segment in segments:
        segment.is_flushed = segment is not segments.active and segment.base_offset < recovery_point
    epochs.truncate_end(end_offset)
    epochs.truncate_start(start_offset)
    epochs.is_changed = False
    return Log(
        around,
        folder,
        partition,
        config,
        segments,
        start_offset=start_offset,
        end_offset=end_offset,
        recovery_point=recovery_point,
        epochs=epochs,
        producers=producers,
        snapshots=_drop_stray_snapshots(disk, folder, snapshots, bases),
        is_folder_synced=is_clean,
    )


def _recover(
    around: Surroundings,
    folder: str,
    config: LogConfig,
    segments: SegmentList,
    snapshots: list[int],
    epochs: Epochs,
    recovery_point: int,
    producer_expiration_ms: int,
) -> tuple[SegmentList, ProducerState, int]:
    """Verify the segments that the last stop may have torn; those after a torn one go."""
    torn = list(segments.between(recovery_point, 1 << 63))
    first_base = torn[0].base_offset
    epochs.truncate_end(first_base)
    producers = load_producers(around.disk, folder, segments, snapshots, first_base, producer_expiration_ms)
    end_offset = first_base
    for number, segment in enumerate(torn):
        size = segment.size
        replay_producers(producers, segments, segment.base_offset)
        end_offset = rebuild_segment(segment, config.index_interval_bytes, epochs, producers, recovery_point)
        if segment.size < size and number + 1 < len(torn):
            gone = torn[number + 1 :]
            log.warning("%s: the %d segments after the torn one go", folder, len(gone))
            segments = segments.replaced(gone, ())
            for segment_gone in gone:
                segment_gone.retire()
                around.trash.put_files(segment_gone.paths(), config.file_delete_delay_ms)
            break
    return segments, producers, end_offset


def _load_epochs(disk: Disk, folder: str, found: set[str]) -> Epochs:
    if names.EPOCHS_FILE in found:
        try:
            return Epochs.parse(disk.read_file(f"{folder}/{names.EPOCHS_FILE}"))
        except BadCheckpoint as error:
            log.warning("the leader epochs of %s are not readable: %s", folder, error)
    return Epochs()


def _drop_stray_snapshots(disk: Disk, folder: str, snapshots: list[int], bases: list[int]) -> list[int]:
    """Remove snapshots that are neither at a segment's start nor the latest."""
    kept = {*bases, *snapshots[-1:]}
    for offset in snapshots:
        if offset not in kept:
            disk.remove(f"{folder}/{names.offset_name(offset, names.SNAPSHOT)}")
    return [offset for offset in snapshots if offset in kept]
