"""The producer snapshots in a log's folder: at each segment's start, and at the end of a closed log."""

from __future__ import annotations

import logging
from bisect import insort
from collections.abc import Iterable

from millstream.storage import names
from millstream.storage.disk import Disk
from millstream.storage.files import write_file
from millstream.storage.producer_snapshot import BadSnapshot, decode_snapshot, encode_snapshot
from millstream.storage.producer_state import ProducerState

log = logging.getLogger(__name__)


class Snapshots:
    """The snapshots by their offset: the state before it."""

    __slots__ = ("_disk", "_folder", "offsets")

    def __init__(self, disk: Disk, folder: str, offsets: Iterable[int] = ()) -> None:
        self._disk = disk
        self._folder = folder
        self.offsets = sorted(offsets)

    def __bool__(self) -> bool:
        return bool(self.offsets)

    def __contains__(self, offset: int) -> bool:
        return offset in self.offsets

    def path(self, offset: int) -> str:
        return f"{self._folder}/{names.offset_name(offset, names.SNAPSHOT)}"

    def take(self, state: ProducerState, offset: int) -> None:
        """Write down a state, which is that before `offset`. Durable enough: a torn one is noticed."""
        write_file(self._disk, self.path(offset), encode_snapshot(state))
        if offset not in self.offsets:
            insort(self.offsets, offset)

    def load(self, end_offset: int, first_offset: int) -> ProducerState:
        """The state of the latest good snapshot at or below `end_offset`, else none at `first_offset`."""
        for offset in reversed(self.offsets):
            if offset > end_offset:
                continue
            try:
                producers = decode_snapshot(self._disk.read_file(self.path(offset)))
            except (BadSnapshot, FileNotFoundError) as error:
                log.warning("the producer snapshot %s is not good: %s", self.path(offset), error)
                continue
            state = ProducerState(offset)
            for producer in producers:
                state.load(producer)
            return state
        return ProducerState(first_offset)

    def forget(self, offset: int) -> None:
        """The file of this snapshot goes with its segment's."""
        self.offsets.remove(offset)

    def keep(self, segment_bases: Iterable[int], end_offset: int) -> None:
        """Remove those beyond the log's end, and those neither at a segment's start nor the latest."""
        valid = [offset for offset in self.offsets if offset <= end_offset]
        kept = {*segment_bases, *valid[-1:]}.intersection(valid)
        for offset in self.offsets:
            if offset not in kept:
                self._disk.remove(self.path(offset))
        self.offsets = sorted(kept)
