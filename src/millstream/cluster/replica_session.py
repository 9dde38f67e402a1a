"""The leader's side of replication: the fetches of one follower, in a session of its own (KIP-227).

A session knows a place in each partition that its follower copies, and is told by the partitions when
something happens there. So a fetch costs what has changed, however many partitions it is about. While a
fetch waits it holds no records: what has come is read when it ends.

A follower's place says that it has everything below it, just as it is here: that is believed only after
its last epoch was compared with this log's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from millstream.cluster import rules
from millstream.cluster.replica_place import Place
from millstream.cluster.replication_metrics import ReplicationCounters
from millstream.cluster.throttle import Throttle
from millstream.errors import (
    FetchSessionIdNotFound,
    KafkaError,
    KafkaStorageError,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    UnknownLeaderEpoch,
)
from millstream.protocol.messages import FetchRequest, FetchResponse

if TYPE_CHECKING:
    from millstream.cluster.partition import Partition

log = logging.getLogger(__name__)

MAX_EPOCH = 2**31 - 1

WATERMARK_DELAY_S = 0.005
"""How long the news of a higher high watermark may wait for records to go with it."""

MAX_HELD_S = 1.0
"""How long a follower is held back at a time: the rate may have been changed meanwhile."""

PartitionData = FetchResponse.PartitionData
Find = Callable[[UUID, int, int], "Partition"]
"""The partition that is led here, by topic id and number, in the leader epoch that the follower knows."""


class ReplicaSession:
    """The fetches of one follower, one at a time."""

    def __init__(
        self,
        session_id: int,
        replica_id: int,
        find: Find,
        throttle: Throttle,
        counters: ReplicationCounters,
    ) -> None:
        self.session_id = session_id
        self.replica_id = replica_id
        self.broker_epoch = -1
        self.epoch = 0
        self._find = find
        self._throttle = throttle
        self._counters = counters
        self._places: dict[tuple[UUID, int], Place] = {}
        self._noted: dict[Place, None] = {}
        """Places where there may be something to tell, those that waited longest first."""
        self._loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[FetchResponse] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._later: asyncio.TimerHandle | None = None
        self._held: dict[Place, None] = {}
        self._held_timer: asyncio.TimerHandle | None = None
        self._is_woken = False
        self._is_nudged = False
        self._is_closed = False
        self._max_bytes = 0

    def close(self) -> None:
        """Forget everything; a fetch that waits is told."""
        self._is_closed = True
        for place in self._places.values():
            place.leave()
        self._places.clear()
        self._noted.clear()
        self._held.clear()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(FetchSessionIdNotFound())

    # Told by places

    def noted(self, place: Place) -> None:
        self._noted[place] = None
        if self._answer is not None and not self._is_woken:
            self._is_woken = True
            self._loop.call_soon(self._woken)

    def noted_later(self, place: Place) -> None:
        self._noted[place] = None
        if self._answer is not None and self._later is None and not self._is_woken:
            self._later = self._loop.call_later(WATERMARK_DELAY_S, self._nudged)

    def nudge(self) -> None:
        """Answer the fetch that waits, or the next one, without waiting."""
        self._is_nudged = True
        if self._answer is not None and not self._is_woken:
            self._is_woken = True
            self._loop.call_soon(self._woken)

    # One fetch

    def fetch(self, req: FetchRequest) -> FetchResponse | asyncio.Future[FetchResponse]:
        is_first = self.epoch == 0
        self.epoch = 1 if self.epoch == MAX_EPOCH else self.epoch + 1
        self._max_bytes = req.max_bytes
        for topic in req.topics:
            for wanted in topic.partitions:
                key = (topic.topic_id, wanted.partition)
                place = self._places.get(key)
                if place is None:
                    place = self._places[key] = Place(self, *key)
                place.update(wanted)
                self._noted[place] = None
        for forgotten in req.forgotten_topics_data:
            for index in forgotten.partitions:
                gone = self._places.pop((forgotten.topic_id, index), None)
                if gone is not None:
                    gone.leave()
                    self._noted.pop(gone, None)
        found, is_urgent, cold = self._read()
        if cold:
            return asyncio.ensure_future(self._read_cold(found, cold))
        if is_urgent or is_first or self._is_nudged or req.max_wait_ms <= 0:
            return self._response(found)
        self._put_back(found)
        return self._park(req.max_wait_ms / 1000, has_news=bool(found))

    def _park(self, wait_s: float, *, has_news: bool) -> asyncio.Future[FetchResponse]:
        self._answer = answer = self._loop.create_future()
        answer.add_done_callback(self._unpark)
        self._timer = self._loop.call_later(wait_s, self._nudged)
        if has_news:
            self._later = self._loop.call_later(WATERMARK_DELAY_S, self._nudged)
        return answer

    def _unpark(self, answer: object) -> None:
        if self._answer is answer:
            self._answer = None
        for timer in (self._timer, self._later):
            if timer is not None:
                timer.cancel()
        self._timer = self._later = None

    def _nudged(self) -> None:
        self._later = None
        self._is_nudged = True
        self._woken()

    def _woken(self) -> None:
        self._is_woken = False
        answer = self._answer
        if answer is None or answer.done():
            return
        found, is_urgent, cold = self._read()
        if cold:
            self._answer = None
            asyncio.ensure_future(self._read_cold(found, cold)).add_done_callback(partial(_settle, answer))
        elif is_urgent or self._is_nudged:
            answer.set_result(self._response(found))
        else:
            self._put_back(found)
            if found and self._later is None:
                self._later = self._loop.call_later(WATERMARK_DELAY_S, self._nudged)

    def _put_back(self, found: list[tuple[Place, PartitionData]]) -> None:
        for place, _ in found:
            self._noted[place] = None

    # Reading

    def _read(self) -> tuple[list[tuple[Place, PartitionData]], bool, list[Place]]:
        """What there is to tell, whether it must be told now, and where the disk has to be waited for."""
        found: list[tuple[Place, PartitionData]] = []
        cold: list[Place] = []
        is_urgent = False
        budget = self._max_bytes
        for place in list(self._noted):
            del self._noted[place]
            try:
                data = self._read_one(place, min(place.max_bytes, budget))
            except BlockingIOError:
                cold.append(place)
                continue
            if data is None:
                continue
            found.append((place, data))
            if data.records:
                is_urgent = True
                budget -= len(data.records)
                if budget <= 0:
                    break
            elif data.error_code or data.diverging_epoch is not None:
                is_urgent = True
        return found, is_urgent, cold

    async def _read_cold(self, found: list[tuple[Place, PartitionData]], cold: list[Place]) -> FetchResponse:
        """Go on with what is not in memory, read in a thread."""
        budget = self._max_bytes - sum(len(data.records or b"") for _, data in found)
        for place in cold:
            partition = place.partition
            if budget <= 0 or partition is None:
                self._noted[place] = None
                continue
            read = partial(partition.log.read, place.fetch_offset, min(place.max_bytes, budget))
            try:
                records = (await self._loop.run_in_executor(partition.cold_reads, read)).data
            except KafkaError as error:
                found.append((place, _refusal(place, error)))
                continue
            if self._is_closed:  # the follower has begun another one: its places are no more
                raise FetchSessionIdNotFound
            data = self._read_one(place, 0, records)
            if data is not None:
                found.append((place, data))
                budget -= len(data.records or b"")
        return self._response(found)

    def _read_one(
        self, place: Place, max_bytes: int, records: memoryview | None = None
    ) -> PartitionData | None:
        """What there is to tell of one partition, with records that were read before; None if nothing.

        Raises BlockingIOError where the disk is needed.
        """
        try:
            partition = self._partition(place)
            held = partition.log
            if place.is_fresh:
                diverging = self._compare(place, partition)
                if diverging is not None:
                    return PartitionData(
                        partition_index=place.index, high_watermark=-1, diverging_epoch=diverging
                    )
            is_throttled = partition.is_throttled_leader and self._is_throttled(partition)
            if records is None and place.fetch_offset < held.end_offset:
                if is_throttled and self._hold_back(place):
                    return None
                records = held.read(place.fetch_offset, max_bytes, nowait=True).data
            if is_throttled and records:
                self._throttle.spend(len(records))
        except KafkaError as error:
            return _refusal(place, error)
        high_watermark, start_offset = partition.high_watermark, held.start_offset
        if not records and high_watermark == place.high_watermark and start_offset == place.told_start:
            return None
        return PartitionData(
            partition_index=place.index,
            high_watermark=high_watermark,
            log_start_offset=start_offset,
            records=records,
        )

    def _is_throttled(self, partition: Partition) -> bool:
        """Whether this follower copies from here at a limited rate: one that is in sync never does."""
        leadership = partition.leadership
        return leadership is not None and self.replica_id not in leadership.isr

    def _hold_back(self, place: Place) -> bool:
        """Let a place wait until the rate allows to read there; false if it does now."""
        wait_s = self._throttle.wait_s()
        if wait_s <= 0:
            return False
        self._held[place] = None
        if self._held_timer is None:
            self._held_timer = self._loop.call_later(min(wait_s, MAX_HELD_S), self._held_enough)
        return True

    def _held_enough(self) -> None:
        held, self._held, self._held_timer = self._held, {}, None
        for place in held:
            if place.partition is not None:
                self.noted(place)

    def _partition(self, place: Place) -> Partition:
        partition = place.partition
        if partition is None or partition.refusal is not None or partition.leader_epoch != place.leader_epoch:
            partition = self._find(place.topic_id, place.index, place.leader_epoch)
            place.hold(partition)
            place.is_fresh = True
        elif partition.leadership is not place.leadership:  # it leads anew in the same epoch
            place.is_fresh = True
        return partition

    def _compare(self, place: Place, partition: Partition) -> FetchResponse.EpochEndOffset | None:
        """Take a follower's place for true, or say from where on it is not."""
        leadership, held = partition.leadership, partition.log
        if leadership is None:
            raise NotLeaderOrFollower(f"{partition.name} has no followers")
        follower = leadership.follower(self.replica_id, self.broker_epoch)
        if place.last_fetched_epoch >= 0:
            told = rules.divergence(
                held.epochs.entries, held.end_offset, place.last_fetched_epoch, place.fetch_offset
            )
            if told is not None:
                if told[0] == rules.UNKNOWN:
                    raise UnknownLeaderEpoch(f"epoch {place.last_fetched_epoch} is not known here")
                return FetchResponse.EpochEndOffset(epoch=told[0], end_offset=told[1])
        if not held.start_offset <= place.fetch_offset <= held.end_offset:
            raise OffsetOutOfRange(
                f"{place.fetch_offset} is not within {held.start_offset} to {held.end_offset}"
            )
        place.is_fresh = False
        place.leadership = leadership
        partition.fetched(follower, place.fetch_offset, place.start_offset, place.high_watermark)
        return None

    # Answering

    def _response(self, found: list[tuple[Place, PartitionData]]) -> FetchResponse:
        self._is_nudged = False
        for place, data in found:
            if not data.error_code and data.diverging_epoch is None:
                place.high_watermark = data.high_watermark
                place.told_start = data.log_start_offset
                if data.records:
                    self._counters.bytes_out.value += len(data.records)
        return FetchResponse(session_id=self.session_id, responses=list(_by_topic(found)))


