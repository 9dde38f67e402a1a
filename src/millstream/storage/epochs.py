"""The leader epochs of a log: where each leader's records start.

On disk (`leader-epoch-checkpoint` in the log's folder): a checkpoint file whose entries are
`epoch start_offset`, both strictly growing. It need not be written at once: every batch carries its
leader epoch, so recovery finds again what a crash lost. It is written before the recovery point
passes a segment, and when the log is closed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import itemgetter
from threading import Lock

from millstream.storage.checkpoints import BadCheckpoint, format_checkpoint, parse_checkpoint

UNKNOWN_EPOCH = -1
_NO_END = 1 << 63
_EPOCH = itemgetter(0)
_START = itemgetter(1)


class Epochs:
    """Epoch → first offset. `entries` is replaced, never changed: any thread may read. One thread changes it,
    but for what a reader corrects.
    """

    __slots__ = ("_doubted", "_lock", "_observed", "entries", "is_changed", "latest")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self.is_changed = False
        self._observed = 0
        self._doubted = UNKNOWN_EPOCH
        self._lock = Lock()
        self._set(tuple(entries))

    @classmethod
    def parse(cls, data: bytes) -> Epochs:
        """Read the checkpoint file's bytes; BadCheckpoint if they are not its format."""
        try:
            entries = [(int(epoch), int(start)) for epoch, start in parse_checkpoint(data, 2)]
        except ValueError as error:
            raise BadCheckpoint(f"not leader epochs: {error}") from error
        before = (UNKNOWN_EPOCH, -1)
        for entry in entries:
            if entry[0] <= before[0] or entry[1] <= before[1]:
                raise BadCheckpoint(f"epoch {entry[0]} at {entry[1]} after epoch {before[0]} at {before[1]}")
            before = entry
        return cls(entries)

    def encode(self) -> bytes:
        """The checkpoint file's bytes."""
        return format_checkpoint([f"{epoch} {start}" for epoch, start in self.entries])

    def assign(self, epoch: int, start_offset: int) -> None:
        """Note that the records from `start_offset` on are of `epoch`. Nothing changes if that is known.

        Entries that contradict it (a higher epoch, or one that starts later) go.
        """
        if epoch <= UNKNOWN_EPOCH or epoch == self.latest:
            return
        with self._lock:
            kept = [entry for entry in self.entries if entry[0] < epoch and entry[1] < start_offset]
            self._set((*kept, (epoch, start_offset)))
            self.is_changed = True

    def correct(self, epoch: int, base_offset: int, next_offset: int) -> bool:
        """Note that the records from `base_offset` up to `next_offset` are of `epoch`, which fits there.

        False if that is known.
        """
        with self._lock:
            following = self.epoch_of(next_offset)
            if self.epoch_of(next_offset - 1) == epoch:
                return False
            entries = [entry for entry in self.entries if entry[1] < base_offset and entry[0] <= epoch]
            if not entries or entries[-1][0] < epoch:
                entries.append((epoch, base_offset))
            later = [entry for entry in self.entries if entry[1] >= next_offset and entry[0] > epoch]
            if following > epoch and (not later or later[0][1] > next_offset):
                entries.append((following, next_offset))
            self._set((*entries, *later))
            self.is_changed = True
            return True

    def observe(self, epoch: int, offset: int) -> None:
        """Take the epoch of a batch that recovery found at `offset`, in offset order.

        Epochs never fall along a log. Where one does, a batch is damaged: the one before, if it stands
        alone between batches of this epoch, or if the next is of this epoch, too; else this one.
        """
        if epoch == self.latest:
            self._observed += 1
            self._doubted = UNKNOWN_EPOCH
        elif epoch > self.latest:
            self.assign(epoch, offset)
            self._observed = 1
            self._doubted = UNKNOWN_EPOCH
        elif epoch > UNKNOWN_EPOCH:
            stands_alone = self._observed == 1 and len(self.entries) > 1 and self.entries[-2][0] == epoch
            if stands_alone or epoch == self._doubted:
                kept = tuple(entry for entry in self.entries if entry[0] <= epoch)
                start_offset = self.entries[len(kept)][1]
                self._set(kept)
                self.assign(epoch, start_offset)
                self._observed = 2
                self._doubted = UNKNOWN_EPOCH
            else:
                self._doubted = epoch

    def start_offset_of(self, epoch: int) -> int:
        """The first offset of an epoch, -1 if the log has no entry for it."""
        for known, start in self.entries:
            if known == epoch:
                return start
        return -1

    def epoch_of(self, offset: int) -> int:
        """The epoch of the record at `offset`, -1 if it lies before all entries."""
        entries = self.entries
        found = bisect_right(entries, offset, key=_START)
        return entries[found - 1][0] if found else UNKNOWN_EPOCH

    def run_of(self, offset: int) -> tuple[int, int]:
        """The epoch of the record at `offset`, and the offset up to which it is that of all others."""
        entries = self.entries
        found = bisect_right(entries, offset, key=_START)
        return (
            entries[found - 1][0] if found else UNKNOWN_EPOCH,
            entries[found][1] if found < len(entries) else _NO_END,
        )

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest epoch that is at most `epoch`, and the offset where it ends; (-1, -1) if none is known.

        This is the answer to OffsetForLeaderEpoch (KIP-101, KIP-279).
        """
        return end_of_epoch(self.entries, epoch, log_end_offset)

    def truncate_end(self, end_offset: int) -> None:
        """Drop the epochs that start at `end_offset` or later."""
        with self._lock:
            kept = tuple(entry for entry in self.entries if entry[1] < end_offset)
            if len(kept) < len(self.entries):
                self._set(kept)
                self.is_changed = True

    def truncate_start(self, start_offset: int) -> None:
        """Drop the epochs that end before `start_offset`; the one that holds it then starts there."""
        with self._lock:
            entries = self.entries
            found = bisect_right(entries, start_offset, key=_START)
            if found and (found > 1 or entries[0][1] < start_offset):
                self._set(((entries[found - 1][0], start_offset), *entries[found:]))
                self.is_changed = True

    def _set(self, entries: tuple[tuple[int, int], ...]) -> None:
        self.entries = entries
        self.latest = entries[-1][0] if entries else UNKNOWN_EPOCH


def end_of_epoch(entries: Sequence[tuple[int, int]], epoch: int, log_end_offset: int) -> tuple[int, int]:
    """The largest of the epochs that is at most `epoch`, and the offset where it ends.

    (-1, -1) if there are none, or if `epoch` is later than all of them.
    """
    if epoch == UNKNOWN_EPOCH or not entries or epoch > entries[-1][0]:
        return UNKNOWN_EPOCH, -1
    if epoch == entries[-1][0]:
        return epoch, log_end_offset
    above = bisect_right(entries, epoch, key=_EPOCH)
    if above == 0:  # asked for an epoch before all that are known: its records end where those start
        return epoch, entries[0][1]
    return entries[above - 1][0], entries[above][1]
