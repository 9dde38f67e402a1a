"""The uncompressed records of batches, one batch at a time."""

from __future__ import annotations

from typing import Final

from millstream.errors import CorruptMessage
from millstream.protocol.batch import HEADER_SIZE, BatchHeader
from millstream.protocol.compression import decompress_into
from millstream.protocol.fetched import MAX_DECOMPRESSED_BYTES, payload_of
from millstream.storage.batch_walk import Uncleanable

_BUFFER_BYTES: Final = 1 << 20


class Payloads:
    """Unpacks into one buffer, which serves for all but the largest batches."""

    def __init__(self) -> None:
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)

    def of(self, batch: memoryview, header: BatchHeader) -> tuple[memoryview, int]:
        """A buffer and where in it the records begin; they reach to its end, and stay until the next call."""
        codec = header.codec
        if not codec:
            return batch, HEADER_SIZE
        size = decompress_into(codec, batch[HEADER_SIZE:], self._buffer)
        if size >= 0:
            return self._view[:size], 0
        try:
            return payload_of(batch, header, 0, MAX_DECOMPRESSED_BYTES)
        except CorruptMessage as error:
            raise Uncleanable(str(error)) from error
