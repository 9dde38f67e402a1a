"""Prebuilt Produce and Fetch frames: made before the clock starts, patched in place while it runs.

Produce v7 and Fetch v11 are the highest versions without flexible fields, so an answer for one partition
has a fixed length and its fields fixed places.
"""

from __future__ import annotations

import struct
from typing import Protocol

from bench.wire import FETCH, PRODUCE, WireError, request_frame, text

PRODUCE_VERSION = 7
FETCH_VERSION = 11


def produce_frame(topic: str, partitions: dict[int, bytes], acks: int) -> bytearray:
    """One Produce request with one batch for each of the partitions."""
    body = (
        struct.pack(">hhii", -1, acks, 30_000, 1)
        + text(topic)
        + struct.pack(">i", len(partitions))
        + b"".join(struct.pack(">ii", index, len(data)) + data for index, data in partitions.items())
    )
    return bytearray(request_frame(PRODUCE, PRODUCE_VERSION, 0, body))


class Answer(Protocol):
    """An answer of a known size that can be checked where it lies."""

    size: int

    def check(self, data: bytes | bytearray | memoryview, position: int) -> None: ...


class ProduceAnswer:
    """Layout of the answer to a Produce of `partitions` partitions of one topic."""

    def __init__(self, topic: str, partitions: int = 1) -> None:
        self.first_partition = 4 + 4 + 4 + 2 + len(topic) + 4
        self.partitions = partitions
        self.size = self.first_partition + partitions * 30 + 4

    def check(self, data: bytes | bytearray | memoryview, position: int) -> None:
        """Raise unless the whole answer at `position` is free of errors."""
        (size,) = struct.unpack_from(">i", data, position)
        if size != self.size - 4:
            raise WireError(f"a Produce answer of {size} bytes instead of {self.size - 4}")
        at = position + self.first_partition + 4
        for _ in range(self.partitions):
            if data[at] or data[at + 1]:
                raise WireError(f"Produce failed with error code {struct.unpack_from('>h', data, at)[0]}")
            at += 30


class FetchFrame:
    """A Fetch of one partition whose offset is patched between sends."""

    def __init__(
        self, topic: str, partition: int, *, max_bytes: int, min_bytes: int = 1, max_wait_ms: int = 1000
    ) -> None:
        before = struct.pack(">iiiibiii", -1, max_wait_ms, min_bytes, max_bytes, 0, 0, -1, 1)
        before += text(topic) + struct.pack(">iii", 1, partition, -1)
        body = before + struct.pack(">qqii", 0, -1, max_bytes, 0) + text("")
        self.data = bytearray(request_frame(FETCH, FETCH_VERSION, 0, body))
        self._offset_position = len(self.data) - len(body) + len(before)
        self.records_position = 4 + 4 + 4 + 2 + 4 + 4 + 2 + len(topic) + 4 + 4 + 2 + 8 + 8 + 8 + 4 + 4 + 4
        self._error_position = self.records_position - 4 - 4 - 4 - 8 - 8 - 8 - 2

    def seek(self, offset: int) -> None:
        struct.pack_into(">q", self.data, self._offset_position, offset)

    def records_end(self, answer: bytearray | memoryview) -> int:
        """Where the records end in a whole answer; raises on an error code."""
        (top,) = struct.unpack_from(">h", answer, 12)
        (error,) = struct.unpack_from(">h", answer, self._error_position)
        if top or error:
            raise WireError(f"Fetch failed with error code {top or error}")
        (length,) = struct.unpack_from(">i", answer, self.records_position - 4)
        return self.records_position + max(int(length), 0)


def next_offset(data: bytes | bytearray | memoryview, start: int, end: int) -> tuple[int, int]:
    """The offset after the last whole batch in data[start:end] (-1 if none), and how many there are."""
    offset, batches, position = -1, 0, start
    while position + 61 <= end:
        base, length = struct.unpack_from(">qi", data, position)
        if position + 12 + length > end:
            break
        (last_delta,) = struct.unpack_from(">i", data, position + 23)
        offset, position, batches = base + last_delta + 1, position + 12 + length, batches + 1
    return offset, batches
