"""Fetches records ahead of the caller, from wherever the partitions' leaders are."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from millstream.client.cluster import BACKOFF_MS, MAX_BACKOFF_MS, Cluster
from millstream.client.consumer_errors import BadRecords, NoOffset
from millstream.client.consumer_options import ConsumerOptions
from millstream.client.consumer_positions import Positions
from millstream.client.errors import NoSuchTopic, raise_for
from millstream.client.fetch_lane import Flight, Lane
from millstream.client.fetch_session import LAST_VERSION_WITH_NAMES, FetchSession, Wanted
from millstream.client.metadata import Node, Partition
from millstream.client.poll_point import PollPoint
from millstream.client.subscription import NOT_KNOWN, Assignment, PartitionState
from millstream.deadline import Deadline
from millstream.errors import (
    CorruptMessage,
    FetchSessionIdNotFound,
    InvalidFetchSessionEpoch,
    KafkaError,
    OffsetOutOfRange,
    RequestTimedOut,
    error_for,
)
from millstream.model import NO_UUID, TopicPartition
from millstream.protocol.consumer_kernel import RecordReader
from millstream.protocol.header import GOOD, REASONS, TRUNCATED
from millstream.protocol.kernel import scan_batches
from millstream.protocol.messages import FetchResponse

AHEAD = 2
"""How many answers of one partition may wait for the caller."""


class Fetcher:
    """Keeps records ready in an Assignment. One Fetch is out for a partition at a time.

    `pump` starts what can be started; it runs after everything that may have changed that. Errors that
    pass are tried again after a pause, those that do not are raised by the next poll.
    """

    def __init__(
        self,
        cluster: Cluster,
        lanes: Sequence[Lane],
        assignment: Assignment,
        positions: Positions,
        poll_point: PollPoint,
        options: ConsumerOptions,
    ) -> None:
        self._cluster = cluster
        self._lanes = lanes
        self._assignment = assignment
        self._positions = positions
        self._poll_point = poll_point
        self._options = options
        self._limits = options.limits
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_finding = False
        self._is_refreshing = False
        self._is_closed = False
        self._stale: set[TopicPartition] = set()
        self._failures: dict[int, int] = defaultdict(int)
        self._alarm: asyncio.TimerHandle | None = None

    async def close(self) -> None:
        """Give up what is under way."""
        self._is_closed = True
        if self._alarm is not None:
            self._alarm.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(
        self, work: Coroutine[Any, Any, None], on_end: Callable[[], None] | None = None
    ) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        if on_end is not None:
            task.add_done_callback(lambda _: on_end())
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._poll_point.fail(error)
        self.pump()

    # ---------------------------------------------------------------- what to start

    def pump(self) -> None:
        """Start every Fetch that can be started."""
        if self._is_closed:
            return
        now = self._loop.time()
        lost: list[PartitionState] = []
        stale: set[str] = set()
        later = now + 3600.0
        by_node: dict[int, dict[PartitionState, Partition]] = defaultdict(dict)
        has_room = self._assignment.buffered_bytes < self._options.buffer_bytes
        for state in self._assignment:
            if state.is_fetching or state.is_paused or len(state.readers) >= AHEAD:
                continue
            if state.retry_at > now:
                later = min(later, state.retry_at)
            elif state.fetch_position == NOT_KNOWN:
                lost.append(state)
            elif has_room:
                known = self._known(state.partition)
                if known is None:
                    stale.add(state.partition.topic)
                elif state.leader_epoch < known.leader_epoch and state.consumed_epoch >= 0:
                    state.is_fetching = True
                    self._start(self._check(state, known))
                else:
                    by_node[self._node_for(state, known, now)][state] = known
        if lost and not self._is_finding:
            self._is_finding = True
            self._start(self._find(lost))
        if stale and not self._is_refreshing:
            self._is_refreshing = True
            self._start(self._refresh(stale))
        for node, wanted in by_node.items():
            self._send(node, wanted)
        if later < now + 3600.0:
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm = self._loop.call_at(later, self.pump)

    def _send(self, node: int, wanted: dict[PartitionState, Partition]) -> None:
        """Start a Fetch in a free lane; where none is free, give up one that nobody waits for."""
        for lane in self._lanes:
            if node not in lane.flights:
                lane.flights[node] = flight = Flight(wanted)
                landed = partial(lane.landed, node, flight)
                flight.task = self._start(self._fetch(lane, node, flight), landed)
                return
        for lane in self._lanes:
            flight = lane.flights[node]
            if flight.task is not None and not flight.is_awaited:
                flight.task.cancel()  # pump is called again when it has ended
                return

    def _known(self, partition: TopicPartition) -> Partition | None:
        """A partition whose leader can be asked."""
        if partition in self._stale:
            return None
        metadata = self._cluster.metadata
        topic = metadata.topics.get(partition.topic)
        known = topic.partitions.get(partition.partition) if topic is not None else None
        return known if known is not None and known.leader in metadata.nodes else None

    def _node_for(self, state: PartitionState, known: Partition, now: float) -> int:
        """The leader, or the nearer replica that it named (KIP-392)."""
        preferred = state.preferred_replica
        if preferred >= 0 and now < state.preferred_until and preferred in self._cluster.metadata.nodes:
            return preferred
        state.preferred_replica = -1
        return known.leader

    # ---------------------------------------------------------------- positions and leaders

    async def _find(self, states: list[PartitionState]) -> None:
        turns = {state: state.turn for state in states}
        try:
            for error in await self._positions.find(states, self.pump):
                self._report(error)
        except KafkaError as error:
            self._report(error)
        finally:
            self._is_finding = False
            for state in states:
                if state.fetch_position == NOT_KNOWN and state.turn == turns[state]:
                    self._pause(state, BACKOFF_MS * 4)
            self._poll_point.wake()

    async def _refresh(self, topics: set[str]) -> None:
        try:
            await self._cluster.refresh(sorted(topics), Deadline(self._options.request_timeout_ms))
            self._stale = {partition for partition in self._stale if partition.topic not in topics}
        except KafkaError as error:
            self._report(error)
        finally:
            self._is_refreshing = False
        for state in self._assignment:
            if state.partition.topic in topics and self._known(state.partition) is None:
                self._pause(state)

    async def _check(self, state: PartitionState, known: Partition) -> None:
        turn = state.turn
        try:
            place = await self._positions.check(state, known.leader, known.leader_epoch)
            state.leader_epoch = known.leader_epoch
        except KafkaError as error:
            self._pause(state)
            self._mistrust(state.partition)
            self._report(error)
            place = None
        except BaseException:
            self._checked(state, turn)
            raise
        if place is None:
            self._checked(state, turn)
        else:
            await self._poll_point.run(partial(self._go_back, state, turn, place))

    @staticmethod
    def _checked(state: PartitionState, turn: int) -> None:
        """Let a partition be fetched, unless a seek did and a Fetch may be out."""
        if state.turn == turn:
            state.is_fetching = False

    async def _go_back(self, state: PartitionState, turn: int, place: tuple[int, int]) -> None:
        """Read anew from where the logs differ: between two polls, as the caller may be reading."""
        if state.is_live and state.turn == turn:
            self._assignment.seek(state.partition, *place)

    def _report(self, error: KafkaError) -> None:
        """Errors that pass are met again or not; a topic may yet be created."""
        if not error.retriable and not isinstance(error, NoSuchTopic):
            self._poll_point.fail(error)

    def _pause(self, state: PartitionState, pause_ms: float = BACKOFF_MS * 2) -> None:
        state.retry_at = self._loop.time() + pause_ms / 1000

    def _mistrust(self, partition: TopicPartition) -> None:
        """Ask anew who leads a partition; others of its topic are read on meanwhile."""
        self._stale.add(partition)
        self._cluster.forget(partition.topic)

    # ---------------------------------------------------------------- one Fetch

    async def _fetch(self, lane: Lane, node: int, flight: Flight) -> None:
        session = lane.sessions.setdefault(node, FetchSession())
        try:
            response = await self._ask(lane, node, session, flight)
        except (FetchSessionIdNotFound, InvalidFetchSessionEpoch):
            session.reset()  # the broker has restarted, or needed the room
            return
        except KafkaError as error:
            session.reset()
            if isinstance(error, RequestTimedOut):
                self._cluster.hang_up(node)  # or it would be asked who leads instead
            self._failures[node] += 1
            pause_ms = min(BACKOFF_MS * 2 ** min(self._failures[node], 8), MAX_BACKOFF_MS)
            for state in flight.wanted:
                self._pause(state, pause_ms)
                state.preferred_replica = -1
                self._mistrust(state.partition)
            self._report(error)
            return
        except BaseException:
            session.reset()
            raise
        finally:
            lane.landed(node, flight)
        self._failures.pop(node, None)
        for topic in response.responses:
            name = session.name_of(topic)
            for part in topic.partitions:
                asked = flight.state(TopicPartition(name, part.partition_index))
                if asked is not None:
                    self._take(asked, part, response.node_endpoints)
        self._poll_point.wake()

    async def _ask(self, lane: Lane, node: int, session: FetchSession, flight: Flight) -> FetchResponse:
        asked: dict[TopicPartition, Wanted] = {}
        for state, known in flight.wanted.items():
            state.leader_epoch = max(state.leader_epoch, known.leader_epoch)
            topic = self._cluster.metadata.topics.get(state.partition.topic)
            topic_id = NO_UUID if topic is None else topic.id
            asked[state.partition] = Wanted(topic_id, flight.offsets[state.partition], known.leader_epoch)
        request = session.request(asked, self._limits, self._options.isolation, self._options.rack or "")
        deadline = Deadline(self._options.request_timeout_ms + self._limits.max_wait_ms)
        connection = await lane.cluster.connection(node, deadline)
        try:
            response = await connection.request(
                request,
                FetchResponse,
                deadline.remaining_ms,
                max_version=LAST_VERSION_WITH_NAMES if session.has_names_only else None,
            )
        except asyncio.CancelledError:
            await connection.close()  # else the next request would wait behind this one
            raise
        session.answered(response)
        raise_for(response.error_code, None, f"a fetch from broker {node}")
        return response

    def _take(
        self,
        state: PartitionState,
        part: FetchResponse.PartitionData,
        endpoints: Sequence[FetchResponse.NodeEndpoint],
    ) -> None:
        if part.error_code:
            if part.current_leader is None or not self._follow(state, part.current_leader, endpoints):
                kind = error_for(part.error_code)
                self._failed(state, kind(f"partition {state.partition}: {kind().message}"))
            return
        state.high_watermark = part.high_watermark
        state.last_stable_offset = part.last_stable_offset
        state.log_start_offset = part.log_start_offset
        if part.preferred_read_replica >= 0:
            state.preferred_replica = part.preferred_read_replica
            state.preferred_until = self._loop.time() + self._options.metadata_max_age_ms / 1000
            if part.preferred_read_replica not in self._cluster.metadata.nodes:  # it came after we asked
                self._pause(state)
                self._mistrust(state.partition)
        if not part.records:
            return
        view = memoryview(part.records)
        scan = scan_batches(view, 0, len(view), True)
        if scan.batches == 0:
            self._pause(state)
            if scan.error not in (GOOD, TRUNCATED):
                where = f"partition {state.partition} at offset {state.fetch_position}"
                self._poll_point.fail(BadRecords(f"{where}: {REASONS[scan.error]}"))
            return
        aborted = [(each.producer_id, each.first_offset) for each in part.aborted_transactions or ()]
        reader = RecordReader(
            state.partition.topic,
            state.partition.partition,
            view[: scan.position],
            state.fetch_position,
            max(state.fetch_position, scan.last_offset + 1),
            aborted if self._options.isolation else None,
            self._options.key_of,
            self._options.value_of,
            state,
        )
        self._assignment.put(state, reader)

    def _follow(
        self,
        state: PartitionState,
        leader: FetchResponse.LeaderIdAndEpoch,
        endpoints: Sequence[FetchResponse.NodeEndpoint],
    ) -> bool:
        """Turn to the leader that an answer names (KIP-951) at once; false if that is no news."""
        nodes = [Node(each.node_id, each.host, each.port, each.rack) for each in endpoints]
        metadata, (topic, index) = self._cluster.metadata, state.partition
        if not metadata.take_leader(topic, index, leader.leader_id, leader.leader_epoch, nodes):
            return False
        state.preferred_replica = -1
        return True

    def _failed(self, state: PartitionState, error: KafkaError) -> None:
        if isinstance(error, CorruptMessage):
            self._pause(state, MAX_BACKOFF_MS)
            where = f"partition {state.partition} at offset {state.fetch_position}"
            self._poll_point.fail(BadRecords(f"{where}: the broker found it to be bad"))
        elif not isinstance(error, OffsetOutOfRange):
            state.preferred_replica = -1
            self._pause(state)
            self._mistrust(state.partition)
            self._report(error)
        elif state.preferred_replica >= 0:
            state.preferred_replica = -1  # the leader may have what this replica has not
            self._pause(state)  # it may send us back at once
        elif state.readers:
            self._pause(state)  # what was read before this offset comes first
        elif self._options.reset_to is None:
            self._pause(state, MAX_BACKOFF_MS)
            self._poll_point.fail(
                NoOffset(
                    f"partition {state.partition} has no record at offset {state.fetch_position}, "
                    'and offset_reset is "none"',
                    (state.partition,),
                )
            )
        else:
            state.seek_by(self._options.reset_to)
