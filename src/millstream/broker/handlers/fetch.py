"""Fetch: records out of partitions, as they lie on disk."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable

from millstream.broker.fetch_session import FetchPosition, FetchSession, PartitionKey
from millstream.broker.fetch_turns import FetchTurns
from millstream.broker.new_leaders import WRONG_BROKER, NewLeaders
from millstream.broker.router import Context, handles
from millstream.cluster.partition import Partition
from millstream.cluster.waiters import ByteWaiter
from millstream.errors import (
    ClusterAuthorizationFailed,
    KafkaError,
    KafkaStorageError,
    NotLeaderOrFollower,
    OffsetOutOfRange,
)
from millstream.pauses import Pauses
from millstream.protocol.messages import FetchRequest, FetchResponse
from millstream.storage.reading import Slice

READ_COMMITTED = 1
CONSUMER = -1

LEADERS_SINCE = 16
"""From this version on an answer says who leads instead of this broker."""

IDS_SINCE = 13
"""From this version on topics have their ids instead of names."""

RACKS_SINCE = 11
"""From this version on a consumer says in which rack it is, and may be sent to another replica."""

STORAGE_ERROR_SINCE = 6
"""Before this version clients know no KAFKA_STORAGE_ERROR."""

MAX_LARGE_WAITING = 16
"""How many large requests may wait for records at a time; another one is answered with what there is."""
MAX_LARGE_WAIT_S = 30.0
"""How long each of them may keep its place."""
SURPLUS_THROTTLE_MS = 100
"""How long those beyond should pause before they ask again."""

FEW_PARTITIONS = 64
"""Short answers are for as many; with more they are longer, as every one looks at all partitions."""

MANY_PARTITIONS = 5000
"""A fetch of more than these, which takes tens of milliseconds, gives others their turns meanwhile."""

PartitionData = FetchResponse.PartitionData


@handles(FetchRequest, large_bytes=1 << 20)
def fetch(ctx: Context, req: FetchRequest) -> FetchResponse | Awaitable[FetchResponse]:
    """v4 isolation level; v5 log start offset; v6 KAFKA_STORAGE_ERROR (KIP-112); v7 sessions (KIP-227);
    v9 leader epochs (KIP-320); v11 rack (KIP-392); v12 flexible, divergence (KIP-595); v13 topic ids
    (KIP-516); v15 replica state (KIP-903); v17 directory ids; v18 high watermark of the follower.

    Answers at once if there is enough, or an error; else parks until there is, or the wait is over.
    """
    replica_id = req.replica_id if req.replica_state is None else req.replica_state.replica_id
    if replica_id != CONSUMER:
        sessions = ctx.broker.replicas.sessions
        if not ctx.is_internal or sessions is None or req.replica_state is None:
            raise ClusterAuthorizationFailed("replicas fetch on the brokers' own listener")
        return sessions.fetch(req)
    session, is_incremental, positions = ctx.broker.fetch_sessions.begin(req, ctx.version)
    return _Fetch(ctx, req, session, is_incremental, positions).begin()


class _Found:
    """What one pass over the partitions of a fetch has read so far."""

    __slots__ = ("answers", "has_error", "is_cut", "partitions", "read_bytes")

    def __init__(self) -> None:
        self.answers: list[tuple[FetchPosition, PartitionData]] = []
        self.partitions: list[tuple[Partition, PartitionData, int]] = []
        """Those that could be read, what they answered, and how many offsets that covers."""
        self.read_bytes = 0
        self.has_error = False
        self.is_cut = False
        """Whether partitions had to wait that the client has room for."""

    def add(self, position: FetchPosition, data: PartitionData) -> None:
        self.answers.append((position, data))
        if data.records:
            self.read_bytes += len(data.records)
        if data.error_code or data.diverging_epoch is not None or data.preferred_read_replica >= 0:
            self.has_error = True


class _Fetch:
    """One fetch on its way. While it waits it holds no records: what has come is read when it ends."""

    def __init__(
        self,
        ctx: Context,
        req: FetchRequest,
        session: FetchSession | None,
        is_incremental: bool,
        positions: dict[PartitionKey, FetchPosition],
    ) -> None:
        self._ctx = ctx
        self._broker = ctx.broker
        self._version = ctx.version
        self._session = session
        self._is_incremental = is_incremental
        self._asked = list(positions.values())
        self._positions = self._asked
        """In the order in which they are read."""
        turns = ctx.connection.fetch_turns
        if isinstance(turns, FetchTurns) and not is_incremental:  # sessions have an order of their own
            self._positions = turns.ordered(positions)
        self._max_bytes = req.max_bytes
        self._min_bytes = min(req.min_bytes, req.max_bytes)
        self._full_bytes = req.max_bytes
        if ctx.connection.is_local:
            short_bytes = ctx.broker.local_fetch_bytes * max(FEW_PARTITIONS, len(positions)) // FEW_PARTITIONS
            self._full_bytes = max(self._min_bytes, short_bytes)
        self._max_wait_seconds = max(req.max_wait_ms, 0) / 1000
        if ctx.turn is not None:
            self._max_wait_seconds = min(self._max_wait_seconds, MAX_LARGE_WAIT_S)
        self._is_committed_only = req.isolation_level == READ_COMMITTED
        self._rack = ""
        self._find = ctx.broker.replicas.leader
        if ctx.broker.is_rack_aware and ctx.version >= RACKS_SINCE:
            self._rack = req.rack_id
            self._find = ctx.broker.replicas.replica

    def begin(self) -> FetchResponse | Awaitable[FetchResponse]:
        if len(self._positions) > MANY_PARTITIONS:
            return self._begin_slowly()
        try:
            found = self._read()
        except BlockingIOError:
            return self._begin_slowly()
        if self._is_enough(found):
            return self._response(found)
        if not self._may_park:
            return self._surplus(found)
        return self._park(found)

    async def _begin_slowly(self) -> FetchResponse:
        found = await self._read_slowly()
        if self._is_enough(found):
            return self._response(found)
        if not self._may_park:
            return self._surplus(found)
        parked = self._park(found)
        del found  # with its records, which nobody counts while it waits
        return await parked

    def _is_enough(self, found: _Found) -> bool:
        return (
            found.has_error
            or found.read_bytes >= self._min_bytes
            or self._max_wait_seconds <= 0
            or not self._positions
            or self._broker.is_stopping
        )

    @property
    def _may_park(self) -> bool:
        """Whether it may wait: of the large ones, each of which holds megabytes meanwhile, only some."""
        return self._ctx.turn is None or self._broker.large_fetches < MAX_LARGE_WAITING

    # Reading

    def _read(self) -> _Found:
        """Read every partition from memory. Raises BlockingIOError where the disk is needed."""
        found = _Found()
        budget = min(self._max_bytes, self._broker.max_fetch_bytes())
        for position in self._positions:
            found.add(position, self._read_one(found, position, budget, nowait=True))
        return found

    async def _read_slowly(self) -> _Found:
        """The same with what is not in memory read by threads, and with pauses, so that the loop goes on."""
        loop, broker, pauses = asyncio.get_running_loop(), self._broker, Pauses()
        found = _Found()
        try:
            for position in self._positions:
                if pauses.is_due:
                    await pauses.take()
                held_bytes = found.read_bytes
                budget = min(self._max_bytes, broker.max_fetch_bytes(held_bytes))
                try:
                    data = self._read_one(found, position, budget, nowait=True)
                except BlockingIOError:
                    threads = self._partition(position).cold_reads
                    data = await loop.run_in_executor(threads, self._read_one, found, position, budget, False)
                found.add(position, data)
                broker.cold_bytes += found.read_bytes - held_bytes  # others begin meanwhile
        finally:
            broker.cold_bytes -= found.read_bytes
        return found

    def _read_one(self, found: _Found, position: FetchPosition, budget: int, nowait: bool) -> PartitionData:
        """What one partition answers; its errors are values."""
        data = PartitionData(partition_index=position.index, high_watermark=-1, records=b"")
        try:
            partition = self._partition(position)
            log = partition.log
            count = 0
            if self._rack and partition.leadership is not None:
                brokers, wanted = self._broker.metadata.brokers, position.fetch_offset
                data.preferred_read_replica = partition.leadership.nearest(self._rack, brokers, wanted)
            if position.last_fetched_epoch >= 0:
                epoch, end_offset = log.epochs.end_offset_for(position.last_fetched_epoch, log.end_offset)
                if epoch < 0:
                    _check_leads(partition)
                    raise OffsetOutOfRange(f"the epoch {position.last_fetched_epoch} is not known here")
                if epoch < position.last_fetched_epoch or end_offset < position.fetch_offset:
                    _check_leads(partition)
                    data.diverging_epoch = FetchResponse.EpochEndOffset(epoch=epoch, end_offset=end_offset)
            if data.diverging_epoch is None and data.preferred_read_replica < 0:
                is_full = found.read_bytes >= self._full_bytes
                found.is_cut |= is_full and found.read_bytes < budget
                try:
                    read = partition.read(
                        position.fetch_offset,
                        0 if is_full else min(position.max_bytes, max(budget - found.read_bytes, 0)),
                        is_committed_only=self._is_committed_only,
                        min_one=not found.read_bytes and (budget > 0 or not self._broker.unsent.is_excessive),
                        nowait=nowait,
                    )
                except OffsetOutOfRange:
                    _check_leads(partition)
                    data.log_start_offset = log.start_offset
                    raise
                if self._is_committed_only:
                    data.aborted_transactions = _aborted(partition, read, nowait)
                data.records = read.data
                count = read.next_offset - read.first_offset
            data.high_watermark = partition.high_watermark
            data.last_stable_offset = partition.last_stable_offset
            data.log_start_offset = log.start_offset
            found.partitions.append((partition, data, count))
        except KafkaError as error:
            is_known = self._version >= STORAGE_ERROR_SINCE or not isinstance(error, KafkaStorageError)
            data.error_code = error.code if is_known else NotLeaderOrFollower.code
            data.records = b""
            self._broker.report_fetch_error(error)
        return data

    def _partition(self, position: FetchPosition) -> Partition:
        if self._version >= IDS_SINCE:
            name = self._broker.metadata.topic_by_id(position.topic_id).name
        else:
            name = position.topic
        return self._find(name, position.index, position.current_leader_epoch)

    # Waiting

    def _park(self, found: _Found) -> asyncio.Future[FetchResponse]:
        """A future that ends when enough has come, something went wrong, or the wait is over."""
        if self._ctx.turn is not None:
            self._broker.large_fetches += 1
            self._ctx.turn.release()
        loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[FetchResponse] = loop.create_future()
        self._answer.add_done_callback(self._leave)
        self._timer = loop.call_later(self._max_wait_seconds, self._time_is_up)
        self._watch(found)
        return self._answer

    def _watch(self, found: _Found) -> None:
        self._waiter = ByteWaiter(self._min_bytes - found.read_bytes, self._woken)
        self._watched = [partition for partition, _, _ in found.partitions]
        for partition, data, _ in found.partitions:
            partition.watch(self._waiter)
            if partition.high_watermark != data.high_watermark:
                self._waiter.wake()  # it came while others were read

    def _unwatch(self) -> None:
        for partition in self._watched:
            partition.unwatch(self._waiter)
        self._watched = []

    def _leave(self, _: object) -> None:
        self._timer.cancel()
        self._unwatch()
        if self._ctx.turn is not None:
            self._broker.large_fetches -= 1

    def _woken(self) -> None:
        """Bytes came: enough of them, or of a kind this client may not see yet."""
        if self._answer.done():
            return
        self._unwatch()
        if len(self._positions) > MANY_PARTITIONS:
            self._end_later()
            return
        try:
            found = self._read()
        except BlockingIOError:
            self._end_later()
            return
        except Exception as error:
            self._answer.set_exception(error)
            return
        if self._is_enough(found) or found.read_bytes > 0:
            self._answer.set_result(self._response(found))
        else:
            self._watch(found)

    def _time_is_up(self) -> None:
        self._max_wait_seconds = 0.0
        self._woken()

    def _end_later(self) -> None:
        self._timer.cancel()
        asyncio.ensure_future(self._end_slowly())  # noqa: RUF006 (it settles the answer, whatever happens)

    async def _end_slowly(self) -> None:
        turn = self._ctx.turn
        try:
            if turn is not None:
                await turn.take()
            if self._answer.done():  # the client has left
                return
            response = self._response(await self._read_slowly())
        except Exception as error:
            if not self._answer.done():
                self._answer.set_exception(error)
        else:
            if not self._answer.done():
                self._answer.set_result(response)
        finally:
            if turn is not None:
                turn.release()

    # Answering

    def _response(self, found: _Found) -> FetchResponse:
        for partition, data, count in found.partitions:
            if data.records:
                partition.counters.bytes_out.value += len(data.records)
                partition.counters.records_out.value += count
        session = self._session
        self._take_turns(found)
        response = FetchResponse(
            session_id=session.session_id if session else 0,
            responses=list(_by_topic(self._told(found))),
        )
        if found.has_error and self._version >= LEADERS_SINCE:
            self._tell_leaders(found, response)
        return response

    def _surplus(self, found: _Found) -> FetchResponse:
        response = self._response(found)
        response.throttle_time_ms = min(SURPLUS_THROTTLE_MS, int(self._max_wait_seconds * 1000))
        return response

    def _take_turns(self, found: _Found) -> None:
        """Remember who was served, where others had to wait; tell it all in the order of the request."""
        connection = self._ctx.connection
        turns = connection.fetch_turns
        if found.is_cut:
            if not isinstance(turns, FetchTurns):
                turns = connection.fetch_turns = FetchTurns()
            by_id = self._version >= IDS_SINCE
            turns.cut(
                (position.topic_id if by_id else position.topic, position.index)
                for position, data in found.answers
                if data.records
            )
        elif isinstance(turns, FetchTurns):
            turns.whole()
        if self._positions is not self._asked:
            places = {id(position): place for place, position in enumerate(self._asked)}
            found.answers.sort(key=lambda answer: places[id(answer[0])])

    def _tell_leaders(self, found: _Found, response: FetchResponse) -> None:
        leaders = NewLeaders(self._ctx)
        for position, data in found.answers:
            if data.error_code in WRONG_BROKER:
                topic = self._broker.metadata.find_by_id(position.topic_id)
                leader = None if topic is None else leaders.find(topic.name, position.index)
                if leader is not None:
                    data.current_leader = FetchResponse.LeaderIdAndEpoch(
                        leader_id=leader.leader_id, leader_epoch=leader.leader_epoch
                    )
        response.node_endpoints = [
            FetchResponse.NodeEndpoint(node_id=node_id, host=host, port=port, rack=rack)
            for node_id, host, port, rack in leaders.endpoints()
        ]

    def _told(self, found: _Found) -> Iterable[tuple[FetchPosition, PartitionData]]:
        session = self._session
        for position, data in found.answers:
            if session is not None:
                has_news = position.has_news(data)
                if data.records:
                    session.move_back(position)
                if self._is_incremental and not has_news:
                    continue
            yield position, data


def _check_leads(partition: Partition) -> None:
    """Raise unless what is not here is nowhere: a follower may lag behind, and another may lead by now.

    A consumer that took a follower for the leader would else begin anew where it is told to (KIP-392).
    """
    if not partition.is_leader:
        raise NotLeaderOrFollower(f"{partition.name} is not led here, and does not hold what was asked for")
    partition.check_lease()


def _aborted(partition: Partition, found: Slice, nowait: bool) -> list[FetchResponse.AbortedTransaction]:
    if not found.data:
        return []
    return [
        FetchResponse.AbortedTransaction(producer_id=producer_id, first_offset=first_offset)
        for producer_id, first_offset in partition.log.aborted_transactions(
            found.first_offset, found.next_offset, nowait=nowait
        )
    ]


def _by_topic(
    answers: Iterable[tuple[FetchPosition, PartitionData]],
) -> Iterable[FetchResponse.FetchableTopicResponse]:
    """Neighbouring partitions of one topic share an entry."""
    entry: FetchResponse.FetchableTopicResponse | None = None
    for position, data in answers:
        if entry is None or entry.topic != position.topic or entry.topic_id != position.topic_id:
            if entry is not None:
                yield entry
            entry = FetchResponse.FetchableTopicResponse(
                topic=position.topic, topic_id=position.topic_id, partitions=[]
            )
        entry.partitions.append(data)
    if entry is not None:
        yield entry
