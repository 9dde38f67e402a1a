"""Requests without sense, from clients of both protocols: they are refused, and harm nobody who comes later.

What members tell each other is bytes that anybody may send. A refusal is a KafkaError: any other exception
is a defect, and could leave a group that nobody can join any more.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from millstream.coordinator.groups.commits import Caller, Commit
from millstream.coordinator.groups.member import Client
from millstream.coordinator.shard import Producer
from millstream.errors import KafkaError, NotCoordinator
from millstream.model import TopicPartition
from millstream.protocol.messages import (
    ConsumerGroupHeartbeatRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from tests.coordinator.groups.consumer_host import ClassicConsumer, ConsumerHost

STEPS = 100
LONG_MS = 400_000
"""Longer than anybody waits for anything."""


class Nonsense:
    """Sends whatever comes to mind; some of it is about what there is."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        config = {
            "group.consumer.assignment.interval.ms": random.choice(["0", "1000"]),
            "group.max.size": random.choice(["3", "100"]),
            "group.consumer.max.size": random.choice(["3", "100"]),
        }
        self.host = ConsumerHost(config, seed, t=4, u=2)
        told = ClassicConsumer(self.host, "x", "t").subscription()
        eager = ClassicConsumer(self.host, "x", "t", "u", is_eager=True).subscription()
        self.metadata = [b"", b"\x00", told, eager, told[:-3], told + b"x", b"\xff\xff\xff", bytes(50)]

    def member_id(self) -> str:
        shard = self.host.shard
        known = [each for group in shard.groups.values() for each in (*group.members, *group.pending)]
        known += [each for group in shard.consumer.groups.values() for each in group.members]
        return self.random.choice(known if known and self.random.random() < 0.6 else ["", "a", "b"])

    def generation(self) -> int:
        shard = self.host.shard
        known = [group.generation for group in shard.groups.values()]
        known += [each.epoch for group in shard.consumer.groups.values() for each in group.members.values()]
        return self.random.choice(known if known and self.random.random() < 0.7 else [-2, -1, 0, 1, 2, 3])

    def instance(self) -> str | None:
        return self.random.choice([None, None, None, "i", "j"])

    def join(self, group: str) -> None:
        choice = self.random.choice
        protocols = [
            JoinGroupRequest.JoinGroupRequestProtocol(
                name=choice(["range", "range", "sticky", ""]), metadata=choice(self.metadata)
            )
            for _ in range(choice([0, 1, 1, 2, 3]))
        ]
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=choice([6000, 45_000]),
            rebalance_timeout_ms=choice([-1, 0, 60_000]),
            member_id=self.member_id(),
            group_instance_id=self.instance(),
            protocol_type=choice(["consumer", "consumer", "consumer", "connect", ""]),
            protocols=protocols,
        )
        self.host.apply(self.host.shard.join(request, Client(choice([0, 3, 4, 9]), "client", "/host")))

    def sync(self, group: str) -> None:
        assignments = [
            SyncGroupRequest.SyncGroupRequestAssignment(
                member_id=self.member_id(), assignment=self.random.choice(self.metadata)
            )
            for _ in range(self.random.choice([0, 1, 3]))
        ]
        request = SyncGroupRequest(
            group_id=group,
            generation_id=self.generation(),
            member_id=self.member_id(),
            group_instance_id=self.instance(),
            assignments=assignments,
        )
        self.host.apply(self.host.shard.sync(request))

    def heartbeat(self, group: str) -> None:
        request = HeartbeatRequest(
            group_id=group,
            generation_id=self.generation(),
            member_id=self.member_id(),
            group_instance_id=self.instance(),
        )
        self.host.apply(self.host.shard.heartbeat(request))

    def leave(self, group: str) -> None:
        members = [
            LeaveGroupRequest.MemberIdentity(member_id=self.member_id(), group_instance_id=self.instance())
            for _ in range(self.random.choice([0, 1, 2]))
        ]
        request = LeaveGroupRequest(group_id=group, member_id=self.member_id(), members=members)
        self.host.apply(self.host.shard.leave(request, self.random.choice([0, 5])))

    def beat(self, group: str) -> None:
        choice = self.random.choice
        topics = [topic.topic_id for topic in self.host.topics.known.values()]
        owned = [
            ConsumerGroupHeartbeatRequest.TopicPartitions(
                topic_id=choice(topics), partitions=[choice([-1, 0, 1, 99])]
            )
            for _ in range(2)
        ]
        request = ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=self.member_id(),
            member_epoch=choice([0, 0, self.generation(), -1, -2]),
            instance_id=self.instance(),
            rebalance_timeout_ms=choice([-1, 1000, 60_000]),
            subscribed_topic_names=choice([None, [], ["t"], ["t", "u", "no"]]),
            subscribed_topic_regex=choice([None, None, "t.*", ""]),
            server_assignor=choice([None, "range", "uniform", "x"]),
            topic_partitions=choice([None, [], [], owned]),
        )
        self.host.beat(request, version=choice([0, 1]))

    def commit(self, group: str) -> None:
        choice = self.random.choice
        caller = Caller(self.generation(), self.member_id(), self.instance())
        commits = [Commit(TopicPartition(choice("tn"), choice([0, 5])), choice([-1, (1 << 63) - 1]), -1, "")]
        kept_ms = choice([-1, -1, 0, (1 << 63) - 1, -1 << 63])
        shard = self.host.shard
        self.host.apply(
            shard.commits.commit(group, caller, commits, retention_ms=kept_ms, version=choice([2, 8, 9]))
        )

    def commit_in_transaction(self, group: str) -> None:
        caller = Caller(self.generation(), self.member_id(), self.instance())
        producer = Producer(self.random.choice([1, 2]), 0)
        commits = [Commit(TopicPartition("t", 0), 3, -1, "")]
        self.host.apply(self.host.shard.commits.commit_in_transaction(group, caller, producer, commits))

    def end(self, _: str) -> None:
        producer = Producer(self.random.choice([1, 2]), 0)
        self.host.end_transaction(producer, is_commit=self.random.choice([True, False]))

    def wait(self, _: str) -> None:
        self.host.wait(self.random.choice([1, 100, 7000, 61_000]))

    def move(self, _: str) -> None:
        self.host.reload(NotCoordinator())

    def delete(self, group: str) -> None:
        self.host.apply(self.host.shard.delete_group(group))

    def grow(self, _: str) -> None:
        name = self.random.choice("tuv")
        known = self.host.topics.by_name(name)
        self.host.put_topic(name, 1 if known is None else known.partition_count + 1)

    @property
    def ways(self) -> list[Callable[[str], None]]:
        often = [self.join, self.beat, self.wait] * 3
        rest = [self.sync, self.heartbeat, self.leave, self.commit, self.commit_in_transaction]
        return [*often, *rest, self.end, self.move, self.delete, self.grow]


@pytest.mark.parametrize("seed", range(25))
def test_whatever_is_sent_others_can_join_afterwards(seed: int) -> None:
    nonsense = Nonsense(seed)
    for _ in range(STEPS):
        way = nonsense.random.choice(nonsense.ways)
        try:
            way(nonsense.random.choice(["g", "g", "g", "h"]))
        except KafkaError:
            continue
    nonsense.host.wait(LONG_MS)
    for group in ("g", "h"):
        member = ClassicConsumer(nonsense.host, "fresh", "t", group=group)
        for _ in range(40):
            member.step()
            nonsense.host.wait(1000)
        assert member.reads
