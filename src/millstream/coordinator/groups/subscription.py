"""What consumers of the classic protocol subscribe to, read from what they tell each other."""

from __future__ import annotations

from collections.abc import Iterable

from millstream.errors import ProtocolError
from millstream.protocol.subscription import read_assignment, read_subscription

__all__ = ["read_assignment", "read_subscription", "subscribed_topics"]


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """The topics of all of them; None if one cannot be read."""
    topics: set[str] = set()
    for data in subscriptions:
        try:
            topics.update(read_subscription(data).topics)
        except ProtocolError:
            return None
    return frozenset(topics)
