"""Looks now and then whether the topics of a subscription have come, gone or grown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from millstream.client.cluster import Cluster
from millstream.client.group_host import Subscription
from millstream.deadline import Deadline
from millstream.errors import KafkaError

MISSING_MS = 1000
"""How often to look for topics that are not there yet."""


class TopicWatch:
    """Remembers how many partitions the watched topics had, and calls back when that has changed."""

    def __init__(self, cluster: Cluster, max_age_ms: int, request_timeout_ms: int) -> None:
        self._cluster = cluster
        self._max_age_ms = max_age_ms
        self._request_timeout_ms = request_timeout_ms
        self._subscription = Subscription()
        self._others: frozenset[str] = frozenset()
        self._seen: dict[str, int] = {}
        self._on_change: Callable[[], None] | None = None
        self._task: asyncio.Task[None] | None = None

    def follow(self, subscription: Subscription, on_change: Callable[[], None]) -> None:
        """Watch the topics of a subscription."""
        self._subscription = subscription
        self._on_change = on_change
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """Watch nothing any more."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    async def topics(self, subscription: Subscription) -> frozenset[str]:
        """The topics that a subscription stands for now."""
        self._others = frozenset()
        await self._look()
        return subscription.of(self._cluster.metadata)

    async def sizes(self, topics: Iterable[str]) -> dict[str, int]:
        """How many partitions each topic has; the leader of a group watches those of all members."""
        self._others = frozenset(topics)
        await self._look()
        return {name: size for name, size in self._seen.items() if name in self._others}

    async def _look(self) -> None:
        deadline = Deadline(self._request_timeout_ms)
        has_pattern = self._subscription.pattern is not None
        names = self._subscription.topics | self._others
        metadata = await self._cluster.refresh(None if has_pattern else sorted(names), deadline)
        names = self._subscription.of(metadata) | self._others
        self._seen = {
            name: len(metadata.topics[name].partitions) for name in names if name in metadata.topics
        }
        if names - self._seen.keys():
            self._cluster.doubt()  # another broker may know of them

    async def _run(self) -> None:
        while True:
            is_missing = not self._seen or self._subscription.topics - self._seen.keys()
            max_age_ms = min(self._max_age_ms, MISSING_MS) if is_missing else self._max_age_ms
            await asyncio.sleep(max_age_ms / 1000)
            before = self._seen
            try:
                await self._look()
            except KafkaError:
                continue  # the next look will tell
            if self._seen != before and self._on_change is not None:
                self._on_change()