def _refusal(place: Place, error: KafkaError) -> PartitionData:
    """An error, with where the log starts for a follower that is outside of it."""
    if isinstance(error, KafkaStorageError):
        log.error("a follower could not be served: %s", error.message)
    partition = place.partition if isinstance(error, OffsetOutOfRange) else None
    return PartitionData(
        partition_index=place.index,
        error_code=error.code,
        high_watermark=-1,
        log_start_offset=-1 if partition is None else partition.log.start_offset,
    )


def _settle(answer: asyncio.Future[FetchResponse], done: asyncio.Future[FetchResponse]) -> None:
    if answer.done() or done.cancelled():
        return
    error = done.exception()
    if error is None:
        answer.set_result(done.result())
    else:
        answer.set_exception(error)


def _by_topic(
    found: Iterable[tuple[Place, PartitionData]],
) -> Iterable[FetchResponse.FetchableTopicResponse]:
    """Neighbouring partitions of one topic share an entry."""
    entry: FetchResponse.FetchableTopicResponse | None = None
    for place, data in found:
        if entry is None or entry.topic_id != place.topic_id:
            if entry is not None:
                yield entry
            entry = FetchResponse.FetchableTopicResponse(topic_id=place.topic_id, partitions=[])
        entry.partitions.append(data)
    if entry is not None:
        yield entry
