"""Records out of fetched bytes: many batches in a row, the last one perhaps cut off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from crc32c import crc32c

from millstream.errors import CorruptMessage
from millstream.protocol.compression import Undecompressable, decompress
from millstream.protocol.header import (
    BAD_LENGTH,
    BAD_MAGIC,
    CODEC_MASK,
    CONTROL,
    GOOD,
    HEADER_SIZE,
    REASONS,
    TRANSACTIONAL,
    BatchHeader,
)
from millstream.protocol.kernel import Record, append_records, read_header

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_DECOMPRESSED_BYTES = 1 << 28
"""How much one batch may become, unless the caller says otherwise."""


def whole_batches(buf: memoryview, verify_crc: bool) -> Iterator[tuple[BatchHeader, int]]:
    """The whole batches in a row, each with its position; one that is cut off at the end is left out."""
    position = 0
    end = len(buf)
    while end - position >= HEADER_SIZE:
        header = read_header(buf, position)
        if header.magic != 2:
            raise CorruptMessage(f"{REASONS[BAD_MAGIC]}, but {header.magic}, at byte {position}")
        size = header.size
        if size < HEADER_SIZE or header.count < 0:
            raise CorruptMessage(f"{REASONS[BAD_LENGTH]}, at byte {position}")
        if size > end - position:
            return
        if verify_crc and crc32c(buf[position + 21 : position + size], 0, 0) != header.crc:
            raise CorruptMessage(f"the batch at offset {header.base_offset} does not match its checksum")
        yield header, position
        position += size


def readable_batches(
    buf: memoryview,
    from_offset: int,
    aborted: Sequence[tuple[int, int]] | None,
    include_control: bool,
    verify_crc: bool,
) -> Iterator[tuple[BatchHeader, int]]:
    """The batches that an application sees: no control batches, none of aborted transactions.

    `aborted` holds (producer id, first offset) of the transactions in this range that were aborted, as
    a read_committed Fetch answers them.
    """
    waiting = sorted(aborted, key=lambda entry: entry[1], reverse=True) if aborted else []
    aborting: set[int] = set()
    for header, position in whole_batches(buf, verify_crc):
        last_offset = header.base_offset + header.last_offset_delta
        while waiting and waiting[-1][1] <= last_offset:
            aborting.add(waiting.pop()[0])
        attributes = header.attributes
        if attributes & CONTROL:
            # a marker, commit or abort, ends what this producer had open
            aborting.discard(header.producer_id)
            if not include_control:
                continue
        elif attributes & TRANSACTIONAL and header.producer_id in aborting:
            continue
        if last_offset >= from_offset and header.count:
            yield header, position


def payload_of(
    buf: memoryview, header: BatchHeader, position: int, limit_bytes: int
) -> tuple[memoryview, int]:
    """A buffer and where in it the batch's uncompressed records begin; they reach to its end."""
    codec = header.attributes & CODEC_MASK
    if not codec:
        return buf[: position + header.size], position + HEADER_SIZE
    try:
        data = decompress(codec, buf[position + HEADER_SIZE : position + header.size], limit_bytes)
    except Undecompressable as error:
        raise CorruptMessage(f"the batch at offset {header.base_offset}: {error}") from error
    return data, 0


def decode_records(
    buf: Buffer,
    *,
    from_offset: int = 0,
    aborted: Sequence[tuple[int, int]] | None = None,
    include_control: bool = False,
    verify_crc: bool = True,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> list[Record]:
    """The records of all whole batches from an offset on; CorruptMessage if one is not good."""
    view = memoryview(buf)
    records: list[Record] = []
    for header, position in readable_batches(view, from_offset, aborted, include_control, verify_crc):
        payload, start = payload_of(view, header, position, max_decompressed_bytes)
        error = append_records(records, payload, header, from_offset, start)
        if error != GOOD:
            raise CorruptMessage(f"the batch at offset {header.base_offset}: {REASONS[error]}")
    return records
