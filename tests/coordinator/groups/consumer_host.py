"""Runs a shard of groups with topics, and consumers of both protocols that behave as real ones do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from random import Random
from typing import Any
from uuid import UUID

import re2  # type: ignore[import-untyped]

from millstream.config.broker import BrokerConfig
from millstream.config.group import GroupConfig
from millstream.coordinator.groups.consumer_entries import Matched
from millstream.coordinator.groups.consumer_group import ConsumerGroup
from millstream.coordinator.groups.consumer_member import LEAVING, LEAVING_FOR_A_WHILE
from millstream.coordinator.groups.member import Client
from millstream.coordinator.groups.migration import assignment_bytes
from millstream.coordinator.groups.settings import Settings
from millstream.coordinator.groups.shard import GroupShard
from millstream.coordinator.groups.subscription import read_assignment, read_subscription
from millstream.coordinator.groups.topics import KnownTopic
from millstream.coordinator.promise import Promise
from millstream.errors import KafkaError
from millstream.protocol.messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerProtocolSubscription,
    JoinGroupResponse,
    SyncGroupResponse,
)
from tests.coordinator.groups.host import Host

Owned = set[tuple[str, int]]
"""Partitions by topic name."""

SESSION_MS = 45_000
REBALANCE_MS = 60_000

FENCED = (25, 69, 110)
"""Unknown member, unknown group, fenced epoch: all partitions are lost."""


class Topics:
    """The topics of a cluster."""

    def __init__(self, random: Random) -> None:
        self.known: dict[str, KnownTopic] = {}
        self.configs: dict[str, GroupConfig] = {}
        self._random = random

    def put(self, name: str, count: int) -> None:
        known = self.known.get(name)
        topic_id = UUID(int=self._random.getrandbits(128)) if known is None else known.topic_id
        self.known[name] = KnownTopic(name, topic_id, count)

    def by_name(self, name: str) -> KnownTopic | None:
        return self.known.get(name)

    def by_id(self, topic_id: UUID) -> KnownTopic | None:
        return next((topic for topic in self.known.values() if topic.topic_id == topic_id), None)

    def match_again(self) -> None:
        pass

    def config_of(self, group_id: str) -> GroupConfig:
        return self.configs.get(group_id, {})

    def matched(self, regex: str) -> Matched:
        pattern = re2.compile(regex)
        return Matched(frozenset(name for name in self.known if pattern.fullmatch(name)), 0, 0)


class ConsumerHost(Host):
    """A shard whose topics can be changed."""

    def __init__(self, config: Mapping[str, str] | None = None, seed: int = 0, **topics: int) -> None:
        self.topics = Topics(Random(seed + 1))
        super().__init__({"group.consumer.assignment.interval.ms": "0", **(config or {})}, seed)
        for name, count in topics.items():
            self.topics.put(name, count)

    def _make(self) -> GroupShard:
        settings = Settings(BrokerConfig(self.config))
        return GroupShard(settings, self.clock, self.random, self, topics=self.topics)

    def group(self, group_id: str = "g") -> ConsumerGroup:
        return self.shard.consumer.groups[group_id]

    def put_topic(self, name: str, count: int) -> None:
        self.topics.put(name, count)
        self.tell()

    def delete_topic(self, name: str) -> None:
        del self.topics.known[name]
        self.apply(self.shard.delete_topic(name))
        self.tell()

    def tell(self) -> None:
        """What the broker does when topics have changed."""
        self.apply(self.shard.topics_changed())
        self.run_timers()
        found = {regex: self.topics.matched(regex) for regex in self.shard.consumer.regexes}
        self.apply(self.shard.regexes_matched(found))
        self.run_timers()

    def beat(
        self, request: ConsumerGroupHeartbeatRequest, version: int = 1, client_id: str = "client"
    ) -> ConsumerGroupHeartbeatResponse:
        regex = request.subscribed_topic_regex
        matched = self.topics.matched(regex) if regex else None
        client = Client(version, client_id, "/127.0.0.1")
        try:
            answer = self.apply(self.shard.consumer.members.heartbeat(request, client, matched))
        except KafkaError as error:
            return ConsumerGroupHeartbeatResponse(
                error_code=error.code,
                error_message=error.message,
                member_epoch=0,
                heartbeat_interval_ms=0,
            )
        assert not isinstance(answer, Promise)
        return answer

    def named(self, partitions: Iterable[tuple[UUID, int]]) -> Owned:
        """Partitions of topics that still exist, by name."""
        found = set()
        for topic_id, number in partitions:
            topic = self.topics.by_id(topic_id)
            if topic is not None:
                found.add((topic.name, number))
        return found


class Consumer:
    """A consumer of the new protocol. It reads `owned`; `told` is what it was last told to read."""

    def __init__(
        self,
        host: ConsumerHost,
        name: str,
        *topics: str,
        group: str = "g",
        regex: str | None = None,
        instance: str | None = None,
        assignor: str | None = None,
    ) -> None:
        self.host = host
        self.group = group
        self.member_id = name
        self.topics = list(topics)
        self.regex = regex
        self.instance = instance
        self.assignor = assignor
        self.epoch = 0
        self.owned: set[tuple[UUID, int]] = set()
        self.told: set[tuple[UUID, int]] = set()
        self.last_heard_ms = host.clock.elapsed_ms
        self._says_all = True
        self._says_owned = False

    @property
    def reads(self) -> Owned:
        return self.host.named(self.owned)

    def subscribe(self, *topics: str, regex: str | None = None) -> None:
        self.topics, self.regex = list(topics), regex
        self._says_all = True

    def beat(self, *, is_lost: bool = False) -> int:
        """Send a heartbeat; the error's code. What it is told it takes over with `reconcile`."""
        is_joining, says_all = not self.epoch, self._says_all
        owned = None
        if is_joining or says_all or self._says_owned:
            by_topic: dict[UUID, list[int]] = {}
            for topic_id, number in sorted(self.owned):
                by_topic.setdefault(topic_id, []).append(number)
            owned = [
                ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=topic_id, partitions=numbers)
                for topic_id, numbers in by_topic.items()
            ]
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance,
            rebalance_timeout_ms=REBALANCE_MS if says_all else -1,
            subscribed_topic_names=self.topics if says_all else None,
            subscribed_topic_regex=self.regex if says_all else None,
            server_assignor=self.assignor if says_all else None,
            topic_partitions=owned,
        )
        answer = self.host.beat(request)
        if is_lost:
            self._says_all = True
            return 0
        if answer.error_code:
            self._says_all = True
            if answer.error_code in FENCED:
                self.owned.clear()
                self.told.clear()
                self.epoch = 0
            return answer.error_code
        self.last_heard_ms = self.host.clock.elapsed_ms
        self._says_all = self._says_owned = False
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.told = {
                (topic.topic_id, number)
                for topic in answer.assignment.topic_partitions
                for number in topic.partitions
            }
        return 0

    def reconcile(self) -> None:
        """Give up what it is not to read, then begin to read the rest; the next heartbeat says so."""
        if self.owned != self.told:
            self.owned = set(self.told)
            self._says_owned = True

    def step(self) -> int:
        error = self.beat()
        self.reconcile()
        return error

    def leave(self, *, for_a_while: bool = False) -> int:
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=LEAVING_FOR_A_WHILE if for_a_while else LEAVING,
            instance_id=self.instance,
        )
        self.owned.clear()
        self.told.clear()
        return self.host.beat(request).error_code


