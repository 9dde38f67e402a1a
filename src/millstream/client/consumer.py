"""AsyncConsumer: reads the records of topics and partitions, alone or as a member of a group."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from random import Random
from re import Pattern
from types import TracebackType
from typing import TYPE_CHECKING, Any

from millstream.client.assignors import COOPERATIVE_STICKY
from millstream.client.cluster import Cluster
from millstream.client.consumer_errors import NotSubscribed
from millstream.client.consumer_flow import RecordFlow
from millstream.client.consumer_group import Callbacks, ConsumerGroup
from millstream.client.consumer_options import ConsumerOptions, GroupProtocol, IsolationLevel, OffsetReset
from millstream.client.consumer_positions import Positions
from millstream.client.consumer_queries import ConsumerQueries
from millstream.client.face import Closed
from millstream.client.fetch_lane import Lane
from millstream.client.fetcher import Fetcher
from millstream.client.group_host import Callback, Subscription
from millstream.client.group_metadata import GroupMetadata
from millstream.client.group_offsets import Committed, fetch_committed
from millstream.client.metadata import check_topic
from millstream.client.offsets import EARLIEST, LATEST
from millstream.client.poll_point import PollPoint
from millstream.client.record import ReadBatch
from millstream.client.serializers import Deserializer, Format, deserializer_of
from millstream.client.subscription import NOT_KNOWN, Assignment, PartitionState
from millstream.client.unclosed import MustClose
from millstream.deadline import Deadline
from millstream.errors import RequestTimedOut
from millstream.model import TopicPartition
from millstream.protocol.consumer_kernel import Record

if TYPE_CHECKING:
    import pyarrow

Offsets = Mapping[TopicPartition, "int | Committed"]


class AsyncConsumer(ConsumerQueries, MustClose):
    """Reads records. It belongs to one event loop and one task; make it inside a coroutine.

        async with AsyncConsumer("localhost:9092", group="billing") as consumer:
            consumer.subscribe("orders")
            async for record in consumer:
                ...

    Records are fetched ahead in the background. What a group takes away or gives, and commits that the
    consumer does by itself, wait for the moment at which the caller asks for more records: until then
    it may still work on those it got. Every call that asks the cluster has a `timeout` in seconds.
    """

    def __init__(
        self,
        bootstrap: str | list[str] = "localhost:9092",
        *,
        random: Random | None = None,
        group: str | None = None,
        group_instance_id: str | None = None,
        group_protocol: GroupProtocol = "classic",
        assignors: Iterable[str] = (COOPERATIVE_STICKY,),
        server_assignor: str | None = None,
        client_id: str = "millstream",
        rack: str | None = None,
        deserializer: Format | Deserializer | None = None,
        key_deserializer: Format | Deserializer | None = None,
        offset_reset: OffsetReset = "latest",
        isolation_level: IsolationLevel = "read_uncommitted",
        auto_commit: bool = True,
        auto_commit_interval_ms: int = 5_000,
        session_timeout_ms: int = 45_000,
        heartbeat_interval_ms: int = 3_000,
        max_poll_interval_ms: int = 300_000,
        fetch_min_bytes: int = 1,
        fetch_max_wait_ms: int = 500,
        fetch_max_bytes: int = 16 * 1024 * 1024,
        partition_max_bytes: int = 1024 * 1024,
        buffer_bytes: int = 32 * 1024 * 1024,
        request_timeout_ms: int = 30_000,
        metadata_max_age_ms: int = 300_000,
    ) -> None:
        self._options = options = ConsumerOptions(
            group=group,
            group_instance_id=group_instance_id,
            group_protocol=group_protocol,
            assignors=tuple(assignors),
            server_assignor=server_assignor,
            rack=rack,
            offset_reset=offset_reset,
            isolation_level=isolation_level,
            auto_commit=auto_commit and group is not None,
            auto_commit_interval_ms=auto_commit_interval_ms,
            session_timeout_ms=session_timeout_ms,
            heartbeat_interval_ms=heartbeat_interval_ms,
            max_poll_interval_ms=max_poll_interval_ms,
            fetch_min_bytes=fetch_min_bytes,
            fetch_max_wait_ms=fetch_max_wait_ms,
            fetch_max_bytes=fetch_max_bytes,
            partition_max_bytes=partition_max_bytes,
            buffer_bytes=buffer_bytes,
            request_timeout_ms=request_timeout_ms,
            metadata_max_age_ms=metadata_max_age_ms,
            key_of=deserializer_of(key_deserializer),
            value_of=deserializer_of(deserializer),
        )
        self._loop = asyncio.get_running_loop()
        # One connection to a broker for each kind of request that may keep others waiting.
        self._clusters = [
            Cluster(bootstrap, client_id=client_id, request_timeout_ms=request_timeout_ms, random=random)
            for _ in range(4)
        ]
        self._cluster, self._coordinators, *fetching = self._clusters
        for cluster in self._clusters:
            cluster.metadata = self._cluster.metadata
        self._poll_point = PollPoint()
        self._assignment = Assignment(self._wake_fetcher, self._poll_point.interrupt)
        self._fetcher = Fetcher(
            self._cluster,
            [Lane(cluster) for cluster in fetching],
            self._assignment,
            Positions(self._cluster, options),
            self._poll_point,
            options,
        )
        self._group = (
            ConsumerGroup(
                group, self._cluster, self._coordinators, self._assignment, self._poll_point, options
            )
            if group is not None
            else None
        )
        self._flow = RecordFlow(self._assignment, self._poll_point)
        self._subscription: Subscription | None = None
        self._commits: set[asyncio.Task[None]] = set()
        self._will_pump = False
        self._is_closed = False
        self._is_over = False
        self._holds()

    def _let_go(self) -> None:
        for cluster in self._clusters:
            cluster.abandon()

    async def _vanish(self) -> None:
        """Close when nobody is left to be called back."""
        if self._group is not None:
            self._group.forget_callbacks()
        await self.close(commits=False)

    async def __aenter__(self) -> AsyncConsumer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(commits=error is None)

    async def close(self, timeout: float | None = None, *, commits: bool = True) -> None:
        """Commit if that is the consumer's task, leave the group, close the connections.

        A block that is left by an error commits nothing more: the record at hand may not be done.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._released()
        self._flow.end()
        deadline = self._deadline(timeout)
        try:
            if self._commits:  # those that the caller has begun
                await asyncio.wait(self._commits, timeout=deadline.remaining)
            if self._group is not None:
                await self._group.close(deadline, commits=commits)
        finally:
            self._is_over = True
            try:
                await self._fetcher.close()
            finally:
                await asyncio.gather(*(cluster.close() for cluster in self._clusters))

    def _wake_fetcher(self) -> None:
        """Also from the thread of a caller that blocks."""
        if not self._will_pump and not self._is_closed:
            try:
                self._will_pump = True
                self._loop.call_soon_threadsafe(self._pump)
            except BaseException:  # a signal's handler raised: the next one is to call again
                self._will_pump = False
                raise

    def _pump(self) -> None:
        self._will_pump = False
        self._assignment.has_room_again = False
        self._fetcher.pump()

    # ---------------------------------------------------------------- what to read

    def subscribe(
        self,
        topics: str | Pattern[str] | Iterable[str],
        *,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        """Read topics together with the other members of the group: a name, names, or a pattern.

        A pattern is met by whole names, also of topics that come later. The callbacks, functions or
        coroutine functions, are called within a poll with a list of partitions: `on_assigned` before
        the first record of them, `on_revoked` before they are given up, and `on_lost` (if there is
        none, `on_revoked`) where they may be somebody else's already.
        """
        self._check_open()
        if self._group is None:
            raise NotSubscribed("to subscribe, a consumer needs a group; to read by itself, assign() it")
        if self._subscription is None and len(self._assignment):
            raise NotSubscribed("partitions were assigned by hand: unsubscribe() first")
        if isinstance(topics, Pattern):
            subscription = Subscription(pattern=topics)
        else:
            subscription = Subscription(frozenset([topics] if isinstance(topics, str) else topics))
            for topic in subscription.topics:
                check_topic(topic)
            if not subscription.topics:
                raise ValueError("no topic to subscribe to: unsubscribe() to read nothing")
        self._group.subscribe(subscription, Callbacks(on_assigned, on_revoked, on_lost))
        self._subscription = subscription

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read exactly these partitions, whoever else does. Those that stay keep their positions.

        Those that are given up are committed, where that is the consumer's task.
        """
        self._check_open()
        if self._subscription is not None:
            raise NotSubscribed("topics are subscribed to: unsubscribe() first")
        wanted = {TopicPartition(*partition) for partition in partitions}
        for topic, index in wanted:
            check_topic(topic)
            if index < 0:
                raise ValueError(f"a partition's number is not negative, but {index} was given")
        given_up = self._assignment.partitions - wanted
        if self._group is not None:
            self._group.commit_soon(given_up)
        self._assignment.remove(given_up)
        self._assignment.add(sorted(wanted))
        self._assignment.refresh()

    async def unsubscribe(self, timeout: float | None = None) -> None:
        """Read nothing any more; leave the group."""
        self._check_open()
        deadline = self._deadline(timeout)
        try:
            if self._group is not None and self._subscription is not None:
                await self._group.leave(deadline)
        finally:  # it has left, also if it was not waited for
            self._subscription = None
            self._assignment.remove(self._assignment.partitions)

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are read now."""
        return self._assignment.partitions

    @property
    def subscription(self) -> frozenset[str]:
        """The topics that are subscribed to now."""
        subscription = self._subscription
        return frozenset() if subscription is None else subscription.of(self._cluster.metadata)

    def pause(self, *partitions: tuple[str, int]) -> None:
        """Hand out no records of these partitions (all, where none are named) until they are resumed."""
        self._set_paused(partitions, True)

    def resume(self, *partitions: tuple[str, int]) -> None:
        """Go on with partitions that were paused (all, where none are named)."""
        self._set_paused(partitions, False)

    def _set_paused(self, partitions: Iterable[tuple[str, int]], is_paused: bool) -> None:
        for state in self._states(partitions):
            state.is_paused = is_paused
        self._assignment.refresh()

    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are paused."""
        return frozenset(state.partition for state in self._assignment if state.is_paused)

    def _states(self, partitions: Iterable[tuple[str, int]]) -> list[PartitionState]:
        return [self._assignment[TopicPartition(*each)] for each in partitions] or list(self._assignment)

    # ---------------------------------------------------------------- records

    async def poll(self, max_records: int = 500, timeout: float = 1.0) -> list[Record]:
        """The next records, at most so many; an empty list if none come within `timeout` seconds."""
        self._check_open()
        check_max_records(max_records)
        return await self._flow.poll(max_records, Deadline(timeout * 1000))

    def __aiter__(self) -> AsyncConsumer:
        return self

    async def __anext__(self) -> Record:
        record = await self._flow.next()
        if record is None:
            raise StopAsyncIteration
        return record

    async def poll_arrow(self, timeout: float = 1.0) -> pyarrow.RecordBatch:
        """The next records by the column; a batch without rows if none come within `timeout` seconds.

        It holds what one Fetch brought from one partition, or from several where that is little. Keys
        and values are bytes: deserialisers are not asked. Needs the extra `millstream[arrow]`.
        """
        self._check_open()
        return await self._flow.poll_arrow(Deadline(timeout * 1000))

    async def poll_batches(self, timeout: float = 1.0) -> list[ReadBatch]:
        """The next records by the batch, with what its header tells; none come within `timeout`: no batch."""
        self._check_open()
        return await self._flow.poll_batches(Deadline(timeout * 1000))

    # ---------------------------------------------------------------- positions

    def seek(self, partition: tuple[str, int], offset: int) -> None:
        """Go on at an offset of a partition."""
        if offset < 0:
            raise ValueError(f"an offset is not negative, but {offset} was given")
        self._assignment.seek(TopicPartition(*partition), offset)

    def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        """Go on at the first record of partitions; of all, where none are named."""
        self._assignment.seek_by([state.partition for state in self._states(partitions)], EARLIEST)

    def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        """Go on behind the last record of partitions; of all, where none are named."""
        self._assignment.seek_by([state.partition for state in self._states(partitions)], LATEST)

    def seek_to_time(self, timestamp_ms: int, *partitions: tuple[str, int]) -> None:
        """Go on at the first record that is not older, at the end where there is none."""
        if timestamp_ms < 0:
            raise ValueError(f"a time is not negative, but {timestamp_ms} was given")
        self._assignment.seek_by([state.partition for state in self._states(partitions)], timestamp_ms)

    def seek_to_committed(self, *partitions: tuple[str, int]) -> None:
        """Go on where the group has committed, as after a transaction that was aborted."""
        self._grouped()
        self._assignment.seek_by([state.partition for state in self._states(partitions)], None)

    async def position(self, partition: tuple[str, int], timeout: float | None = None) -> int:
        """The offset of the next record that a poll gives of a partition."""
        deadline = self._deadline(timeout)
        while True:
            state = self._assignment[TopicPartition(*partition)]
            if state.position != NOT_KNOWN:
                return state.position
            if deadline.has_passed:
                raise RequestTimedOut(f"no position in {state.partition} in {deadline.timeout_ms:.0f} ms")
            await asyncio.sleep(0.002)

    async def lag(self, timeout: float | None = None) -> dict[TopicPartition, int]:
        """How many offsets lie between each position and the end that this consumer may read."""
        deadline = self._deadline(timeout)
        found = {state.partition: self._end_of(state) for state in self._assignment}
        unknown = [partition for partition, end in found.items() if end < 0]
        if unknown:
            found |= await self.end_offsets(unknown, deadline.remaining_ms / 1000)
        lags = {}
        for partition, end in found.items():
            lags[partition] = max(0, end - await self.position(partition, deadline.remaining_ms / 1000))
        return lags

    def _end_of(self, state: PartitionState) -> int:
        return state.last_stable_offset if self._options.isolation else state.high_watermark

    # ---------------------------------------------------------------- commits

    async def commit(self, offsets: Offsets | None = None, timeout: float | None = None) -> None:
        """Commit offsets, or all positions, and wait until that is done."""
        await self._grouped().commit(self._committable(offsets), self._deadline(timeout))

    def commit_async(self, offsets: Offsets | None = None) -> asyncio.Task[None]:
        """Begin to commit offsets, or all positions; await the task to learn how it ended."""
        work = self._grouped().commit(self._committable(offsets), self._deadline(None))
        task = self._loop.create_task(work)
        self._commits.add(task)
        task.add_done_callback(self._commits.discard)
        task.add_done_callback(_take_exception)
        return task

    async def committed(
        self, partitions: Iterable[tuple[str, int]] | None = None, timeout: float | None = None
    ) -> dict[TopicPartition, Committed]:
        """What the group has committed in partitions (those assigned, where none are named)."""
        self._grouped()
        wanted = self.assignment if partitions is None else [TopicPartition(*each) for each in partitions]
        group = self._options.group or ""
        return await fetch_committed(self._cluster, group, self._deadline(timeout), partitions=wanted)

    @property
    def group_metadata(self) -> GroupMetadata:
        """Who this consumer is to its group: for `producer.send_offsets`."""
        return self._grouped().identity

    def _grouped(self) -> ConsumerGroup:
        if self._is_over:  # until then, callbacks may commit
            raise Closed("the consumer was closed")
        if self._group is None:
            raise NotSubscribed("the consumer has no group")
        return self._group

    def _committable(self, offsets: Offsets | None) -> dict[TopicPartition, Committed]:
        if offsets is None:
            return self._grouped().positions(self.assignment)
        return {
            TopicPartition(*partition): each if isinstance(each, Committed) else Committed(each, -1, "")
            for partition, each in offsets.items()
        }


def check_max_records(max_records: int) -> None:
    if max_records < 0:
        raise ValueError(f"max_records is not negative, but {max_records} was given")


def _take_exception(task: asyncio.Task[Any]) -> None:
    """A failed commit is reported to whoever waits for it; where nobody does, it is no news."""
    if not task.cancelled():
        task.exception()
