"""The partitions that this broker holds a replica of, found by topic and number."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from uuid import UUID

from millstream.clock import Clock
from millstream.cluster.early_batches import EarlyBatches
from millstream.cluster.fetchers import Fetchers
from millstream.cluster.holder import Holder
from millstream.cluster.isr import IsrChanges
from millstream.cluster.mending import Mending
from millstream.cluster.metadata import NO_LEADER, Metadata, PartitionState, Topic
from millstream.cluster.partition import Partition
from millstream.cluster.peers import Peers
from millstream.cluster.replica_sessions import ReplicaSessions
from millstream.cluster.replication_metrics import ReplicationCounters, export
from millstream.cluster.throttle import FOLLOWERS, LEADERS, Throttle, is_listed
from millstream.cluster.transactional_appends import Admission
from millstream.config.broker import BrokerConfig
from millstream.config.log import LogConfig, log_config
from millstream.errors import (
    FencedLeaderEpoch,
    KafkaError,
    KafkaStorageError,
    NotLeaderOrFollower,
    UnknownLeaderEpoch,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from millstream.metrics import Metrics, TopicCounters
from millstream.model import TopicPartition
from millstream.pauses import Pauses
from millstream.protocol.types import Buffer
from millstream.storage.log import Log
from millstream.storage.store import Store
from millstream.storage.threads import Threads

log = logging.getLogger(__name__)


class Replicas:
    """Every partition of this broker. Only the loop changes it."""

    def __init__(
        self,
        store: Store,
        config: BrokerConfig,
        clock: Clock,
        metrics: Metrics,
        admission: Admission,
        *,
        metadata: Metadata | None = None,
        peers: Peers | None = None,
        is_lease_held: Callable[[], bool] = lambda: True,
        broker_epoch: Callable[[], int] = lambda: -1,
        threads: Threads | None = None,
    ) -> None:
        """`admission` asks the coordinators about transactional batches.

        Without `metadata` and `peers` this broker is alone: it follows nobody and nobody follows it.
        Without `threads` the loop's own wait for disks.
        """
        self._metrics = metrics
        self._store = store
        self._config = config
        self._broker_id: int = config.node_id
        self._metadata = metadata
        self._topics: dict[str, dict[int, Partition]] = {}
        self._names: dict[UUID, str] = {}
        self._counters: dict[str, TopicCounters] = {}
        self._watermarks: dict[TopicPartition, int] | None = None
        self._saving = asyncio.Lock()
        self._losses = 0
        """How often the session was lost."""
        self._absent: set[Partition | None] = set()
        """Those whose log is in no log dir, though it should be."""
        self._early = EarlyBatches(clock)
        self._unheld: set[tuple[UUID, int]] = set()
        """Those that are this broker's, by topic id and number, and of which it could not make the log."""
        self._holder = Holder(
            self._broker_id,
            clock,
            lambda: config["max.decompressed.bytes"],
            admission,
            is_lease_held=is_lease_held,
            is_there=self._is_there,
            is_alive=self._is_alive,
            max_lag_s=lambda: float(config["replica.lag.time.max.ms"]) / 1000,
            threads=threads or Threads(),
        )
        self._peers = peers
        counters = ReplicationCounters()
        export(metrics, counters, lambda: self)
        self._fetchers: Fetchers | None = None
        self._mending: Mending | None = None
        self._isr_changes: IsrChanges | None = None
        self.sessions: ReplicaSessions | None = None
        """The fetches of followers."""
        if metadata is not None and peers is not None:
            leaders = Throttle(lambda: config["leader.replication.throttled.rate"], clock)
            self.sessions = ReplicaSessions(self._led, leaders, counters, peers.random)
            self._fetchers = Fetchers(peers, config, clock, broker_epoch, counters)
            self._isr_changes = IsrChanges(self._broker_id, broker_epoch, metadata, peers, counters)
            self._holder.propose = self._isr_changes.propose
            self._mending = Mending(self, self._fetchers, peers, clock, self.save_watermarks)
        self.on_lead: Callable[[Partition], None] = lambda _: None
        """Told of each partition that this broker begins to lead."""
        self.on_resign: Callable[[Partition], None] = lambda _: None
        """Told of each partition that this broker leads no more."""

    def __iter__(self) -> Iterator[Partition]:
        for partitions in list(self._topics.values()):
            yield from list(partitions.values())

    def __len__(self) -> int:
        return sum(map(len, self._topics.values()))

    def topic(self, name: str) -> dict[int, Partition]:
        """The partitions of a topic that this broker holds, by number."""
        return self._topics.get(name, {})

    def _is_there(self, broker_id: int, broker_epoch: int) -> bool:
        found = None if self._metadata is None else self._metadata.brokers.get(broker_id)
        return found is not None and found.epoch <= broker_epoch

    def _is_alive(self, broker_id: int, broker_epoch: int) -> bool:
        found = None if self._metadata is None else self._metadata.brokers.get(broker_id)
        return found is not None and found.epoch <= broker_epoch and not found.is_stopping

    # Finding

    def leader(self, topic: str, index: int, leader_epoch: int = -1) -> Partition:
        """The partition, if this broker leads it, and in the epoch the client believes in (KIP-320)."""
        try:
            partition = self._topics[topic][index]
        except KeyError:
            raise self._not_here(topic, index) from None
        if leader_epoch >= 0:
            self._check_epoch(partition, leader_epoch)
        if partition.refusal is not None:
            raise partition.refusal.again()
        return partition

    def replica(self, topic: str, index: int, leader_epoch: int = -1) -> Partition:
        """The partition, if this broker leads or follows it."""
        try:
            partition = self._topics[topic][index]
        except KeyError:
            raise self._not_here(topic, index) from None
        if leader_epoch >= 0:
            self._check_epoch(partition, leader_epoch)
        if partition.failure is not None:
            raise partition.failure.again()
        return partition

    def _not_here(self, topic: str, index: int) -> Exception:
        known = None if self._metadata is None else self._metadata.topics.get(topic)
        if known is not None and 0 <= index < len(known.partitions):
            return NotLeaderOrFollower(f"this broker holds no replica of {topic}-{index}")
        return UnknownTopicOrPartition(f"there is no partition {index} of {topic!r} here")

    def _led(self, topic_id: UUID, index: int, leader_epoch: int) -> Partition:
        name = self._names.get(topic_id)
        partition = None if name is None else self._topics.get(name, {}).get(index)
        if name is None or (partition is not None and partition.topic_id != topic_id):
            raise UnknownTopicId(f"no partition of the topic {topic_id} is held here")
        return self.leader(name, index, leader_epoch)

    @staticmethod
    def _check_epoch(partition: Partition, leader_epoch: int) -> None:
        if leader_epoch != partition.leader_epoch and partition.failure is None:
            if leader_epoch < partition.leader_epoch:
                raise FencedLeaderEpoch
            raise UnknownLeaderEpoch

    def not_written(self, topic: str | UUID, index: int, data: Buffer, error: KafkaError) -> None:
        """A producer's batch was refused and will be sent again: those in flight behind it wait for it.

        Also if the partition is not here: it may be by then.
        """
        name = self._names.get(topic) if isinstance(topic, UUID) else topic
        partition = None if name is None else self.topic(name).get(index)
        if partition is not None:
            partition.not_written(data, error)
        else:
            self._early.note(topic, index, data, error)

    # What the cluster says

    async def apply(self, topic: Topic, indexes: Iterable[int] | None = None, *, is_new: bool = True) -> None:
        """Lead, follow or give up replicas of a topic's partitions, as the cluster says.

        What is older than what is known is ignored. A log that is not there is made if it `is_new`. At
        a start, one that is not there is made only if its records cannot lie in a log dir that is not
        there either, or if they are to be copied from a leader; else it is held, but offline.
        KafkaStorageError if one could not be made: it is `failed` until the same is said again, and it can.
        If the session is lost meanwhile, the rest waits until the cluster says it again; if the topic is
        dropped, which the controller does by itself, there is no rest.
        """
        losses = self._losses
        config = log_config(topic.overrides, self._config)
        held = self._topics.setdefault(topic.name, {})
        self._names[topic.topic_id] = topic.name
        failure: KafkaStorageError | None = None
        pauses = Pauses()
        for index in range(len(topic.partitions)) if indexes is None else indexes:
            try:
                self._apply_one(topic, index, held, config, is_new)
            except KafkaStorageError as error:  # the others go on
                failure = failure or error
            if pauses.is_due:
                await pauses.take()
                if losses != self._losses or topic.topic_id not in self._names:
                    return
        if failure is not None:
            raise failure

    def _apply_one(
        self, topic: Topic, index: int, held: dict[int, Partition], config: LogConfig, is_new: bool
    ) -> None:
        state = topic.partitions[index]
        partition = held.get(index)
        if partition is not None and partition.topic_id != topic.topic_id:
            self._give_up(held.pop(index))  # of a topic that was deleted: its folder is set aside
            partition = None
        place = topic.topic_id, index
        if self._broker_id not in state.replicas:
            self._unheld.discard(place)
            if partition is not None and _is_newer(state, partition.state):
                self._give_up(held.pop(index))
                self._store.delete(partition.name)
            return
        if partition is None or (partition in self._absent and self._is_copied(state)):
            self._unheld.add(place)
            made = self._hold(topic, index, state, config, is_new)  # if that fails, it is tried again
            self._unheld.discard(place)
            self._absent.discard(partition)  # it was not there when nobody else could lead; now it is copied
            partition = held[index] = made
        self._assign(partition, state)

    async def take(self, topic: Topic, *, is_new: bool = True) -> None:
        """`apply`, for all partitions."""
        await self.apply(topic, is_new=is_new)

    def _assign(self, partition: Partition, state: PartitionState) -> None:
        known = partition.state
        is_leader = state.leader == self._broker_id
        is_resigned = is_leader and not partition.is_leader and state.version == known.version
        if not (_is_newer(state, known) or _is_whole(state, known) or is_resigned):
            return
        was_leader = partition.is_leader
        if is_leader:
            if self._fetchers is not None:
                self._fetchers.remove(partition)
            partition.lead(state)
            if partition.is_leader and not was_leader:
                self.on_lead(partition)
            return
        partition.follow(state)
        if was_leader:
            self.on_resign(partition)
        if self._mending is not None:
            self._mending.follow(partition)

    def _hold(
        self, topic: Topic, index: int, state: PartitionState, config: LogConfig, is_new: bool
    ) -> Partition:
        name = TopicPartition(topic.name, index)
        is_copied = self._is_copied(state)
        opened = self._open(
            name,
            topic.topic_id,
            config,
            is_new=is_new or is_copied,
            is_copy=is_copied,
            is_replicated=len(state.replicas) > 1,
        )
        counters = self._counters.get(topic.name)
        if counters is None:
            counters = self._counters[topic.name] = TopicCounters(self._metrics, topic.name)
        if self._watermarks is None:
            self._watermarks = self._store.checkpoints.read_high_watermarks()
        partition = Partition(
            name, topic.topic_id, opened, self._holder, counters, self._watermarks.pop(name, 0)
        )
        for data, error in self._early.take(topic, index):
            partition.not_written(data, error)
        if opened.failure is not None:
            partition.fail(KafkaStorageError(opened.failure))
            self._absent.add(partition)
        if topic.overrides:
            self._throttle(partition, topic)
        return partition

    def _is_copied(self, state: PartitionState) -> bool:
        """Whether another broker leads, and has all that this one should."""
        return state.leader not in (self._broker_id, NO_LEADER) and self._fetchers is not None

    def _throttle(self, partition: Partition, topic: Topic) -> None:
        index, broker_id = partition.name.partition, self._broker_id
        partition.is_throttled_leader = is_listed(topic.overrides, LEADERS, index, broker_id)
        partition.is_throttled_follower = is_listed(topic.overrides, FOLLOWERS, index, broker_id)

    def _open(
        self,
        name: TopicPartition,
        topic_id: UUID,
        config: LogConfig,
        *,
        is_new: bool,
        is_copy: bool = False,
        is_replicated: bool = False,
    ) -> Log:
        store = self._store
        try:
            opened = store.get(name, topic_id, is_copy=is_copy, is_replicated=is_replicated)
            if opened is not None:
                opened.config = config
                return opened
            if is_new or store.may_create_missing:
                return store.create(name, topic_id, config, is_copy=is_copy)
        except KafkaStorageError as error:
            if is_new or store.may_create_missing:
                raise
            return store.absent(name, config, error.message)
        return store.absent(name, config)

    def _give_up(self, partition: Partition) -> None:
        if self._fetchers is not None:
            self._fetchers.remove(partition)
        was_leader = partition.is_leader
        self._store.not_expected(partition.name)
        partition.fail(NotLeaderOrFollower(f"{partition.name} is held by other brokers now"))
        if was_leader:
            self.on_resign(partition)

    async def drop(self, topic: Topic) -> None:
        """Hold a deleted topic's partitions no more; their folders are renamed now and removed later.

        What a later topic of that name has here stays. KafkaStorageError if a folder could not be renamed, or
        not durably so; then it is tried again when the same is said again.
        """
        loop = asyncio.get_running_loop()
        held = self._topics.get(topic.name, {})
        dropped = {index: each for index, each in held.items() if each.topic_id == topic.topic_id}
        for index in dropped:
            del held[index]
        self._names.pop(topic.topic_id, None)
        self._unheld = {each for each in self._unheld if each[0] != topic.topic_id}
        if not held:
            self._topics.pop(topic.name, None)
            self._counters.pop(topic.name, None)
            self._metrics.forget_topic(topic.name)
        pauses = Pauses()
        gone = UnknownTopicOrPartition(f"the topic {topic.name!r} was deleted")
        failure: KafkaStorageError | None = None
        for index in range(len(topic.partitions)):
            partition = dropped.get(index)
            if partition is not None:
                if self._fetchers is not None:
                    self._fetchers.remove(partition)
                partition.fail(gone)
                self.on_resign(partition)
            try:
                self._store.delete(TopicPartition(topic.name, index), topic.topic_id)
            except KafkaStorageError as error:  # the others go on
                failure = failure or error
            if pauses.is_due:
                await pauses.take()
        await loop.run_in_executor(None, self._store.sync_names)
        if failure is not None:
            raise failure

    async def prepare(self, topic: Topic, first: int = 0) -> None:
        """Make the logs of this broker's partitions, from `first` on, that are not held yet.

        KafkaStorageError if it cannot, and nobody else is in sync; else others will lead (`failed`).
        """
        config = log_config(topic.overrides, self._config)
        held = self._topics.get(topic.name, {})
        pauses = Pauses()
        for index, state in enumerate(topic.partitions[first:], first):
            if self._broker_id in state.replicas and index not in held:
                name, is_replicated = TopicPartition(topic.name, index), len(state.replicas) > 1
                try:
                    self._open(name, topic.topic_id, config, is_new=True, is_replicated=is_replicated)
                except KafkaStorageError:
                    if state.isr == [self._broker_id]:
                        raise
            if pauses.is_due:
                await pauses.take()

    def keep_only(self, topic_ids: set[UUID], names: Container[str] = ()) -> None:
        """Give up what is held of other topics than these, and those of these names; their folders stay."""
        for partition in self:
            if partition.topic_id not in topic_ids and partition.name.topic not in names:
                self._give_up(partition)
                del self._topics[partition.name.topic][partition.name.partition]
        self._unheld = {
            each for each in self._unheld if each[0] in topic_ids or self._names.get(each[0]) in names
        }

    def configure(self, topic: Topic) -> None:
        """Take over a topic's changed configuration."""
        config = log_config(topic.overrides, self._config)
        for partition in self._topics.get(topic.name, {}).values():
            partition.configure(config)
            self._throttle(partition, topic)

    def brokers_changed(self) -> None:
        """Other brokers came, went, or have other addresses."""
        if self._peers is not None:
            self._peers.brokers_changed()
        if self._fetchers is not None:
            self._fetchers.brokers_changed()
        for partition in self:
            partition.brokers_changed()

    def session_lost(self) -> None:
        """Lead nothing that another broker might lead by now, until the cluster says so again."""
        self._losses += 1
        for partition in self:
            if partition.is_leader and partition.leadership is not None:
                self._resign(partition)

    def replaced(self) -> None:
        """Lead nothing at all: another process has this broker's number, and so all that nobody else has."""
        self._losses += 1
        for partition in self:
            if partition.is_leader:
                self._resign(partition)

    def _resign(self, partition: Partition) -> None:
        partition.resign()
        partition.wake_fetches()
        self.on_resign(partition)

    # What a broker does by itself

    def dir_failed(self, path: str) -> None:
        """A log dir failed: its partitions go offline, the others go on."""
        for partition in self:
            if partition.log.dir_path == path:
                if self._fetchers is not None:
                    self._fetchers.remove(partition)
                partition.fail(KafkaStorageError(f"the log dir {path} has failed"))
                self.on_resign(partition)

    def is_assigned(self, name: TopicPartition) -> bool:
        """Whether the cluster has a replica here, also one whose log cannot be opened or made now."""
        if name.partition in self.topic(name.topic):
            return True
        unheld = ((self._names.get(topic_id), index) for topic_id, index in self._unheld)
        return (name.topic, name.partition) in unheld

    def failed(self) -> set[tuple[UUID, int]]:
        """Those that cannot be served, by topic id and number: no log can be made, or its dir failed."""
        held = {(each.topic_id, each.name.partition) for each in self if each.failure is not None}
        return held | self._unheld

    def failed_of(self, topic: Topic) -> set[int]:
        """The partitions of one topic among them."""
        failed = {index for index, each in self.topic(topic.name).items() if each.failure is not None}
        if self._unheld:
            failed.update(i for i in range(len(topic.partitions)) if (topic.topic_id, i) in self._unheld)
        return failed

    def damaged(self) -> Mapping[Partition, int]:
        """Those of which records cannot be read, with the last leader epochs in which they were fetched."""
        return {} if self._mending is None else self._mending.report()

    def full(self) -> list[Partition]:
        """Those that cannot be written for want of room, and which others should lead."""
        paths = {folder.path for folder in self._store.dirs if folder.is_full}
        if not paths:
            return []
        return [each for each in self if each.log.dir_path in paths and len(each.state.replicas) > 1]

    def doubted(self) -> dict[Partition, tuple[int, int]]:
        """Those that nobody leads and of which the longest may: the epoch of our last record (-1 if we have
        none), and where ours end.
        """
        return {
            each: (each.log.epochs.epoch_of(each.log.end_offset - 1), each.log.end_offset)
            for each in self
            if each.state.leader == NO_LEADER
            and self._broker_id in each.state.doubted
            and each.failure is None
        }

    async def mend(self) -> None:
        """Cut off what is damaged where nobody counts on it, and copy it anew."""
        if self._mending is not None:
            await self._mending.mend()

    async def check_followers(self) -> None:
        """Propose to go on without followers that lag behind for too long."""
        pauses = Pauses()
        for partition in self:
            partition.check_followers()
            if pauses.is_due:
                await pauses.take()

    async def stop(self) -> None:
        """Copy nothing more, and propose nothing more."""
        if self.sessions is not None:
            self.sessions.close()
        if self._fetchers is not None:
            await self._fetchers.stop()
        if self._isr_changes is not None:
            await self._isr_changes.stop()
        await self.save_watermarks()

    async def checkpoint_watermarks(self) -> None:
        """Write down what is committed, time and again."""
        await self.save_watermarks()

    async def save_watermarks(self) -> bool:
        """Write down what is committed, in a thread; false if not all of it could be.

        One after another, so that an older state never comes later.
        """
        async with self._saving:
            watermarks = {partition.log: partition.high_watermark for partition in self}
            return await asyncio.get_running_loop().run_in_executor(
                None, self._store.checkpoints.write_high_watermarks, watermarks
            )


def _is_newer(state: PartitionState, known: PartitionState) -> bool:
    """Whether the cluster said it later: a later leader epoch, or another change in the same one."""
    return (state.leader_epoch, state.version) > (known.leader_epoch, known.version)


def _is_whole(state: PartitionState, known: PartitionState) -> bool:
    """Whether it tells the rest of a change of which a leader was told the ISR alone, as it proposed it."""
    return (state.leader_epoch, state.version) == (known.leader_epoch, known.version) and state != known
