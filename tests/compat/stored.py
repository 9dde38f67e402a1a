"""What a broker holds, read with hand-made bytes: independent of every client and of the project's codecs."""

from __future__ import annotations

import socket
import struct
from contextlib import closing
from typing import NamedTuple

from tests.compat.samples import CODECS

TIMEOUT_S = 20.0
FETCH, FETCH_VERSION = 1, 4


class StoredBatch(NamedTuple):
    """The fields of a batch header that clients cannot see."""

    base_offset: int
    codec: str
    record_count: int
    producer_id: int
    base_sequence: int


def _ask(bootstrap: str, key: int, version: int, body: bytes) -> bytes:
    host, _, port = bootstrap.rpartition(":")
    frame = struct.pack(">hhih", key, version, 1, -1) + body
    with closing(socket.create_connection((host, int(port)), timeout=TIMEOUT_S)) as connection:
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        with connection.makefile("rb") as answers:
            (size,) = struct.unpack(">i", answers.read(4))
            return answers.read(size)[4:]


def _fetch(bootstrap: str, topic: str, partition: int, offset: int) -> bytes:
    name = topic.encode()
    body = struct.pack(">iiiibi", -1, 100, 1, 50_000_000, 0, 1) + struct.pack(">h", len(name)) + name
    answer = _ask(
        bootstrap, FETCH, FETCH_VERSION, body + struct.pack(">iiqi", 1, partition, offset, 50_000_000)
    )
    position = 4 + 4 + 2 + len(name) + 4
    _, error, _, _, aborted = struct.unpack_from(">ihqqi", answer, position)
    assert error == 0, f"fetch of {topic}-{partition} at {offset}: error {error}"
    position += 26 + 16 * max(aborted, 0)
    (size,) = struct.unpack_from(">i", answer, position)
    assert len(answer) == position + 4 + max(size, 0)
    return answer[position + 4 :]


def stored_batches(bootstrap: str, topic: str, partition: int = 0) -> list[StoredBatch]:
    """Every batch of a partition, in order."""
    found: list[StoredBatch] = []
    next_offset = 0
    while data := _fetch(bootstrap, topic, partition, next_offset):
        position = 0
        while position + 61 <= len(data):
            base, length = struct.unpack_from(">qi", data, position)
            if position + 12 + length > len(data):
                break
            magic, _, attributes, last_delta = struct.unpack_from(">bIhi", data, position + 16)
            assert magic == 2
            producer_id, _, base_sequence, count = struct.unpack_from(">qhii", data, position + 43)
            found.append(StoredBatch(base, CODECS[attributes & 7], count, producer_id, base_sequence))
            next_offset = base + last_delta + 1
            position += 12 + length
    return found


def stored_codecs(bootstrap: str, topic: str, partition: int = 0) -> set[str]:
    """The codecs that a partition's batches are in."""
    return {batch.codec for batch in stored_batches(bootstrap, topic, partition)}
