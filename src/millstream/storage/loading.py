"""Opening the log in a folder: with one look at its files after a clean stop, by recovery otherwise."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from millstream.storage import names, truncation
from millstream.storage.checkpoints import BadCheckpoint
from millstream.storage.disk import Disk
from millstream.storage.epoch_check import checked_epochs
from millstream.storage.epochs import Epochs
from millstream.storage.log import Log
from millstream.storage.producer_state import ProducerState
from millstream.storage.recovery import find_end_offset, observed_epochs, rebuild_segment, replay_producers
from millstream.storage.segment import SUFFIXES, Segment
from millstream.storage.segment_list import SegmentList
from millstream.storage.snapshots import Snapshots
from millstream.storage.surroundings import Surroundings
from millstream.storage.swap import finish_swaps
from millstream.storage.time_check import is_time_index_sound
from millstream.storage.transaction_check import TransactionCheck
from millstream.storage.transaction_checkpoint import KnownIndexes

if TYPE_CHECKING:
    from millstream.config.log import LogConfig
    from millstream.model import TopicPartition

log = logging.getLogger(__name__)

_NO_END = 1 << 63


def create_log(
    around: Surroundings,
    folder: str,
    partition: TopicPartition,
    config: LogConfig,
    *,
    start_offset: int = 0,
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
        producers=ProducerState(start_offset),
        snapshots=Snapshots(around.disk, folder),
    )


def load_log(
    around: Surroundings,
    folder: str,
    partition: TopicPartition,
    config: LogConfig,
    *,
    is_clean: bool,
    is_kept: bool = False,
    on_lost: Callable[[], None] | None = None,
    recovery_point: int | None = None,
    start_offset: int | None = 0,
    cleaned_until: int = 0,
    known_indexes: KnownIndexes | None = None,
) -> Log:
    """The log in a folder. `is_clean` says that the last stop wrote everything down, `is_kept` that nothing
    of what was written can be gone, as the machine has run on since. `start_offset` is None if that was lost.

    `on_lost` is called if records are gone or damaged that no kill of the process explains, before anything
    is cut off for that.

    A clean stop's recovery point is the log's end: if the files say otherwise, they changed since.
    """
    disk = around.disk
    found = finish_swaps(disk, folder, disk.listdir(folder))
    bases = _offsets(found, names.LOG)
    if not is_clean:
        _drop_stray_indexes(disk, folder, found)
    if not bases:
        return create_log(around, folder, partition, config, start_offset=start_offset or 0)
    now_ms = around.clock.now_ms()
    segments = SegmentList(
        [Segment(disk, folder, base, disk.size(f"{folder}/{base:020d}{names.LOG}"), now_ms) for base in bases]
    )
    snapshots = Snapshots(disk, folder, _offsets(found, names.SNAPSHOT))
    epochs = _load_epochs(disk, folder, found, segments)
    saved_epochs = epochs.entries
    end_offset = None
    if is_clean:
        _rebuild_lost_indexes(segments, found, config.index_interval_bytes)
        _check_times(segments.active, config.index_interval_bytes)
        end_offset = find_end_offset(segments.active)
        if end_offset is None or recovery_point not in (None, end_offset):
            log.warning("%s was stopped cleanly, but its files are not as they were then", partition)
            if on_lost is not None:
                on_lost()
            end_offset = None
            recovery_point = recovery_point or segments.active.base_offset
    sure_offset = _NO_END
    if end_offset is not None and start_offset is not None and start_offset > end_offset:
        # After a clean stop nothing is lost, so that it is this that is wrong.
        log.warning("%s ends at %d, and cannot start at %d: it is kept", partition, end_offset, start_offset)
        start_offset = None
    is_start_known = start_offset is not None
    if start_offset is None:
        # When a log's start is raised, so is that of its first leader epoch, which is written down later.
        start_offset = epochs.entries[0][1] if epochs.entries else 0
    if end_offset is not None:
        epochs = checked_epochs(epochs, segments, start_offset, end_offset)
        recovery_point = end_offset
        producers = ProducerState(end_offset)
        if snapshots:
            producers = snapshots.load(end_offset, bases[0])
            replay_producers(producers, segments, end_offset)
    else:
        recovery_point = recovery_point or 0
        sure_offset = segments.floor(recovery_point).base_offset
        if not is_clean:
            durable = [one for one in segments if segments.start_of_next(one, _NO_END) <= recovery_point]
            _rebuild_lost_indexes(durable, found, config.index_interval_bytes)
        segments, producers, end_offset = _recover(
            around,
            folder,
            config,
            segments,
            snapshots,
            epochs,
            recovery_point,
            _NO_END if is_kept else cleaned_until,
            on_lost,
        )
        recovery_point = max(min(recovery_point, end_offset), segments.first.base_offset)
    for segment in segments:
        if segment is not segments.active:
            segment.is_flushed = segments.start_of_next(segment, end_offset) <= recovery_point
    restart_offset = start_offset
    start_offset = min(max(start_offset, segments.first.base_offset), end_offset)
    snapshots.keep(bases, min(end_offset, sure_offset))  # others may be of records that were cut off
    epochs.truncate_end(end_offset)
    epochs.truncate_start(start_offset)
    epochs.is_changed = epochs.entries != saved_epochs
    loaded = Log(
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
        snapshots=snapshots,
        is_folder_synced=is_clean,
    )
    loaded.cleaned_until = min(cleaned_until, end_offset)
    _check_transactions(loaded, known_indexes, sure_offset)
    if restart_offset > end_offset and is_start_known:
        # All that is left was deleted, and what was lost too. New records must not get offsets below
        # the start: the next start would take them for deleted ones.
        log.warning("%s ends at %d, but starts at %d: it is emptied", partition, end_offset, restart_offset)
        truncation.empty(loaded, restart_offset)
    return loaded


def _check_transactions(loaded: Log, known: KnownIndexes | None, sure_offset: int) -> None:
    """Let the transaction indexes that were not derived anew, those below `sure_offset`, be checked."""
    segments = loaded.segments
    for segment in segments:
        if segment.size and segment.base_offset < sure_offset:
            end_offset = segments.start_of_next(segment, loaded.end_offset)
            expected = None if known is None else known.of(segment.base_offset, end_offset)
            check = TransactionCheck(loaded, segment, end_offset, expected)
            segment.transaction_index.mistrust(check, expected)


def _recover(
    around: Surroundings,
    folder: str,
    config: LogConfig,
    segments: SegmentList,
    snapshots: Snapshots,
    epochs: Epochs,
    recovery_point: int,
    gaps_until: int,
    on_lost: Callable[[], None] | None,
) -> tuple[SegmentList, ProducerState, int]:
    """Verify the segments that the last stop may have torn; those after a torn one go.

    A segment that does not begin where the one before ends shows that its end was torn off between two
    batches. Below `gaps_until` it does not: compaction leaves such gaps, in what it has cleaned.
    """
    unsure = list(segments.between(recovery_point, _NO_END))
    epochs.truncate_end(recovery_point)
    first_base = unsure[0].base_offset
    producers = snapshots.load(first_base, segments.first.base_offset)
    replay_producers(producers, segments, first_base)
    for number, segment in enumerate(unsure):
        gone = unsure[number + 1 :]
        upper_offset = gone[0].base_offset if gone else recovery_point + 1  # see Log.saved_point
        rebuilt = rebuild_segment(
            segment, config.index_interval_bytes, epochs, producers, recovery_point, upper_offset
        )
        if gone:
            segment.spill()
        _sync_aborted(around, folder, segment)
        has_lost_end = rebuilt.end_offset != upper_offset and upper_offset > gaps_until
        is_short = rebuilt.is_cut or has_lost_end if gone else rebuilt.end_offset < recovery_point
        if on_lost is not None and (is_short or not rebuilt.is_whole):
            on_lost()
        if gone and not rebuilt.is_damaged and (rebuilt.is_cut or has_lost_end):
            log.warning("%s: the %d segments after the torn one go", folder, len(gone))
            segments = segments.replaced(gone, ())
            _drop(around, folder, gone)
            gone = []
        if rebuilt.is_cut:
            segment.open().truncate(segment.size)
            segment.open().fsync()
        if not gone:
            break
    end_offset = rebuilt.end_offset
    if rebuilt.is_damaged:
        end_offset = max(end_offset, recovery_point)
        segments = segments.rolled(Segment(around.disk, folder, end_offset, 0, around.clock.now_ms()))
    producers.end_offset = end_offset
    return segments, producers, end_offset


def _sync_aborted(around: Surroundings, folder: str, segment: Segment) -> None:
    """Make durable which transactions were aborted.

    Only the index tells it to readers, and a clean stop flushes nothing of a log that has not changed since.
    """
    segment.transaction_index.fsync()
    if segment.transaction_index.entries():
        around.disk.fsync_dir(folder)


def _drop(around: Surroundings, folder: str, gone: list[Segment]) -> None:
    """Let segments go for good, from the last on, before the one that they do not follow is cut off.

    A crash in between must not leave a segment behind a gap, nor bring one back later.
    """
    for segment in reversed(gone):
        segment.retire()
        around.trash.put_files(segment.paths(), 0)
    around.disk.fsync_dir(folder)


def _drop_stray_indexes(disk: Disk, folder: str, found: set[str]) -> None:
    """Remove indexes without records, as a crash may leave them: a segment that begins there would go on
    with them.
    """
    for name in [name for name in found if name.endswith(SUFFIXES[1:])]:
        records = names.offset_name(names.offset_of(name), names.LOG)
        if records not in found or disk.size(f"{folder}/{records}") == 0:
            disk.remove(f"{folder}/{name}")
            found.remove(name)


def _rebuild_lost_indexes(segments: Iterable[Segment], found: set[str], index_interval_bytes: int) -> None:
    """Derive the indexes of segments that are durable, but of which one is not there.

    The offset index comes to be last of all: until then a start that is cut short has it to do again.
    """
    for segment in segments:
        if segment.size:
            base = segment.base_offset
            if not {names.offset_name(base, one) for one in (names.INDEX, names.TIME_INDEX)} <= found:
                log.warning("%s lacks an index: they are built again", segment.path)
                _rebuild_indexes(segment, index_interval_bytes)


def _rebuild_indexes(segment: Segment, index_interval_bytes: int) -> None:
    segment.index.begin_anew()
    rebuild_segment(segment, index_interval_bytes, Epochs(), None, _NO_END, _NO_END)
    segment.add_time_entry()
    segment.time_index.spill()
    segment.time_index.fsync()
    segment.spill()


def _check_times(active: Segment, index_interval_bytes: int) -> None:
    """See whether new batches can go on with the time index. Those of other segments are looked at when
    something is deleted or sought by them.
    """
    if active.size and not is_time_index_sound(active):
        log.warning("%s does not agree with the log: it is built again", active.time_index.path)
        _rebuild_indexes(active, index_interval_bytes)


def _load_epochs(disk: Disk, folder: str, found: set[str], segments: SegmentList) -> Epochs:
    """The leader epochs that were written down; if that is not readable, those of the batches."""
    if names.EPOCHS_FILE not in found:
        return Epochs()
    path = f"{folder}/{names.EPOCHS_FILE}"
    try:
        return Epochs.parse(disk.read_file(path))
    except BadCheckpoint as error:
        log.warning("%s is not readable, and is made again from the batches: %s", path, error)
    epochs = observed_epochs(segments)
    disk.replace_file(path, epochs.encode())
    return epochs


def _offsets(found: set[str], suffix: str) -> list[int]:
    """The offsets in the names of the files of one kind."""
    offsets = [names.offset_of(name) for name in found if name.endswith(suffix)]
    return sorted(offset for offset in offsets if offset >= 0)
