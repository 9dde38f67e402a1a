"""What a consumer can be told when it is made, checked once.

ConsumerArguments, for type checkers, and ConsumerOptions name the same options: as given, and as meant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypedDict

from millstream.client.assignors import ASSIGNORS
from millstream.client.fetch_session import FetchLimits
from millstream.client.offsets import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED
from millstream.client.serializers import Deserializer, Format

OffsetReset: TypeAlias = Literal["earliest", "latest", "none"]
IsolationLevel: TypeAlias = Literal["read_uncommitted", "read_committed"]
GroupProtocol: TypeAlias = Literal["classic", "consumer"]

RESETS: dict[str, int | None] = {"earliest": EARLIEST, "latest": LATEST, "none": None}
POSITIVE = (
    "auto_commit_interval_ms",
    "session_timeout_ms",
    "heartbeat_interval_ms",
    "max_poll_interval_ms",
    "fetch_max_bytes",
    "partition_max_bytes",
    "buffer_bytes",
    "request_timeout_ms",
    "metadata_max_age_ms",
)
ISOLATION_LEVELS = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}


class ConsumerArguments(TypedDict, total=False):
    """What AsyncConsumer and Consumer take as keywords; AsyncConsumer has the defaults."""

    group: str | None
    group_instance_id: str | None
    group_protocol: GroupProtocol
    assignors: Iterable[str]
    server_assignor: str | None
    client_id: str
    rack: str | None
    deserializer: Format | Deserializer | None
    key_deserializer: Format | Deserializer | None
    offset_reset: OffsetReset
    isolation_level: IsolationLevel
    auto_commit: bool
    auto_commit_interval_ms: int
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    fetch_max_bytes: int
    partition_max_bytes: int
    buffer_bytes: int
    request_timeout_ms: int
    metadata_max_age_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """The options of a consumer, in the units that their names say."""

    group: str | None
    group_instance_id: str | None
    group_protocol: GroupProtocol
    assignors: tuple[str, ...]
    server_assignor: str | None
    rack: str | None
    offset_reset: OffsetReset
    isolation_level: IsolationLevel
    auto_commit: bool
    auto_commit_interval_ms: int
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    fetch_max_bytes: int
    partition_max_bytes: int
    buffer_bytes: int
    request_timeout_ms: int
    metadata_max_age_ms: int
    key_of: Callable[[bytes], Any] | None
    value_of: Callable[[bytes], Any] | None

    def __post_init__(self) -> None:
        _check("offset_reset", self.offset_reset, RESETS)
        _check("isolation_level", self.isolation_level, ISOLATION_LEVELS)
        _check("group_protocol", self.group_protocol, ("classic", "consumer"))
        if not self.assignors:
            raise ValueError(f"assignors is empty: name one of {', '.join(ASSIGNORS)}")
        for name in self.assignors:
            _check("assignors", name, ASSIGNORS)
        if self.group is not None and not self.group:
            raise ValueError("group is a name, or None for a consumer without one")
        for option in POSITIVE:
            if getattr(self, option) <= 0:
                raise ValueError(f"{option} is more than 0, not {getattr(self, option)}")
        for option in ("fetch_min_bytes", "fetch_max_wait_ms"):
            if getattr(self, option) < 0:
                raise ValueError(f"{option} is not negative, but {getattr(self, option)} was given")
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ValueError("heartbeat_interval_ms must be less than session_timeout_ms")
        if self.group_instance_id is not None and self.group is None:
            raise ValueError("group_instance_id is for members of a group: name the group")

    @property
    def limits(self) -> FetchLimits:
        return FetchLimits(
            max_wait_ms=self.fetch_max_wait_ms,
            min_bytes=self.fetch_min_bytes,
            max_bytes=self.fetch_max_bytes,
            partition_max_bytes=self.partition_max_bytes,
        )

    @property
    def reset_to(self) -> int | None:
        """EARLIEST or LATEST, or None where nothing may be chosen."""
        return RESETS[self.offset_reset]

    @property
    def isolation(self) -> int:
        return ISOLATION_LEVELS[self.isolation_level]


def _check(option: str, value: str, allowed: Any) -> None:
    if value not in allowed:
        raise ValueError(f"{option} is one of {', '.join(allowed)}, not {value!r}")
