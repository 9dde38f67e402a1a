"""Holding the leader epochs that were written down against the batches, which carry theirs.

Neither is protected by a checksum: nothing but the other shows that one of them changed. Batches that agree
with each other are believed, and so is one alone whose epoch fits between those of its neighbours. Epochs
never fall along a log, so that damage to a batch in the midst of its epoch is seen. At the border of two
it may be taken for damage to the file, which is harmless: all that is read, told and copied agrees then.
"""

from __future__ import annotations

import logging

from millstream.errors import KafkaStorageError
from millstream.protocol.batch import BatchHeader, read_header
from millstream.storage import names
from millstream.storage.epochs import UNKNOWN_EPOCH, Epochs
from millstream.storage.reading import OtherEpoch, locate
from millstream.storage.recovery import observed_epochs
from millstream.storage.segment_list import SegmentList

log = logging.getLogger(__name__)

FIRST_EPOCH = 0
"""No epoch comes before it: nobody has to know where it began."""


def mend(epochs: Epochs, segments: SegmentList, found: OtherEpoch, end_offset: int) -> bool:
    """Whether the batches bear out one whose epoch is not that of its offset; it then is. In any thread.

    It is written down with the next records, as epochs are.
    """
    least, most = UNKNOWN_EPOCH, epochs.latest
    if found.base_offset > segments.first.base_offset:
        before = batch_at(segments, found.base_offset - 1)
        if before is None or before.base_offset >= found.base_offset:  # damaged, or compacted away
            return False
        least = before.leader_epoch
    if found.next_offset < end_offset:
        after = batch_at(segments, found.next_offset)
        if after is None:
            return False
        most = after.leader_epoch
    if not found.epoch > UNKNOWN_EPOCH or not least <= found.epoch <= most:
        return False
    if epochs.correct(found.epoch, found.base_offset, found.next_offset):
        path = f"{segments.first.path.rpartition('/')[0]}/{names.EPOCHS_FILE}"
        log.warning("%s does not agree with the batch at offset %d: it is mended", path, found.base_offset)
    return True


def checked_epochs(epochs: Epochs, segments: SegmentList, start_offset: int, end_offset: int) -> Epochs:
    """The leader epochs as they were written down, unless the batches at the first, the latest or the log's
    end say otherwise. (To look at all would open too many files for a start.)

    Two batches in a row that agree with each other and not with the file show that it is the file that is
    wrong; of one alone it is asked when it is read (see `mend`).
    """
    starts = [start for _, start in epochs.entries if start > start_offset]
    for edge in {end_offset, *starts[:1], *starts[-1:]} if epochs.entries else ():
        after = batch_at(segments, edge)
        before = batch_at(segments, edge - 1)
        for one, other in (
            (after, after and batch_at(segments, after.next_offset)),
            (before, before and batch_at(segments, before.base_offset - 1)),
        ):
            if one is None or other is None or one.leader_epoch != other.leader_epoch:
                continue
            pair = [header.base_offset for header in (one, other)]
            if all(
                start_offset <= base < end_offset and epochs.epoch_of(base) != one.leader_epoch
                for base in pair
            ):
                path = f"{segments.first.path.rpartition('/')[0]}/{names.EPOCHS_FILE}"
                log.warning("%s does not agree with the batches, and is made again from these", path)
                return observed_epochs(segments)
    return epochs


def epoch_beginnings(epochs: Epochs, segments: SegmentList, start_offset: int, end_offset: int) -> list[int]:
    """Where the first batches end of the leader epochs that begin in [start_offset, end_offset).

    A replica that copies the log knows epochs by their batches alone. If it took a later one for the first it
    would, as a leader, believe a follower that diverges before that one. In any thread.
    """
    found = []
    for epoch, start in epochs.entries:
        if epoch > FIRST_EPOCH and start_offset <= start < end_offset:
            first = batch_at(segments, start)
            if first is not None and first.leader_epoch == epoch:
                found.append(first.last_offset)
    return found


def batch_at(segments: SegmentList, offset: int) -> BatchHeader | None:
    """The first batch that ends at or after an offset; None if there is none, or it cannot be found."""
    if offset < segments.first.base_offset:
        return None
    try:
        found = locate(segments, offset, 0)
    except KafkaStorageError:
        return None
    return None if found is None else read_header(found.data, found.start)
