"""Small values that every part of Millstream speaks of."""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import NamedTuple
from uuid import UUID

from millstream.errors import InvalidTopic

NO_UUID = UUID(int=0)

MAX_TOPIC_NAME = 249
CLUSTER_METADATA = "__cluster_metadata"
"""The topic of Apache Kafka's own controllers, which may lie in a folder that it wrote and is left alone."""
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


def encode_uuid(value: UUID) -> str:
    """An id as Kafka writes it: 22 characters of URL-safe base64."""
    return urlsafe_b64encode(value.bytes).rstrip(b"=").decode("ascii")


def decode_uuid(text: str) -> UUID:
    """The id that `encode_uuid` wrote; ValueError if it is none."""
    return UUID(bytes=urlsafe_b64decode(text + "=="))
