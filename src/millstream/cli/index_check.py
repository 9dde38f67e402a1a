"""Whether a segment's indexes agree with the batches beside them.

Where the `.log` is damaged, what lies beyond the damage cannot be held against it and is left out; it is
named itself. The last entries of an active segment's indexes may still be in a broker's memory, and are
not missed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

from millstream.cli.log_files import BadFile, Entry, batches_of, entries_of, kind_of
from millstream.protocol.batch import decode_marker, decode_records
from millstream.protocol.header import BatchHeader
from millstream.storage.names import INDEX, LOG, TIME_INDEX, TRANSACTION_INDEX, offset_of

Batch = tuple[BatchHeader, int, memoryview]


def check_beside(path: str) -> None:
    """Hold an index against its segment, if that is there; a segment against the index that it ought to have.

    BadFile if they do not agree.
    """
    kind = kind_of(path)
    beside = _beside(path, LOG)
    if kind == LOG:
        index = _beside(path, TRANSACTION_INDEX)
        if not os.path.exists(index):
            _check_aborted(index, [], _batches(path))
    elif os.path.exists(beside) and kind in _CHECKS:
        entries = list(entries_of(path))  # before the batches: a broker may add both meanwhile
        _CHECKS[kind](path, entries, _batches(beside))


def _beside(path: str, suffix: str) -> str:
    """The file of the same segment of another kind, with the same mark at its end if it has one."""
    folder, name = os.path.split(path)
    mark = os.path.splitext(name)[1] if name.count(".") > 1 else ""
    return os.path.join(folder, name[:20] + suffix + mark)


def _batches(path: str) -> Iterator[Batch]:
    try:
        yield from batches_of(path, offset_of(os.path.basename(path)))
    except BadFile:
        raise _Damaged(path) from None  # it is named when its own turn comes


class _Damaged(Exception):
    """The segment cannot be read any further."""


def _check_offsets(path: str, entries: list[Entry], batches: Iterator[Batch]) -> None:
    """Each entry names a batch by its position, and by its last offset or that of one appended with it."""
    before = -1
    starts = {entry["position"]: entry["offset"] for entry in entries}
    ends = {entry["offset"] for entry in entries}
    _check_growing(path, entries, "offset", "position")
    try:
        for header, position, _ in batches:
            offset = starts.pop(position, None)
            if offset is not None:
                if not before < header.base_offset <= offset:
                    raise BadFile(f"{path}: offset {offset} is not that of the batch at byte {position}")
                before = offset
            ends.discard(header.last_offset)
    except _Damaged:
        return
    for position, offset in starts.items():
        raise BadFile(f"{path}: there is no batch with offset {offset} at byte {position}")
    for offset in ends:
        raise BadFile(f"{path}: there is no batch that ends with offset {offset}")


def _check_times(path: str, entries: list[Entry], batches: Iterator[Batch]) -> None:
    """Each entry names a batch with that timestamp, and no batch up to there is younger; nor behind the last.

    Kafka may name another record of the batch than the last one.
    """
    _check_growing(path, entries, "timestamp", "offset")
    left = list(reversed(entries))
    largest = -1
    try:
        for header, _, _ in batches:
            largest = max(largest, header.max_timestamp)
            while left and left[-1]["offset"] <= header.last_offset:
                entry = left.pop()
                if not header.base_offset <= entry["offset"] or not (
                    entry["timestamp"] == header.max_timestamp == largest
                ):
                    timestamp, offset = entry["timestamp"], entry["offset"]
                    raise BadFile(f"{path}: {timestamp} is not the largest timestamp up to offset {offset}")
    except _Damaged:
        return
    if left:
        raise BadFile(f"{path}: there is no batch with offset {left[-1]['offset']}")
    if largest > (entries[-1]["timestamp"] if entries else -1) and _is_closed(path):
        raise BadFile(f"{path}: its last entry is not the segment's largest timestamp, {largest}")


def _check_growing(path: str, entries: list[Entry], *columns: str) -> None:
    for one, following in pairwise(entries):
        if any(one[column] >= following[column] for column in columns):
            raise BadFile(f"{path}: an entry {following} comes after {one}")


def _is_closed(path: str) -> bool:
    """Whether the log goes on in a later segment."""
    base = offset_of(os.path.basename(path))
    return any(offset_of(one.name) > base for one in Path(path).parent.glob(f"*{LOG}"))


def _check_aborted(path: str, entries: list[Entry], batches: Iterator[Batch]) -> None:
    """Each entry is of an abort marker, and each such marker of a transaction with records has an entry."""
    ends = {entry["last_offset"]: entry for entry in entries}
    _check_growing(path, entries, "last_offset")
    begun: dict[int, int] = {}
    marked: dict[int, int] = {}
    try:
        for header, _, batch in batches:
            producer_id, offset = header.producer_id, header.last_offset
            entry = ends.pop(offset, None)
            if not header.is_control:
                if header.is_transactional and header.count:
                    begun.setdefault(producer_id, header.base_offset)
                if entry is not None:
                    raise BadFile(f"{path}: at offset {offset} no transaction was aborted")
                continue
            first, is_abort = begun.pop(producer_id, None), _is_abort(batch)
            if entry is not None:
                latest = offset if first is None else first
                is_whole = marked.get(producer_id, -1) < entry["first_offset"] <= latest
                is_its = is_abort and entry["producer_id"] == producer_id and entry["version"] == 0
                if not is_whole or not is_its or not 0 <= entry["last_stable_offset"] <= offset + 1:
                    raise BadFile(f"{path}: the entry of offset {offset} is not that of its transaction")
            elif is_abort and first is not None:
                raise BadFile(f"{path}: the transaction aborted at offset {offset} is missing")
            marked[producer_id] = offset
    except _Damaged:
        return
    if ends:
        raise BadFile(f"{path}: there is no batch with offset {min(ends)}")


def _is_abort(batch: memoryview) -> bool:
    records = decode_records(batch, include_control=True, verify_crc=False)
    marker = decode_marker(records[0]) if records else None
    return marker is not None and not marker.is_commit


_CHECKS: dict[str | None, Callable[[str, list[Entry], Iterator[Batch]], None]] = {
    INDEX: _check_offsets,
    TIME_INDEX: _check_times,
    TRANSACTION_INDEX: _check_aborted,
}
