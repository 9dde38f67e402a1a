"""The topics as groups see them, and the regular expressions that they are matched with.

Patterns are RE2's, whose time is linear in the pattern and the names: Python's own can take forever. They
are compiled and matched in a thread. What a pattern matches is remembered until topics come or go.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING
from uuid import UUID

from millstream.broker.group_configs import GroupConfigs
from millstream.config.group import GroupConfig
from millstream.coordinator.entry_format import MAX_TEXT_BYTES, fits
from millstream.coordinator.groups.consumer_entries import Matched
from millstream.coordinator.groups.topics import KnownTopic
from millstream.errors import InvalidRegularExpression

if TYPE_CHECKING:
    from millstream.broker.server import Broker

log = logging.getLogger(__name__)

MAX_REMEMBERED = 100_000
"""How many topics that patterns match are remembered, over all patterns; a pattern counts as one itself."""


class GroupTopics:
    """Tells the shards of groups about topics. `version` grows whenever one comes, goes or grows."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._task: asyncio.Task[None] | None = None
        self._is_told = True
        self._is_over = False
        self._seen: dict[str, tuple[UUID, int]] = {}
        """The id and the number of partitions that each topic had."""
        self._matched: dict[str, Matched] = {}
        self._weight = 0
        self.version = 0
        self.configs = GroupConfigs(broker.registry, broker.config)

    # What shards ask

    def by_name(self, name: str) -> KnownTopic | None:
        topic = self._broker.metadata.topics.get(name)
        return None if topic is None else KnownTopic(name, topic.topic_id, len(topic.partitions))

    def by_id(self, topic_id: UUID) -> KnownTopic | None:
        topic = self._broker.metadata.find_by_id(topic_id)
        return None if topic is None else KnownTopic(topic.name, topic_id, len(topic.partitions))

    def match_again(self) -> None:
        self._tell_later()

    def config_of(self, group_id: str) -> GroupConfig:
        return self.configs.of(group_id)

    # What handlers ask

    async def match(self, pattern: str) -> Matched:
        """The topics that a pattern matches now; InvalidRegularExpression if it is none."""
        while True:
            found = self._matched.get(pattern)
            if found is not None and found.version == self.version:
                return found
            await self._match([pattern])

    async def _match(self, patterns: Iterable[str]) -> dict[str, Matched]:
        version, names = self.version, tuple(self._broker.metadata.topics)
        loop = asyncio.get_running_loop()
        found: dict[str, Matched] = {}
        for pattern in patterns:
            topics = await loop.run_in_executor(None, match_topics, pattern, names)
            found[pattern] = Matched(topics, version, self._broker.clock.now_ms())
            self._remember(pattern, found[pattern])
        return found

    def _remember(self, pattern: str, matched: Matched) -> None:
        """Keep what a pattern matches, and forget the oldest where that is too much."""
        self._forget(pattern)
        self._matched[pattern] = matched
        self._weight += 1 + len(matched.topics)
        while self._weight > MAX_REMEMBERED and len(self._matched) > 1:
            self._forget(next(iter(self._matched)))

    def _forget(self, pattern: str) -> None:
        former = self._matched.pop(pattern, None)
        if former is not None:
            self._weight -= 1 + len(former.topics)

    # What the broker tells

    def changed(self, name: str) -> None:
        """A topic may have come, gone or grown. The groups are told once for all that change together.

        One that is there under another id went meanwhile: that they are told at once, since what they commit
        from now on they commit in the new one. What they do not care for, such as another leader, they are
        not told.
        """
        self.configs.start()
        topic = self._broker.metadata.topics.get(name)
        before = self._seen.pop(name, None)
        if topic is not None:
            self._seen[name] = (topic.topic_id, len(topic.partitions))
            if self._seen[name] == before:
                return
        if topic is None or (before is not None and before[0] != topic.topic_id):
            groups = self._broker.groups
            for index in groups.led:
                groups.do_now(index, ("gone topic", name), lambda shard: shard.delete_topic(name))
        self.version += 1
        self._tell_later()

    def _tell_later(self) -> None:
        self._is_told = False
        if not self._is_over and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._tell())

    async def _tell(self) -> None:
        while not self._is_told:
            self._is_told = True
            try:
                await self._tell_groups()
            except Exception:
                log.exception("groups could not be told of topics that changed")

    async def _tell_groups(self) -> None:
        groups = self._broker.groups
        for index in groups.led:
            groups.do_soon(index, "changed topics", lambda shard: shard.topics_changed())
        patterns = {pattern for shard in groups for pattern in shard.consumer.regexes}
        if not patterns:
            return
        found = {}
        for pattern in patterns:
            try:
                found[pattern] = await self.match(pattern)
            except InvalidRegularExpression as error:
                log.warning("groups have a regular expression that is none: %s", error.message)
        for index in groups.led:
            groups.do_soon(index, "matched topics", lambda shard: shard.regexes_matched(found))

    async def stop(self) -> None:
        self._is_over = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self.configs.stop()


def match_topics(pattern: str, names: Iterable[str]) -> frozenset[str]:
    """The names that a pattern matches from end to end, as Kafka does."""
    import re2  # type: ignore[import-untyped]

    if not fits(pattern):
        raise InvalidRegularExpression(f"a regular expression has at most {MAX_TEXT_BYTES} bytes")
    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        text = error.args[0]
        reason = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
        raise InvalidRegularExpression(f"{pattern!r} is no regular expression of RE2: {reason}") from None
    return frozenset(name for name in names if compiled.fullmatch(name))
