"""Small values that every part of Millstream speaks of."""

from __future__ import annotations

import re
from typing import NamedTuple
from uuid import UUID

from millstream.errors import InvalidTopic

NO_UUID = UUID(int=0)

MAX_TOPIC_NAME = 249
_LEGAL_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")


class TopicPartition(NamedTuple):
    """One partition of a topic, by name: `orders-3` as a folder on disk."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def check_topic_name(name: str) -> None:
    """Raise InvalidTopic unless `name` is one that Kafka takes."""
    if not name:
        raise InvalidTopic("a topic's name must not be empty")
    if name in (".", ".."):
        raise InvalidTopic("a topic's name must not be '.' or '..'")
    if len(name) > MAX_TOPIC_NAME:
        raise InvalidTopic(f"a topic's name has at most {MAX_TOPIC_NAME} characters, not {len(name)}")
    if not _LEGAL_TOPIC.fullmatch(name):
        raise InvalidTopic(f"a topic's name holds only letters, digits, '.', '_' and '-', not {name!r}")
