"""A lean client on a plain socket: what the benchmarks need besides the measured requests.

Only versions without flexible fields are used, so that a request is a few `struct` calls. Every version
here is one that Apache Kafka 4.x still serves.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
FIND_COORDINATOR, JOIN_GROUP = 10, 11
API_VERSIONS, CREATE_TOPICS, DELETE_TOPICS, INCREMENTAL_ALTER_CONFIGS = 18, 19, 20, 44

CLIENT_ID = b"bench"
TOPIC_RESOURCE = 2
SET_CONFIG = 0


class WireError(Exception):
    """A broker answered with an error code, or not at all."""


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def request_frame(key: int, version: int, correlation_id: int, body: bytes) -> bytes:
    """Size, request header v1 and body; the correlation id lies 8 bytes into the frame."""
    header = struct.pack(">hhih", key, version, correlation_id, len(CLIENT_ID)) + CLIENT_ID
    return struct.pack(">i", len(header) + len(body)) + header + body


CORRELATION_POSITION = 8


class Reader:
    """Walks the big-endian fields of one response body."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def take(self, layout: str) -> int:
        (value,) = struct.unpack_from(">" + layout, self.data, self.position)
        self.position += struct.calcsize(">" + layout)
        return int(value)

    def string(self) -> str:
        length = self.take("h")
        if length < 0:
            return ""
        self.position += length
        return self.data[self.position - length : self.position].decode()

    def count(self) -> int:
        return max(self.take("i"), 0)


class Connection:
    """One blocking connection; `request` waits for its answer."""

    def __init__(self, port: int, *, timeout_seconds: float = 30) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_seconds)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def receive_exactly(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self.socket.recv(count - len(parts))
            if not part:
                raise WireError("the broker closed the connection")
            parts += part
        return bytes(parts)

    def request(self, key: int, version: int, body: bytes) -> Reader:
        """Send one request and return its response body (response header v0)."""
        self._correlation_id += 1
        self.socket.sendall(request_frame(key, version, self._correlation_id, body))
        (size,) = struct.unpack(">i", self.receive_exactly(4))
        frame = self.receive_exactly(size)
        (correlation_id,) = struct.unpack_from(">i", frame)
        if correlation_id != self._correlation_id:
            raise WireError(f"answer {correlation_id} to request {self._correlation_id}")
        return Reader(frame[4:])

    def supported_apis(self) -> dict[int, tuple[int, int]]:
        """Lowest and highest version by API key."""
        body = self.request(API_VERSIONS, 0, b"")
        check(body.take("h"), "ApiVersions")
        return {body.take("h"): (body.take("h"), body.take("h")) for _ in range(body.count())}

    def leaders(self, topic: str) -> dict[int, int]:
        """Leader by partition of one topic; empty while the topic is not known."""
        answer = self.request(METADATA, 4, struct.pack(">i", 1) + text(topic) + b"\x00")
        answer.take("i")
        for _ in range(answer.count()):
            answer.take("i"), answer.string(), answer.take("i"), answer.string()
        answer.string(), answer.take("i")
        leaders: dict[int, int] = {}
        for _ in range(answer.count()):
            answer.take("h"), answer.string(), answer.take("b")
            for _ in range(answer.count()):
                error, partition, leader = answer.take("h"), answer.take("i"), answer.take("i")
                for _ in range(2):
                    replicas = answer.count()
                    answer.position += 4 * replicas
                if not error:
                    leaders[partition] = leader
        return leaders

    def broker_count(self) -> int:
        answer = self.request(METADATA, 4, struct.pack(">i", 0) + b"\x00")
        answer.take("i")
        return answer.count()

    def create_topic(
        self,
        topic: str,
        partitions: int,
        configs: Mapping[str, str] | None = None,
        *,
        timeout_seconds: float = 60,
    ) -> None:
        """Create a topic and wait until every partition is led and answers."""
        options = b"".join(text(name) + text(value) for name, value in (configs or {}).items())
        body = (
            struct.pack(">i", 1)
            + text(topic)
            + struct.pack(">ihii", partitions, 1, 0, len(configs or {}))
            + options
            + struct.pack(">ib", int(timeout_seconds * 1000), 0)
        )
        answer = self.request(CREATE_TOPICS, 4, body)
        answer.take("i")
        for _ in range(answer.count()):
            name, error, message = answer.string(), answer.take("h"), answer.string()
            check(error, f"create {name}: {message}")
        deadline = time.monotonic() + timeout_seconds
        while len(self.leaders(topic)) < partitions or min(self.end_offsets(topic, partitions)) < 0:
            if time.monotonic() > deadline:
                raise WireError(f"{topic}: not all of {partitions} partitions have a leader")
            time.sleep(0.01 if partitions < 100 else 0.1)

    def delete_topics(self, topics: Sequence[str]) -> None:
        body = struct.pack(">i", len(topics)) + b"".join(map(text, topics)) + struct.pack(">i", 30_000)
        answer = self.request(DELETE_TOPICS, 3, body)
        answer.take("i")
        for _ in range(answer.count()):
            name, error = answer.string(), answer.take("h")
            check(error, f"delete {name}")

    def set_topic_config(self, topic: str, name: str, value: str) -> None:
        body = (
            struct.pack(">ib", 1, TOPIC_RESOURCE)
            + text(topic)
            + struct.pack(">i", 1)
            + text(name)
            + struct.pack(">b", SET_CONFIG)
            + text(value)
            + b"\x00"
        )
        answer = self.request(INCREMENTAL_ALTER_CONFIGS, 0, body)
        answer.take("i")
        for _ in range(answer.count()):
            error, message = answer.take("h"), answer.string()
            answer.take("b"), answer.string()
            check(error, f"set {name} of {topic}: {message}")

    def end_offsets(self, topic: str, partitions: int) -> list[int]:
        """End offset of each partition, -1 where the broker does not lead it (yet)."""
        body = (
            struct.pack(">ii", -1, 1)
            + text(topic)
            + struct.pack(">i", partitions)
            + b"".join(struct.pack(">iq", partition, -1) for partition in range(partitions))
        )
        answer = self.request(LIST_OFFSETS, 1, body)
        answer.count(), answer.string()
        ends = [-1] * partitions
        for _ in range(answer.count()):
            partition, error, _, offset = (
                answer.take("i"),
                answer.take("h"),
                answer.take("q"),
                answer.take("q"),
            )
            ends[partition] = -1 if error else offset
        return ends


def check(error_code: int, what: str) -> None:
    if error_code:
        raise WireError(f"{what}: error code {error_code}")


def cluster_is_ready(port: int) -> bool:
    """Whether a broker listens there, answers, and lists itself as a member."""
    try:
        with Connection(port, timeout_seconds=5) as connection:
            return bool(connection.supported_apis()) and connection.broker_count() > 0
    except (OSError, WireError, struct.error):
        return False
