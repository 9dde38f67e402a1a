"""What a broker's files hold, entry by entry, read without changing them.

Kafka pads an active segment's indexes with zeros and a crash leaves half a batch at the end of a log;
both are shown for what they are. The broker may write to the files meanwhile.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Any, TypeAlias

from millstream.cli.record_format import put_bytes
from millstream.config.properties import read_properties
from millstream.errors import CorruptMessage, MillstreamError
from millstream.protocol.batch import Codec, decode_marker
from millstream.protocol.fetched import MAX_DECOMPRESSED_BYTES, payload_of
from millstream.protocol.header import GOOD, REASONS, TRUNCATED, BatchHeader
from millstream.protocol.kernel import append_records, read_header, scan_batches
from millstream.protocol.record import Record
from millstream.storage.checkpoints import parse_checkpoint
from millstream.storage.epochs import Epochs
from millstream.storage.names import (
    EPOCHS_FILE,
    INDEX,
    LOG,
    META_FILE,
    METADATA_FILE,
    SNAPSHOT,
    TIME_INDEX,
    TRANSACTION_INDEX,
    offset_of,
)
from millstream.storage.offset_index import OffsetIndex
from millstream.storage.producer_snapshot import decode_snapshot
from millstream.storage.time_index import TimeIndex
from millstream.storage.transaction_checkpoint import TRANSACTION_INDEXES, parse_known

Entry: TypeAlias = dict[str, Any]

WINDOW_BYTES = 4 * 1024 * 1024
_ABORTED = struct.Struct(">hqqqq")
_SUFFIXES = (LOG, INDEX, TIME_INDEX, TRANSACTION_INDEX, SNAPSHOT)
_MARKS = (".deleted", ".cleaned", ".swap")


class BadFile(MillstreamError):
    """A file that does not hold what its name says."""


def kind_of(path: str) -> str | None:
    """What a file is, by its name: a segment's suffix, `epochs`, `checkpoint` and the like, or None."""
    name = os.path.basename(path)
    for mark in _MARKS:
        name = name.removesuffix(mark)
    if name == EPOCHS_FILE:
        return "epochs"
    if name == TRANSACTION_INDEXES:
        return "known indexes"
    if name.endswith("-checkpoint"):
        return "checkpoint"
    if name in (META_FILE, METADATA_FILE):
        return "properties"
    suffix = os.path.splitext(name)[1]
    return suffix if suffix in _SUFFIXES and offset_of(name) >= 0 else None


def files_in(folder: str) -> list[str]:
    """The files of a log or of a log dir that can be shown, those of subfolders too, in order."""
    found = []
    for parent, folders, names in os.walk(folder):
        folders.sort()
        found += [os.path.join(parent, name) for name in sorted(names) if kind_of(name) is not None]
    return found


def entries_of(path: str, *, with_records: bool = False, check_records: bool = False) -> Iterator[Entry]:
    """The entries of a file; BadFile where it is not whole.

    The records of a segment's batches are shown, or only walked to see whether they are well formed,
    if asked for.
    """
    kind = kind_of(path)
    if kind == LOG:
        yield from log_entries(path, with_records=with_records, check_records=check_records)
        return
    data = _read(path)
    base_offset = offset_of(os.path.basename(path))
    if kind == INDEX:
        for relative, position in _without_padding(OffsetIndex.ENTRY, data, path):
            yield {"offset": base_offset + relative, "position": position}
    elif kind == TIME_INDEX:
        for timestamp, relative in _without_padding(TimeIndex.ENTRY, data, path):
            yield {"timestamp": timestamp, "offset": base_offset + relative}
    elif kind == TRANSACTION_INDEX:
        yield from _aborted(data, path)
    elif kind == SNAPSHOT:
        yield from _producers(data, path)
    elif kind == "epochs":
        yield from ({"epoch": epoch, "start_offset": start} for epoch, start in Epochs.parse(data).entries)
    elif kind == "known indexes":
        for (topic, number), known in parse_known(data).items():
            indexes = {base: one._asdict() for base, one in known.checksums.items()}
            span: Entry = {"start_offset": known.start_offset, "end_offset": known.end_offset}
            yield {"topic": topic, "partition": number, **span, "segments": indexes}
    elif kind == "checkpoint":
        for topic, partition, offset in (
            parse_checkpoint(data, 3) if data else ()
        ):  # Kafka begins with an empty one
            yield {"topic": topic, "partition": int(partition), "offset": int(offset)}
    elif kind == "properties":
        yield from ({"key": key, "value": value} for key, value in _properties(data, path).items())
    else:
        raise BadFile(
            f"{path} is none of a broker's files: give a .log, .index, .timeindex, .txnindex, "
            ".snapshot or checkpoint file, or a folder of them"
        )


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def log_entries(path: str, *, with_records: bool = False, check_records: bool = False) -> Iterator[Entry]:
    """The batches of a segment in order; BadFile at the first bad one."""
    next_offset = offset_of(os.path.basename(path))
    for header, position, batch in batches_of(path, next_offset):
        entry = _batch(header, position)
        if check_records:
            _records(header, batch, path)
        if with_records:
            entry["records"] = [_record(record, header) for record in _records(header, batch, path)]
        yield entry


