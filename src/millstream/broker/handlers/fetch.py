"""Fetch: records out of partitions, as they lie on disk."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable

from millstream.broker.fetch_session import FetchPosition, FetchSession
from millstream.broker.router import Context, handles
from millstream.cluster.partition import Partition
from millstream.cluster.waiters import ByteWaiter
from millstream.errors import ClusterAuthorizationFailed, KafkaError, OffsetOutOfRange
from millstream.protocol.messages import FetchRequest, FetchResponse
from millstream.storage.reading import Slice

READ_COMMITTED = 1
CONSUMER = -1

PartitionData = FetchResponse.PartitionData


@handles(FetchRequest)
def fetch(ctx: Context, req: FetchRequest) -> FetchResponse | Awaitable[FetchResponse]:
    """v4 isolation level; v5 log start offset; v7 sessions (KIP-227); v9 leader epochs (KIP-320);
    v11 rack (KIP-392); v12 flexible, divergence (KIP-595); v13 topic ids (KIP-516);
    v15 replica state (KIP-903); v17 directory ids; v18 high watermark of the follower.

    Answers at once if there is enough, or an error; else parks until there is, or the wait is over.
    """
    replica_id = req.replica_id if req.replica_state is None else req.replica_state.replica_id
    if replica_id != CONSUMER:
        raise ClusterAuthorizationFailed("replicas fetch on the brokers' own listener")
    session, is_incremental, positions = ctx.broker.fetch_sessions.begin(req, ctx.version)
    reading = _Reading(ctx, req, session, is_incremental, list(positions.values()))
    try:
        if reading.read():
            return reading.response()
    except BlockingIOError:
        return reading.read_cold()
    return reading.park()


class _Reading:
    """One fetch on its way: what has been read so far, and who waits for more."""

    def __init__(
        self,
        ctx: Context,
        req: FetchRequest,
        session: FetchSession | None,
        is_incremental: bool,
        positions: list[FetchPosition],
    ) -> None:
        self._broker = ctx.broker
        self._version = ctx.version
        self._session = session
        self._is_incremental = is_incremental
        self._positions = positions
        self._min_bytes = req.min_bytes
        self._max_wait_seconds = max(req.max_wait_ms, 0) / 1000
        self._is_committed_only = req.isolation_level == READ_COMMITTED
        self._max_bytes = min(req.max_bytes, ctx.broker.max_fetch_bytes())
        self._begin()

    def _begin(self) -> None:
        self._answers: list[tuple[FetchPosition, PartitionData]] = []
        self._parts: list[Partition] = []
        self._read_bytes = 0
        self._has_error = False

    # Reading

    def read(self) -> bool:
        """Read every partition from memory; True if that is an answer. Raises BlockingIOError."""
        self._begin()
        for position in self._positions:
            self._add(position, self._read_one(position, nowait=True))
        return self._is_enough()

    async def read_cold(self) -> FetchResponse:
        """The same with what is not in memory read by threads, so that the loop goes on."""
        loop = asyncio.get_running_loop()
        self._begin()
        for position in self._positions:
            try:
                data = self._read_one(position, nowait=True)
            except BlockingIOError:
                data = await loop.run_in_executor(None, self._read_one, position, False)
            self._add(position, data)
        if self._is_enough():
            return self.response()
        return await self.park()

    def _is_enough(self) -> bool:
        return (
            self._has_error
            or self._read_bytes >= self._min_bytes
            or self._max_wait_seconds <= 0
            or not self._positions
            or self._broker.is_stopping
        )

    def _add(self, position: FetchPosition, data: PartitionData) -> None:
        self._answers.append((position, data))
        if data.records:
            self._read_bytes += len(data.records)
        if data.error_code or data.diverging_epoch is not None:
            self._has_error = True

    def _read_one(self, position: FetchPosition, nowait: bool) -> PartitionData:
        """What one partition answers; its errors are values."""
        data = PartitionData(partition_index=position.index, high_watermark=-1)
        try:
            if self._version >= 13:
                name = self._broker.metadata.topic_by_id(position.topic_id).name
            else:
                name = position.topic
            partition = self._broker.replicas.leader(name, position.index, position.current_leader_epoch)
            log = partition.log
            if position.last_fetched_epoch >= 0:
                epoch, end_offset = log.epochs.end_offset_for(position.last_fetched_epoch, log.end_offset)
                if epoch < 0:
                    raise OffsetOutOfRange(f"the epoch {position.last_fetched_epoch} is not known here")
                if epoch < position.last_fetched_epoch or end_offset < position.fetch_offset:
                    data.diverging_epoch = FetchResponse.EpochEndOffset(epoch=epoch, end_offset=end_offset)
            if data.diverging_epoch is None:
                found = partition.read(
                    position.fetch_offset,
                    min(position.max_bytes, max(self._max_bytes - self._read_bytes, 0)),
                    is_committed_only=self._is_committed_only,
                    min_one=not self._read_bytes,
                    nowait=nowait,
                )
                data.records = found.data
                partition.counters.bytes_out.value += len(found.data)
                partition.counters.records_out.value += found.next_offset - found.first_offset
                if self._is_committed_only:
                    data.aborted_transactions = _aborted(partition, found)
            data.high_watermark = partition.high_watermark
            data.last_stable_offset = partition.last_stable_offset
            data.log_start_offset = log.start_offset
            self._parts.append(partition)
        except KafkaError as error:
            data.error_code = error.code
            data.records = b""
        return data

    # Waiting

    def park(self) -> asyncio.Future[FetchResponse]:
        """A future that ends when enough has come, something went wrong, or the wait is over."""
        loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[FetchResponse] = loop.create_future()
        self._deadline = loop.time() + self._max_wait_seconds
        self._timer = loop.call_at(self._deadline, self._time_is_up)
        self._answer.add_done_callback(self._leave)
        self._watch()
        return self._answer

    def _watch(self) -> None:
        self._waiter = ByteWaiter(self._min_bytes - self._read_bytes, self._woken)
        self._watched = self._parts
        for partition in self._watched:
            partition.watch(self._waiter)

    def _unwatch(self) -> None:
        for partition in self._watched:
            partition.unwatch(self._waiter)
        self._watched = []

    def _leave(self, _: object) -> None:
        self._timer.cancel()
        self._unwatch()

    def _woken(self) -> None:
        """Bytes came: enough of them, or of a kind this client may not see yet."""
        if self._answer.done():
            return
        self._unwatch()
        try:
            enough = self.read() or self._read_bytes > 0
        except BlockingIOError:
            self._become(asyncio.ensure_future(self._cold_again()))
            return
        except Exception as error:
            self._answer.set_exception(error)
            return
        if enough:
            self._answer.set_result(self.response())
        else:
            self._watch()

    def _time_is_up(self) -> None:
        if self._answer.done():
            return
        self._max_wait_seconds = 0.0
        self._woken()

    async def _cold_again(self) -> FetchResponse:
        self._max_wait_seconds = 0.0
        return await self.read_cold()

    def _become(self, reading: asyncio.Future[FetchResponse]) -> None:
        def finish(done: asyncio.Future[FetchResponse]) -> None:
            if self._answer.done() or done.cancelled():
                return
            error = done.exception()
            if error is None:
                self._answer.set_result(done.result())
            else:
                self._answer.set_exception(error)

        reading.add_done_callback(finish)

    # Answering

    def response(self) -> FetchResponse:
        session = self._session
        return FetchResponse(
            session_id=session.session_id if session else 0, responses=list(_by_topic(self._told()))
        )

    def _told(self) -> Iterable[tuple[FetchPosition, PartitionData]]:
        session = self._session
        for position, data in self._answers:
            if session is not None:
                has_news = position.has_news(data)
                if data.records:
                    session.move_back(position)
                if self._is_incremental and not has_news:
                    continue
            yield position, data


def _aborted(partition: Partition, found: Slice) -> list[FetchResponse.AbortedTransaction]:
    if not found.data:
        return []
    return [
        FetchResponse.AbortedTransaction(producer_id=producer_id, first_offset=first_offset)
        for producer_id, first_offset in partition.log.aborted_transactions(
            found.first_offset, found.next_offset
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
