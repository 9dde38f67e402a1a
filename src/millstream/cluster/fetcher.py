"""Copying all partitions that another broker leads and this one follows: one fetch after the other.

The leader keeps a session (KIP-227), so that a fetch names only what is new: partitions that came or
went, and those that have been copied further. An answer is whole before the next fetch leaves, so a
partition's place in the session is always where its log ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING
from uuid import UUID

from millstream.clock import Clock
from millstream.cluster.following import Following, Key
from millstream.cluster.peers import COPYING, Peers
from millstream.cluster.replication_metrics import ReplicationCounters
from millstream.cluster.throttle import Throttle
from millstream.config.broker import BrokerConfig
from millstream.errors import (
    FetchSessionIdNotFound,
    InvalidFetchSessionEpoch,
    KafkaError,
    KafkaStorageError,
    error_for,
)
from millstream.pauses import Pauses
from millstream.protocol.messages import FetchRequest, FetchResponse

if TYPE_CHECKING:
    from millstream.cluster.partition import Partition

log = logging.getLogger(__name__)

NO_SESSION, NEW_SESSION, OUTSIDE = 0, 0, -1
MAX_EPOCH = 2**31 - 1
FIRST_PAUSE_S = 0.02
NO_LIMIT = float("inf")
MAX_HELD_S = 1.0
"""How long a partition is held back at a time: the rate may have been changed meanwhile."""
YIELD_SECONDS = 0.005
"""How long taking an answer may hold the loop at a time."""


class Fetcher:
    """What one broker copies from one other."""

    def __init__(
        self,
        leader_id: int,
        peers: Peers,
        config: BrokerConfig,
        clock: Clock,
        broker_epoch: Callable[[], int],
        throttle: Throttle,
        counters: ReplicationCounters,
    ) -> None:
        self.leader_id = leader_id
        self._peers = peers
        self._config = config
        self._clock = clock
        self._broker_epoch = broker_epoch
        self._throttle = throttle
        self._counters = counters
        self._followings: dict[Key, Following] = {}
        self._changed: dict[Key, None] = {}
        """Partitions whose place the leader does not know yet."""
        self._forgotten: dict[Key, None] = {}
        """Partitions that the leader still believes to be wanted."""
        self._paused: dict[Key, Following] = {}
        self._session_id = NO_SESSION
        self._session_epoch = NEW_SESSION
        self._is_asking = False
        self._news = asyncio.Event()
        self._nudging: asyncio.Task[None] | None = None
        self._task = asyncio.get_running_loop().create_task(self._run())

    def add(self, partition: Partition) -> None:
        """Copy a partition from where its log ends, in its present leader epoch."""
        following = Following(partition)
        self._followings[following.key] = following
        self._forgotten.pop(following.key, None)
        self._paused.pop(following.key, None)
        self._changed[following.key] = None
        self._news.set()
        self.nudge()

    def remove(self, partition: Partition) -> None:
        key = (partition.topic_id, partition.name.partition)
        if self._followings.pop(key, None) is not None:
            self._changed.pop(key, None)
            self._paused.pop(key, None)
            self._forgotten[key] = None

    def nudge(self) -> None:
        """Have a fetch that waits at the leader answered: there is something new to ask for."""
        if self._is_asking and self._session_id and (self._nudging is None or self._nudging.done()):
            self._nudging = asyncio.get_running_loop().create_task(self._nudge())

    def brokers_changed(self) -> None:
        """The leader may be back: ask at once, instead of after the pause."""
        self._news.set()

    async def stop(self) -> None:
        tasks = [self._task] if self._nudging is None else [self._task, self._nudging]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Asking

    async def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            while not self._followings and not (self._forgotten and self._session_id):
                self._news.clear()
                await self._news.wait()
            try:
                await self._take(await self._ask())
            except (FetchSessionIdNotFound, InvalidFetchSessionEpoch):
                self._end_session()
                await asyncio.sleep(FIRST_PAUSE_S)
                continue
            except KafkaError as error:
                log.debug("fetching from broker %d: %s", self.leader_id, error.message)
                self._end_session()
                await self._pause(pause_s)
                pause_s = min(pause_s * 2, self._max_pause_s)
                continue
            except asyncio.CancelledError:
                raise
            except Exception:
                log.exception("fetching from broker %d", self.leader_id)
                self._end_session()
                await asyncio.sleep(self._max_pause_s)
                continue
            pause_s = FIRST_PAUSE_S

    async def _pause(self, pause_s: float) -> None:
        """Wait a moment, or until there is more to copy: the leader may have come back."""
        self._news.clear()
        try:
            async with asyncio.timeout(pause_s):
                await self._news.wait()
        except TimeoutError:
            pass

    @property
    def _max_pause_s(self) -> float:
        return float(self._config["replica.fetch.backoff.ms"]) / 1000

    def _end_session(self) -> None:
        self._session_id, self._session_epoch = NO_SESSION, NEW_SESSION

    async def _ask(self) -> FetchResponse:
        config = self._config
        request = self._request()
        timeout_ms = request.max_wait_ms + config["replica.socket.timeout.ms"]
        self._is_asking = True
        try:
            answer = await self._peers.request(self.leader_id, COPYING, request, FetchResponse, timeout_ms)
        finally:
            self._is_asking = False
        if answer.error_code:
            raise error_for(answer.error_code)()
        self._session_id = answer.session_id
        self._session_epoch = 1 if self._session_epoch == MAX_EPOCH else self._session_epoch + 1
        return answer

    def _request(self) -> FetchRequest:
        config, now = self._config, self._clock.monotonic()
        wait_s = config["replica.fetch.wait.max.ms"] / 1000
        for key, following in list(self._paused.items()):
            if following.not_before <= now:  # more may be owed than it was held for
                following.not_before = max(following.not_before, now + self._held_s(following))
            if following.not_before <= now:
                del self._paused[key]
                self._forgotten.pop(key, None)
                self._changed[key] = None
            else:
                wait_s = min(wait_s, following.not_before - now)
        is_new = self._session_id == NO_SESSION
        for key in list(self._followings if is_new else self._changed):
            if key in self._followings:
                wait_s = min(wait_s, self._hold_unflushed(self._followings[key], now))
        if is_new:
            self._forgotten.clear()
        changed, self._changed = self._changed, {}
        forgotten, self._forgotten = self._forgotten, {}
        return FetchRequest(
            replica_state=self._replica_state(),
            max_wait_ms=int(wait_s * 1000) + 1,
            min_bytes=config["replica.fetch.min.bytes"],
            max_bytes=config["replica.fetch.response.max.bytes"],
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=self._topics(self._followings if is_new else changed),
            forgotten_topics_data=[
                FetchRequest.ForgottenTopic(topic_id=topic_id, partitions=indexes)
                for topic_id, indexes in _by_topic(forgotten).items()
            ],
        )

    def _hold_unflushed(self, following: Following, now: float) -> float:
        """Ask for nothing where that would say that records are here for good that are not; how long.

        That is so after a full disk, and where a crash or a leadership that ended left some.
        """
        if following.key in self._paused or not following.partition.has_unflushed:
            return NO_LIMIT
        following.partition.start_flush()
        pause_s = following.postponed(now, self._max_pause_s)
        self._set_aside(following)
        return pause_s

    def _replica_state(self) -> FetchRequest.ReplicaState:
        return FetchRequest.ReplicaState(replica_id=self._peers.broker_id, replica_epoch=self._broker_epoch())

    def _topics(self, keys: Iterable[Key]) -> list[FetchRequest.FetchTopic]:
        max_bytes = self._config["replica.fetch.max.bytes"]
        topics: list[FetchRequest.FetchTopic] = []
        for topic_id, indexes in _by_topic(key for key in keys if key not in self._paused).items():
            wanted = [
                self._followings[topic_id, index].wanted(max_bytes)
                for index in indexes
                if (topic_id, index) in self._followings
            ]
            if wanted:
                topics.append(FetchRequest.FetchTopic(topic_id=topic_id, partitions=wanted))
        return topics

    async def _nudge(self) -> None:
        request = FetchRequest(
            replica_state=self._replica_state(),
            max_wait_ms=0,
            min_bytes=0,
            session_id=self._session_id,
            session_epoch=OUTSIDE,
            topics=[],
        )
        try:
            await self._peers.request(self.leader_id, "nudge", request, FetchResponse, 1000.0)
        except KafkaError as error:
            log.debug("nudging broker %d: %s", self.leader_id, error.message)

    # Taking what came

    async def _take(self, answer: FetchResponse) -> None:
        pauses = Pauses(YIELD_SECONDS)
        unflushed: list[Following] = []
        for topic in answer.responses:
            for data in topic.partitions:
                following = self._followings.get((topic.topic_id, data.partition_index))
                if following is None or not _is_awaited(following):
                    continue
                self._take_one(following, data)
                if following.partition.flushes_before_ack:
                    unflushed.append(following)
                if pauses.is_due:
                    await pauses.take()
        for following in unflushed:  # the next fetch says that these records are here for good
            partition = following.partition
            await partition.settle_flush()
            is_followed = self._followings.get(following.key) is following  # and not given up meanwhile
            if is_followed and partition.has_unflushed:
                self._fail(following, KafkaStorageError("what was copied could not be flushed"))

    def _take_one(self, following: Following, data: FetchResponse.PartitionData) -> None:
        try:
            if following.take(data):
                self._changed[following.key] = None
            if data.records:
                self._counters.bytes_in.value += len(data.records)
            elif data.diverging_epoch is not None:
                self._counters.truncations.value += 1
            if self._is_throttled(following):
                self._throttle.spend(len(data.records or b""))
                if (wait_s := self._held_s(following)) > 0:
                    following.not_before = self._clock.monotonic() + wait_s
                    self._set_aside(following)
        except KafkaError as error:
            self._fail(following, error)
        except Exception:
            log.exception("copying %s", following.partition.name)
            self._fail(following, KafkaStorageError("what was fetched could not be taken"))

    def _is_throttled(self, following: Following) -> bool:
        partition = following.partition
        return partition.is_throttled_follower and self._peers.broker_id not in partition.state.isr

    def _held_s(self, following: Following) -> float:
        """For how long no more of a partition is asked for, by the rate."""
        return min(self._throttle.wait_s(), MAX_HELD_S) if self._is_throttled(following) else 0.0

    def _fail(self, following: Following, error: KafkaError) -> None:
        following.failed(error, self._clock.monotonic(), self._max_pause_s)
        self._set_aside(following)
        if following.partition.failure is not None:
            self._paused.pop(following.key, None)
            self._followings.pop(following.key, None)

    def _set_aside(self, following: Following) -> None:
        self._changed.pop(following.key, None)
        self._forgotten[following.key] = None
        self._paused[following.key] = following


def _is_awaited(following: Following) -> bool:
    """Whether an answer still fits: the partition is in the same epoch, and its log ends where it did."""
    partition = following.partition
    return (
        partition.leader_epoch == following.leader_epoch
        and not partition.is_leader
        and partition.failure is None
        and following.sent_offset == partition.log.end_offset
    )


def _by_topic(keys: Iterable[Key]) -> dict[UUID, list[int]]:
    topics: dict[UUID, list[int]] = {}
    for topic_id, index in keys:
        topics.setdefault(topic_id, []).append(index)
    return topics