def batches_of(path: str, next_offset: int = -1) -> Iterator[tuple[BatchHeader, int, memoryview]]:
    """Each whole batch of a segment with its position; every one is checked as a broker does."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        start, want = 0, WINDOW_BYTES
        while start < size:
            file.seek(start)
            window = memoryview(file.read(want))
            scan = scan_batches(window, 0, len(window), True, next_offset)
            position = 0
            while position < scan.position:
                header = read_header(window, position)
                yield header, start + position, window[position : position + header.size]
                position += header.size
                next_offset = header.next_offset
            is_end = start + len(window) >= size
            if scan.error not in (GOOD, TRUNCATED) or (scan.error == TRUNCATED and is_end):
                raise BadFile(f"{path} is not good from byte {start + position} on: {REASONS[scan.error]}")
            if position == 0:
                want *= 2  # a batch longer than the window
                continue
            start, want = start + position, WINDOW_BYTES


def _batch(header: BatchHeader, position: int) -> Entry:
    return {
        "position": position,
        "size": header.size,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.count,
        "leader_epoch": header.leader_epoch,
        "codec": Codec(header.codec).name.lower() if header.codec < len(Codec) else str(header.codec),
        "timestamp_type": "log append" if header.is_log_append_time else "create",
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "crc": header.crc,
    }


def _records(header: BatchHeader, batch: memoryview, path: str) -> list[Record]:
    records: list[Record] = []
    try:
        payload, start = payload_of(batch, header, 0, MAX_DECOMPRESSED_BYTES)
        error = append_records(records, payload, header, 0, start)
    except CorruptMessage as failure:
        raise BadFile(f"{path}: {failure}") from failure
    if error != GOOD:
        raise BadFile(f"{path}: the batch at offset {header.base_offset}: {REASONS[error]}")
    return records


def _record(record: Record, header: BatchHeader) -> Entry:
    entry: Entry = {"offset": record.offset, "timestamp": record.timestamp}
    if header.is_control:
        marker = decode_marker(record)
        if marker is not None:
            entry["marker"] = "commit" if marker.is_commit else "abort"
            entry["coordinator_epoch"] = marker.coordinator_epoch
            return entry
    put_bytes(entry, "key", record.key)
    put_bytes(entry, "value", record.value)
    entry["headers"] = []
    for name, value in record.headers:
        item: Entry = {"key": name}
        put_bytes(item, "value", value)
        entry["headers"].append(item)
    return entry


def _without_padding(layout: struct.Struct, data: bytes, path: str) -> list[tuple[int, ...]]:
    """Entries up to the zeros at the end with which an active segment's index is padded."""
    end = len(data) - len(data) % layout.size
    if len(data.rstrip(b"\0")) > end:
        raise BadFile(f"{path} has {len(data) - end} bytes too many: an entry has {layout.size}")
    used = len(data.rstrip(b"\0"))
    if used == 0 and end > layout.size:
        return []
    end = min(end, max(layout.size, -(-used // layout.size) * layout.size))
    return list(layout.iter_unpack(data[:end]))


def _aborted(data: bytes, path: str) -> Iterator[Entry]:
    if len(data) % _ABORTED.size:
        raise BadFile(f"{path} is {len(data)} bytes long, which is not a number of whole entries")
    for version, producer_id, first, last, stable in _ABORTED.iter_unpack(data):
        yield {
            "version": version,
            "producer_id": producer_id,
            "first_offset": first,
            "last_offset": last,
            "last_stable_offset": stable,
        }


def _producers(data: bytes, path: str) -> Iterator[Entry]:
    try:
        producers = decode_snapshot(data)
    except MillstreamError as error:
        raise BadFile(f"{path}: {error}") from error
    for producer in producers:
        last = producer.batches[-1] if producer.batches else None
        yield {
            "producer_id": producer.producer_id,
            "producer_epoch": producer.epoch,
            "coordinator_epoch": producer.coordinator_epoch,
            "last_sequence": last.last_sequence if last else -1,
            "last_offset": last.last_offset if last else -1,
            "last_timestamp": producer.last_timestamp,
            "transaction_start": producer.transaction_start,
        }


def _properties(data: bytes, path: str) -> dict[str, str]:
    """meta.properties is Java's format; partition.metadata has `key: value` lines, which that reads too."""
    try:
        return read_properties(data.decode())
    except UnicodeDecodeError:
        raise BadFile(f"{path} is not text") from None
