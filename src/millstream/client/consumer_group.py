"""A consumer's side of its group: callbacks, commits, and what the coordinator gives and takes."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from millstream.client.cluster import Cluster
from millstream.client.consumer_commits import Commits
from millstream.client.consumer_group_member import ConsumerGroupMember
from millstream.client.consumer_options import ConsumerOptions
from millstream.client.coordinator_link import CoordinatorLink
from millstream.client.group_host import Callback, Membership, Subscription
from millstream.client.group_member import GroupMember
from millstream.client.group_metadata import GroupMetadata
from millstream.client.group_offsets import Committed
from millstream.client.poll_point import PollPoint
from millstream.client.subscription import NOT_KNOWN, Assignment
from millstream.client.topic_watch import TopicWatch
from millstream.deadline import Deadline
from millstream.errors import KafkaError
from millstream.model import TopicPartition

COMMIT_SHARE = 0.75
"""How much of the time for leaving the last commit may take: without a word the others wait for long."""

RENEWAL_S = 3600.0
"""How old a commit may become that is still true: brokers forget those of who assigns itself after a while
(offsets.retention.minutes)."""


@dataclass(frozen=True, slots=True)
class Callbacks:
    """What the caller wants to hear of a rebalance. Without `on_lost`, `on_revoked` is told."""

    on_assigned: Callback | None = None
    on_revoked: Callback | None = None
    on_lost: Callback | None = None


class ConsumerGroup:
    """Joins, leaves and commits for one consumer. Partitions come and go at its poll point only."""

    def __init__(
        self,
        group: str,
        cluster: Cluster,
        coordinators: Cluster,
        assignment: Assignment,
        poll_point: PollPoint,
        options: ConsumerOptions,
    ) -> None:
        self._group = group
        self._assignment = assignment
        self._poll_point = poll_point
        self._options = options
        self._link = CoordinatorLink(coordinators, group, options.request_timeout_ms)
        self._watch = TopicWatch(cluster, options.metadata_max_age_ms, options.request_timeout_ms)
        # Not behind a JoinGroup, whose answer takes as long as the slowest member does.
        commits = CoordinatorLink(cluster, group, options.request_timeout_ms)
        self._commits = Commits(commits, lambda: self._membership)
        self._callbacks = Callbacks()
        self._membership: Membership | None = None
        self._seen = assignment.progress
        self._loop = asyncio.get_running_loop()
        self._told: dict[TopicPartition, tuple[int, float]] = {}
        """What was committed, and when."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._parting: asyncio.Task[None] | None = None
        """The end of the last membership."""
        self._must_commit = False
        self._clock: asyncio.Task[None] | None = None
        if options.auto_commit:
            self._clock = self._loop.create_task(self._commit_now_and_then())

    @property
    def identity(self) -> GroupMetadata:
        """Who this consumer is to its group, for commits and for transactions."""
        membership = self._membership
        return membership.identity if membership is not None else GroupMetadata(self._group)

    @property
    def is_joined(self) -> bool:
        return self._membership is not None and self._membership.is_joined

    # ---------------------------------------------------------------- joining and leaving

    def subscribe(self, subscription: Subscription, callbacks: Callbacks) -> None:
        """Join, or want something else than before."""
        if self._options.group_protocol == "consumer":
            _ = subscription.expression  # a pattern that no broker can read is an error now
        self._callbacks = callbacks
        self._poll_point.clear()
        if self._membership is None:
            if self._options.group_protocol == "classic":
                self._membership = GroupMember(self._link, self, self._watch, self._options)
            else:
                self._membership = ConsumerGroupMember(self._link, self, self._options)
        self._membership.subscribe(subscription)
        self._membership.start()

    def forget_callbacks(self) -> None:
        """Tell nobody any more what comes and goes."""
        self._callbacks = Callbacks()

    async def leave(self, deadline: Deadline, *, commits: bool = True) -> None:
        """Commit where that is the consumer's task, give up all partitions, and leave the group."""
        membership = self._membership
        if membership is None:
            if self._options.auto_commit and commits:
                await self._commit_quietly(self.positions(self.owned), deadline)
            return
        try:
            in_time = deadline.sooner(deadline.remaining_ms * COMMIT_SHARE)
            await self._revoke(self.owned, in_time, commits=commits)
        finally:
            self._membership = None
            self._remove(self.owned)
            self._watch.stop()
            self._parting = parting = self._loop.create_task(_part(membership, deadline))
            await asyncio.wait([parting])  # it goes on, also if it is not waited for
            parting.result()

    async def close(self, deadline: Deadline, *, commits: bool = True) -> None:
        """Leave, and stop what runs in the background."""
        if self._clock is not None:
            self._clock.cancel()
            self._tasks.add(self._clock)
        try:
            if self._tasks and commits:  # what was begun before, also of partitions that are given up
                await asyncio.wait(self._tasks, timeout=deadline.remaining * COMMIT_SHARE)
        except asyncio.CancelledError:
            commits = False  # nobody wants to wait for it
            raise
        finally:
            try:
                await self.leave(deadline, commits=commits)
            finally:
                for task in self._tasks:
                    task.cancel()
                tasks = [*self._tasks, self._parting] if self._parting is not None else self._tasks
                await asyncio.gather(*tasks, return_exceptions=True)

    # ---------------------------------------------------------------- commits

    def positions(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Committed]:
        """Where the caller is, as it would be committed."""
        found = {}
        for partition in partitions:
            state = self._assignment.get(partition)
            if state is not None and state.position != NOT_KNOWN:
                found[partition] = Committed(state.position, state.consumed_epoch, "")
        return found

    async def commit(self, offsets: Mapping[TopicPartition, Committed], deadline: Deadline) -> None:
        await self._commits.commit(offsets, deadline)
        now = self._loop.time()
        self._told.update({partition: (each.offset, now) for partition, each in offsets.items()})

    async def _commit_quietly(self, offsets: Mapping[TopicPartition, Committed], deadline: Deadline) -> None:
        """Commit what has changed, and what was told long ago. What cannot be committed is read again, by
        whoever comes next."""
        news = {
            partition: each
            for partition, each in offsets.items()
            if not self._is_told(partition, each.offset)
        }
        try:
            await self.commit(news, deadline)
        except KafkaError:
            pass

    def _is_told(self, partition: TopicPartition, offset: int) -> bool:
        told, at = self._told.get(partition, (NOT_KNOWN, 0.0))
        return told == offset and self._loop.time() - at < RENEWAL_S

    async def _commit_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(self._options.auto_commit_interval_ms / 1000)
            if not self._tasks and not self._must_commit and len(self._assignment):
                self._must_commit = True
                self._poll_point.leave(self._begin_commit)

    async def _begin_commit(self) -> None:
        """At a poll: the caller is done with what it got. The commit itself is not waited for."""
        self._must_commit = False
        self.commit_soon(self.owned)

    def commit_soon(self, partitions: Iterable[TopicPartition]) -> None:
        """Begin to commit positions, where that is the consumer's task."""
        offsets = self.positions(partitions) if self._options.auto_commit else {}
        if not offsets:
            return
        deadline = Deadline(self._options.request_timeout_ms)
        task = self._loop.create_task(self._commit_quietly(offsets, deadline))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---------------------------------------------------------------- what a member asks (GroupHost)

    @property
    def owned(self) -> frozenset[TopicPartition]:
        return self._assignment.partitions

    @property
    def idle_ms(self) -> float:
        progress, seen = self._assignment.progress, self._seen
        self._seen = progress
        if progress.items() - seen.items():
            self._poll_point.has_polled()  # records are taken without asking anyone
        return self._poll_point.idle_ms

    async def give_up(self, partitions: Iterable[TopicPartition]) -> None:
        going = frozenset(partitions)
        await self._poll_point.run(lambda: self._revoke(going, Deadline(self._options.request_timeout_ms)))

    async def lose(self) -> None:
        await self._poll_point.run(self._lose)

    async def take_on(self, partitions: Iterable[TopicPartition]) -> None:
        coming = frozenset(partitions)
        if coming:
            await self._poll_point.run(lambda: self._take_on(coming))

    async def until_polled(self) -> None:
        await self._poll_point.run(_nothing)

    def fail(self, error: BaseException, *, for_good: bool = False) -> None:
        self._poll_point.fail(error, for_good=for_good)

    # ---------------------------------------------------------------- at the poll point

    async def _revoke(
        self, partitions: frozenset[TopicPartition], deadline: Deadline, *, commits: bool = True
    ) -> None:
        if self._membership is not None and self._membership.loss is not None:
            await self._lose()  # they may be others' already
            return
        going = partitions & self.owned
        if not going:
            return
        if self._options.auto_commit and commits:
            await self._commit_quietly(self.positions(going), deadline)
        await self._tell_and_remove(self._callbacks.on_revoked, going)

    async def _lose(self) -> None:
        await self._tell_and_remove(self._callbacks.on_lost or self._callbacks.on_revoked, self.owned)

    async def _tell_and_remove(self, callback: Callback | None, going: frozenset[TopicPartition]) -> None:
        """A callback that is cancelled with its poll is called again by the next one; nothing goes before."""
        try:
            await _tell(callback, going)
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._remove(going)
            raise
        self._remove(going)

    async def _take_on(self, partitions: frozenset[TopicPartition]) -> None:
        self._assignment.add(sorted(partitions))
        self._assignment.refresh()
        await _tell(self._callbacks.on_assigned, partitions)

    def _remove(self, partitions: frozenset[TopicPartition]) -> None:
        self._assignment.remove(partitions)
        for partition in partitions:
            self._told.pop(partition, None)


async def _part(membership: Membership, deadline: Deadline) -> None:
    try:
        async with asyncio.timeout(max(deadline.remaining_ms, 1) / 1000):
            await membership.leave()
    except TimeoutError:
        pass  # the coordinator will miss its heartbeats


async def _tell(callback: Callback | None, partitions: frozenset[TopicPartition]) -> None:
    if callback is not None and partitions:
        result = callback(sorted(partitions))
        if inspect.isawaitable(result):
            await result


async def _nothing() -> None: ...
