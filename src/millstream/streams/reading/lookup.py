"""Lookup: what a source asks the brokers on the driver, by calls that block."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine, Iterable, Mapping
from types import TracebackType
from typing import Any, TypeVar

from millstream.client.cluster import Cluster
from millstream.client.errors import NoSuchTopic, Unreachable
from millstream.client.face import LoopThread
from millstream.client.fetch_session import FetchLimits
from millstream.client.group_offsets import commit_offsets
from millstream.client.offsets import EARLIEST, LATEST, READ_UNCOMMITTED, list_offsets, partitions_by_leader
from millstream.deadline import Deadline
from millstream.errors import KafkaError, NetworkException, RequestTimedOut
from millstream.model import NO_UUID, TopicPartition
from millstream.streams.offsets import Offsets
from millstream.streams.reading.errors import NoBroker, NoTopic
from millstream.streams.reading.fetching import fetch
from millstream.streams.reading.settings import SourceSettings
from millstream.streams.sink_names import is_decisions

T = TypeVar("T")

FIRST_ANSWER_MS = 10_000
"""How long brokers that never answered are waited for; those that did, as long as a call may take."""

COMMIT_MS = 5_000
"""A commit is for those who look on; the query does not wait longer for it."""


class Lookup:
    """Connections to the brokers, kept between calls. Errors that pass are tried again within each call."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._thread = LoopThread("millstream-source")
        self._has_answered = False
        self._watches: dict[int, asyncio.Task[Any]] = {}
        self._cluster, self._watching = self._thread.run(self._clusters())

    async def _clusters(self) -> tuple[Cluster, Cluster]:
        """One for questions, one on whose connections a broker may let a Fetch wait."""
        settings = self._settings
        first, second = (
            Cluster(
                settings.bootstrap,
                client_id=settings.client_id,
                request_timeout_ms=settings.request_timeout_ms,
            )
            for _ in range(2)
        )
        second.metadata = first.metadata
        return first, second

    def __enter__(self) -> Lookup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._thread.is_closed:
            return

        async def work() -> None:
            for task in self._watches.values():
                task.cancel()
            await asyncio.gather(*self._watches.values(), return_exceptions=True)
            await self._cluster.close()
            await self._watching.close()

        try:
            self._thread.run(work())
        finally:
            self._thread.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        settings = self._settings
        try:
            result = self._thread.run(work)
        except (Unreachable, RequestTimedOut) as error:
            was_reached = isinstance(error, RequestTimedOut) and not isinstance(
                error.__cause__, NetworkException
            )
            if self._has_answered or was_reached:
                raise NoBroker(f"the brokers at {settings.bootstrap} do not answer: {error}") from None
            raise NoBroker(
                f"no broker answers at {settings.bootstrap}: is one running there? "
                f"Start one with `millstream serve`, or correct kafka.bootstrap.servers ({error})"
            ) from None
        except NoSuchTopic as error:
            raise NoTopic(f"{error}: it was deleted while the query ran") from None
        self._has_answered = True
        return result

    def _deadline(self) -> Deadline:
        timeout_ms = self._settings.api_timeout_ms
        return Deadline(timeout_ms if self._has_answered else min(timeout_ms, FIRST_ANSWER_MS))

    # ---------------------------------------------------------------- partitions

    def partitions(self) -> list[TopicPartition]:
        """The partitions that the query reads; NoTopic where one does not exist."""
        return self._run(self._partitions())

    def present(self) -> list[TopicPartition]:
        """Those of them that are there now; topics that are not are left out."""
        return self._run(self._present(self._settings.topics))

    def ids(self, partitions: Iterable[TopicPartition]) -> dict[str, str]:
        """The ids of their topics, as last heard; old brokers have none."""
        names = {partition.topic for partition in partitions}
        known = list(self._cluster.metadata.topics.values())  # at once: the other thread changes it
        return {topic.name: str(topic.id) for topic in known if topic.name in names and topic.id != NO_UUID}

    async def _partitions(self) -> list[TopicPartition]:
        settings, deadline = self._settings, self._deadline()
        for name in settings.topics or dict.fromkeys(part.topic for part in settings.partitions):
            try:
                self._cluster.forget(name)
                topic = await self._cluster.topic(name, deadline)
            except NoSuchTopic:
                raise NoTopic(
                    f"topic {name} does not exist: create it with `millstream topic create {name}`, "
                    "or see `millstream topic list`"
                ) from None
            for partition in settings.partitions:
                if partition.topic == name and partition.partition not in topic.partitions:
                    raise NoTopic(
                        f"option assign names {partition}, but topic {name} has "
                        f"{len(topic.partitions)} partitions, numbered from 0"
                    )
        return await self._present(settings.topics)

    async def _present(self, topics: Iterable[str]) -> list[TopicPartition]:
        settings = self._settings
        names = (
            None if settings.pattern is not None else topics or {part.topic for part in settings.partitions}
        )
        metadata = await self._cluster.refresh(names, self._deadline())
        there = [
            TopicPartition(topic.name, index)
            for topic in metadata.topics.values()
            for index in topic.partitions
            if (settings.pattern is None or not topic.is_internal) and self.is_wanted(topic.name, index)
        ]
        return sorted(there)

    def is_wanted(self, topic: str, index: int) -> bool:
        """Whether the options ask for a partition, if it is there."""
        settings = self._settings
        if settings.pattern is not None:
            return re.fullmatch(settings.pattern, topic) is not None and not is_decisions(topic)
        return topic in settings.topics or (topic, index) in settings.partitions

    # ---------------------------------------------------------------- offsets

    def offsets(self, wanted: Mapping[TopicPartition, int], isolation: int | None = None) -> Offsets:
        """Of each partition the offset at a time (ms), EARLIEST or LATEST; -1 where no record is so young."""
        level = self._settings.isolation if isolation is None else isolation

        async def work() -> Offsets:
            found = await list_offsets(self._cluster, wanted, self._deadline(), isolation_level=level)
            return {partition: each.offset for partition, each in found.items()}

        return self._run(work()) if wanted else {}

    def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return self.offsets(dict.fromkeys(partitions, EARLIEST))

    def latest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """The ends that the query's isolation level lets it read up to."""
        return self.offsets(dict.fromkeys(partitions, LATEST))

    def written(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """The ends of what is written, by open transactions, too: what lies before them is not lost."""
        return self.offsets(dict.fromkeys(partitions, LATEST), READ_UNCOMMITTED)

    def commit(self, group: str, offsets: Offsets) -> None:
        """Commit offsets for a group that has no members."""

        async def work() -> None:
            await commit_offsets(self._cluster, group, offsets, self._deadline().sooner(COMMIT_MS))

        if offsets:
            self._thread.run(work())

    # ---------------------------------------------------------------- waiting

    def watch(self, ends: Offsets, timeout_ms: int) -> bool:
        """Wait until there may be records behind some of these ends; false if none came in `timeout_ms`.

        Each leader gets one small Fetch that it answers when records come. Those that have not been
        answered stay for the next call.
        """
        return self._run(self._watch(ends, timeout_ms))

    async def _watch(self, ends: Offsets, timeout_ms: int) -> bool:
        limits = FetchLimits(max_wait_ms=timeout_ms, max_bytes=1, partition_max_bytes=1)
        try:
            by_leader = await partitions_by_leader(self._cluster, ends, self._deadline())
        except KafkaError:
            by_leader = {}
        for leader, partitions in by_leader.items():
            if leader not in self._watches:
                work = fetch(
                    self._watching,
                    leader,
                    {partition: ends[partition] for partition in partitions},
                    Deadline(self._settings.request_timeout_ms),
                    limits=limits,
                    isolation_level=self._settings.isolation,
                )
                self._watches[leader] = asyncio.ensure_future(work)
        if not self._watches:
            await asyncio.sleep(timeout_ms / 1000)
            return True
        await asyncio.wait(
            self._watches.values(), timeout=2 * timeout_ms / 1000, return_when=asyncio.FIRST_COMPLETED
        )
        has_news = False
        for leader, task in list(self._watches.items()):
            if not task.done():
                continue
            del self._watches[leader]
            if task.exception() is not None or any(each.error for each in task.result()):
                await asyncio.sleep(timeout_ms / 1000)  # whoever asks next meets the error itself
                has_news = True
            elif any(each.records for each in task.result()):
                has_news = True
        return has_news
