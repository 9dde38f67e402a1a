"""Cutting a log's end off, as a follower does where it diverged from its leader.

Readers are not stopped meanwhile: one that meets missing bytes waits until the log is whole again, and
sees that its list of segments is another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.protocol.batch import read_header
from millstream.storage import recovery, time_check
from millstream.storage.damage import Sound
from millstream.storage.files import is_temporary
from millstream.storage.producer_state import ProducerState
from millstream.storage.reading import locate
from millstream.storage.segment import Segment

if TYPE_CHECKING:
    from millstream.storage.log import Log


def truncate(log: Log, offset: int) -> None:
    """Drop every batch that reaches `offset` or beyond; the log then ends there, or before it."""
    if offset >= log.end_offset:
        log.epochs.truncate_end(log.end_offset)  # an epoch may have begun there, without a record
        return
    segments = log.segments
    if offset <= segments.first.base_offset:
        restart(log, offset)
        return
    found = locate(segments, offset, 0)
    if found is None:
        _cut_off(log, offset, None)
    else:
        end_offset = min(offset, read_header(found.data, found.start).base_offset)
        _cut_off(log, end_offset, (found.segment, found.position + found.start))


def keep(log: Log, sound: Sound) -> None:
    """Drop what is damaged, and all that comes after it."""
    if sound.end_offset <= log.segments.first.base_offset:
        restart(log, log.segments.first.base_offset)
    else:
        _cut_off(log, sound.end_offset, (sound.segment, sound.size), sound.producers)


def producers_at(log: Log, end_offset: int) -> ProducerState:
    """What is known of producers before an offset. In any thread."""
    producers = log.snapshots.load(end_offset, log.segments.first.base_offset)
    recovery.replay_producers(producers, log.segments, end_offset)
    return producers


def _cut_off(
    log: Log, end_offset: int, place: tuple[Segment, int] | None, producers: ProducerState | None = None
) -> None:
    """End the log at `end_offset`, which is at this place, or in a gap if there is none."""
    with log.cutting():
        segments = log.segments
        _doubt_from(log, end_offset)
        log.abandon_swap()
        with log.swapping:
            last = segments.floor(end_offset)  # not what was found, if compaction left a gap before that
            tail = list(segments.between(last.base_offset, log.end_offset + 1))
            log.end_offset = end_offset
            log.start_offset = min(log.start_offset, end_offset)
            _drop(log, tail[1:])
            kept, reached = [last], last.base_offset
            if last.size:
                last.cut(place[1] if place and place[0] is last else last.size, end_offset)
                last.fsync(with_indexes=False)  # else a power loss could bring back what was cut off
                reached = time_check.refresh_timestamps(last)
            if reached < end_offset:  # the log ends in a gap, and goes on behind it in another segment
                if last.size:
                    last.spill()
                kept.append(Segment(log.disk, log.folder, end_offset, 0, log.now_ms()))
                kept[1].create()  # its name alone says where the log ends
            log.replace_tail(tail, kept, end_offset)
        log.epochs.truncate_end(log.end_offset)
        log.snapshots.keep([one.base_offset for one in log.segments], log.end_offset)
        _take_producers(log, producers_at(log, log.end_offset) if producers is None else producers)
    if len(kept) > 1:  # recovery must never judge the gap
        log.flush()
        log.save_recovery_point()


def restart(log: Log, offset: int) -> None:
    """Drop everything and go on at `offset`."""
    with log.cutting():
        _doubt_from(log, min(offset, log.segments.first.base_offset))
        empty(log, offset)


def empty(log: Log, offset: int) -> None:
    """The same for a log that ends before `offset`: nothing from there on was ever durable."""
    old = list(log.segments)
    log.abandon_swap()
    with log.swapping:
        log.end_offset = log.start_offset = offset
        _drop(log, old)
        only = Segment(log.disk, log.folder, offset, 0, log.now_ms())
        log.replace_tail(old, [only], offset)
    log.epochs.truncate_end(0)
    log.snapshots.keep((), -1)
    _take_producers(log, ProducerState(offset))
    if offset:
        _write_start(log, only)


def _take_producers(log: Log, producers: ProducerState) -> None:
    producers.take_refused(log.producers)
    log.producers = producers


def _write_start(log: Log, segment: Segment) -> None:
    """Make the file of a log's only segment, empty as it is: its name says where the log starts."""
    try:
        segment.create()
    except OSError as error:
        if not is_temporary(error):
            raise
        return  # the first append makes it
    log.disk.fsync_dir(log.folder)


def _doubt_from(log: Log, offset: int) -> None:
    """What is to be cut off does not count as durable. A full disk, on which that cannot be written down, has
    not failed by that: nothing is cut off yet, and it can be tried again."""
    try:
        log.doubt_from(offset)
    except OSError as error:
        raise log.storage_error(error) from error


def _drop(log: Log, segments: list[Segment]) -> None:
    """Let segments at the log's end go for good, from the last on, before the one before them is cut off.

    A power loss in between must not leave a segment behind a gap, nor bring one back later.
    """
    if segments:
        log.discard(segments[::-1])
        log.disk.fsync_dir(log.folder)
