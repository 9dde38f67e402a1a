"""What groups know of what is around them: the topics, and what groups were configured to.

It is a small picture that the broker keeps up to date.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple, Protocol
from uuid import UUID

from millstream.config.group import GroupConfig


class KnownTopic(NamedTuple):
    """A topic as far as groups care."""

    name: str
    topic_id: UUID
    partition_count: int


class Topics(Protocol):
    """The topics of the cluster. Shards are told when they change (`GroupShard.topics_changed`)."""

    def by_name(self, name: str) -> KnownTopic | None: ...

    def by_id(self, topic_id: UUID) -> KnownTopic | None: ...

    def match_again(self) -> None:
        """A shard came into service: match its regular expressions with the topics that there are now."""
        ...

    def config_of(self, group_id: str) -> GroupConfig:
        """What a group sets for itself."""
        ...


class NoTopics:
    """A cluster without topics."""

    def by_name(self, name: str) -> KnownTopic | None:
        return None

    def by_id(self, topic_id: UUID) -> KnownTopic | None:
        return None

    def match_again(self) -> None:
        pass

    def config_of(self, group_id: str) -> GroupConfig:
        return {}


def known_topics(names: Iterable[str], topics: Topics) -> list[KnownTopic]:
    """Those of the names that are topics."""
    found = (topics.by_name(name) for name in names)
    return [topic for topic in found if topic is not None]


def metadata_hash(names: Iterable[str], topics: Topics) -> int:
    """A number for what topics look like: a group makes a new assignment when it changes (KIP-1101).

    0 if none of them exists.
    """
    known = sorted(known_topics(names, topics))
    if not known:
        return 0
    digest = blake2b(digest_size=8)
    for name, topic_id, count in known:
        digest.update(f"{name}\n{topic_id}\n{count}\n".encode())
    return int.from_bytes(digest.digest(), "big", signed=True)