class ClassicConsumer:
    """A consumer of the classic protocol, an eager or a cooperative one."""

    def __init__(
        self,
        host: ConsumerHost,
        name: str,
        *topics: str,
        group: str = "g",
        instance: str | None = None,
        is_eager: bool = False,
    ) -> None:
        self.host = host
        self.name = name
        self.group = group
        self.topics = list(topics)
        self.instance = instance
        self.is_eager = is_eager
        self.member_id = ""
        self.generation = -1
        self.reads: Owned = set()
        self.last_heard_ms = host.clock.elapsed_ms
        self.joining: Promise[JoinGroupResponse] | None = None
        self.syncing: Promise[SyncGroupResponse] | None = None

    def subscription(self) -> bytes:
        by_topic: dict[str, list[int]] = {}
        for topic, number in sorted(self.reads):
            by_topic.setdefault(topic, []).append(number)
        owned = [
            ConsumerProtocolSubscription.TopicPartition(topic=topic, partitions=numbers)
            for topic, numbers in by_topic.items()
        ]
        version = 0 if self.is_eager else 3
        message = ConsumerProtocolSubscription(topics=self.topics, owned_partitions=owned)
        return version.to_bytes(2, "big") + message.encode(version)

    def join(self) -> None:
        """Ask to join; an eager one stops to read first."""
        if self.is_eager:
            self.reads = set()
        protocol = "range" if self.is_eager else "cooperative-sticky"
        options: dict[str, Any] = {
            "instance": self.instance,
            "protocols": {protocol: self.subscription()},
            "session_ms": SESSION_MS,
            "rebalance_ms": REBALANCE_MS,
            "client_id": self.name,
        }
        promise = self.host.join(self.group, self.member_id, **options)
        if promise.is_done and promise.result().error_code == 79:
            self.member_id = promise.result().member_id
            promise = self.host.join(self.group, self.member_id, **options)
        self.joining = promise

    def joined(self) -> int:
        """Take the answer to a join that is answered, and ask for the assignment, or bring it if it leads."""
        assert self.joining is not None
        answer = self.joining.result()
        self.joining = None
        if answer.error_code:
            return self.refused(answer.error_code)
        self.last_heard_ms = self.host.clock.elapsed_ms
        self.member_id, self.generation = answer.member_id, answer.generation_id
        assignments = self.assign({member.member_id: member.metadata for member in answer.members})
        self.syncing = self.host.sync(
            self.group, self.member_id, self.generation, assignments, instance=self.instance
        )
        return 0

    def assign(self, members: Mapping[str, bytes]) -> dict[str, bytes]:
        """What a leader does: deal each topic out in turn. What another one still reads waits for the
        next round, in which that one has given it up."""
        subscriptions = {member_id: read_subscription(data) for member_id, data in members.items()}
        owners = {
            (topic.topic, number): member_id
            for member_id, subscription in subscriptions.items()
            for topic in subscription.owned_partitions
            for number in topic.partitions
        }
        dealt: dict[str, dict[UUID, set[int]]] = {member_id: {} for member_id in members}
        for topic in self.host.topics.known.values():
            readers = sorted(
                member_id
                for member_id, subscription in subscriptions.items()
                if topic.name in subscription.topics
            )
            for number in range(topic.partition_count if readers else 0):
                member_id = readers[number % len(readers)]
                if owners.get((topic.name, number), member_id) == member_id:
                    dealt[member_id].setdefault(topic.topic_id, set()).add(number)
        return {
            member_id: assignment_bytes(
                {topic_id: frozenset(numbers) for topic_id, numbers in topics.items()},
                [("", members[member_id])],
                self.host.topics,
            )
            for member_id, topics in dealt.items()
        }

    def synced(self) -> int:
        """Take the assignment; one that had to give something up joins again."""
        assert self.syncing is not None
        answer = self.syncing.result()
        self.syncing = None
        if answer.error_code:
            return self.refused(answer.error_code)
        self.last_heard_ms = self.host.clock.elapsed_ms
        assigned = {
            (topic.topic, number)
            for topic in read_assignment(answer.assignment).assigned_partitions
            for number in topic.partitions
        }
        has_lost = not self.reads <= assigned
        self.reads = assigned
        if has_lost and not self.is_eager:
            self.join()
        return 0

    def refused(self, code: int) -> int:
        if code in (25, 22, 82, 69):
            self.reads = set()
            self.generation = -1
            if code == 25:
                self.member_id = ""
        if code in (14, 25, 22, 27):
            self.join()
        return code

    def beat(self) -> int:
        """Send a heartbeat; join again if that is the answer."""
        code = self.host.heartbeat(self.group, self.member_id, self.generation, self.instance)
        if code:
            self.refused(code)
        else:
            self.last_heard_ms = self.host.clock.elapsed_ms
        return code

    def step(self) -> None:
        """Go on, whatever it is at."""
        self.host.run_timers()
        if self.joining is not None:
            if self.joining.is_done:
                self.joined()
        elif self.syncing is not None:
            if self.syncing.is_done:
                self.synced()
        elif self.generation < 0:
            self.join()
        else:
            self.beat()

    def leave(self) -> None:
        """Go, if it ever came in: without a member id that would be an admin's word, for its instance id."""
        self.reads = set()
        if self.member_id:
            self.host.leave(self.group, (self.member_id, self.instance))


def settle(*consumers: Consumer | ClassicConsumer, steps: int = 12) -> None:
    """Let all of them go on until nothing changes any more."""
    for _ in range(steps):
        for consumer in consumers:
            consumer.step()
