"""A member of a group of the classic protocol."""

from __future__ import annotations

from typing import NamedTuple

from millstream.coordinator.group_entries import GroupMetadataValue
from millstream.coordinator.promise import Promise
from millstream.protocol.messages import JoinGroupResponse, SyncGroupResponse

Protocols = list[tuple[str, bytes]]
"""The assignment protocols that a member can speak, the one it likes best first, each with what the
member has to say in it. The bytes are passed on unread."""


class Client(NamedTuple):
    """Who sent a request, and in which version."""

    version: int
    client_id: str
    host: str


class Member:
    """A member as its group's coordinator knows it.

    `joining` and `syncing` are what it waits for. `deadline` is when it counts as dead unless it is
    heard of, and `watched_until` for when the timer that looks at it is set, None if it is not.
    """

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "deadline",
        "instance_id",
        "is_new",
        "joining",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "syncing",
        "watched_until",
    )

    def __init__(
        self,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: Protocols,
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        self.assignment = assignment
        self.is_new = False
        self.joining: Promise[JoinGroupResponse] | None = None
        self.syncing: Promise[SyncGroupResponse] | None = None
        self.deadline = 0.0
        self.watched_until: float | None = None

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for an answer: such a member sends no heartbeats and is not missed."""
        return self.joining is not None or self.syncing is not None

    def metadata(self, protocol: str | None) -> bytes:
        """What it said in a protocol."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""

    def preferred(self, candidates: set[str]) -> str | None:
        """The protocol that it votes for."""
        return next((name for name, _ in self.protocols if name in candidates), None)

    def written(self, protocol: str | None, assignment: bytes) -> GroupMetadataValue.MemberMetadata:
        """It, as the log keeps it."""
        return GroupMetadataValue.MemberMetadata(
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout=self.rebalance_timeout_ms,
            session_timeout=self.session_timeout_ms,
            subscription=self.metadata(protocol),
            assignment=assignment,
        )

    @classmethod
    def load(cls, written: GroupMetadataValue.MemberMetadata, protocol: str) -> Member:
        """A member as it comes back from the log, with the one protocol that was chosen."""
        return cls(
            written.member_id,
            written.group_instance_id,
            written.client_id,
            written.client_host,
            written.rebalance_timeout if written.rebalance_timeout > 0 else written.session_timeout,
            written.session_timeout,
            [(protocol, written.subscription)],
            written.assignment,
        )
