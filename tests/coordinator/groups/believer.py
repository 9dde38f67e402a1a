"""A member of a group as it sees itself."""

from __future__ import annotations

from typing import Any

from millstream.coordinator.promise import Promise
from millstream.model import TopicPartition

Place = tuple[str, TopicPartition]


class Client:
    """One consumer as it believes itself to be: what it was told, and what it waits for."""

    def __init__(self, group: str, instance: str | None, version: int) -> None:
        self.group = group
        self.instance = instance
        self.version = version
        self.member_id = ""
        self.generation = -1
        self.leads = False
        self.members: dict[str, bytes] = {}
        """As a leader: whom to assign what, which is to each its own name."""
        self.assignment: bytes | None = None
        self.is_gone = False
        self.is_replaced = False
        self.last_heard_ms = 0.0
        self.joining: Promise[Any] | None = None
        self.syncing: Promise[Any] | None = None

    @property
    def name(self) -> bytes:
        return (self.instance or self.member_id).encode()

    @property
    def is_idle(self) -> bool:
        return self.joining is None and self.syncing is None and not self.is_gone
