"""Consumer groups by random histories: members of both protocols, topics that change, answers that are lost,
coordinators that move. No partition is ever read by two members, the log gives everything back, and once
the trouble ends every partition has its reader."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from millstream.coordinator.groups.consumer_group import ConsumerGroup, ConsumerState
from millstream.coordinator.groups.consumer_member import LEAVING_FOR_A_WHILE, MemberState
from millstream.coordinator.groups.shard import GroupShard
from millstream.errors import NotCoordinator
from tests.coordinator.groups.consumer_host import (
    REBALANCE_MS,
    SESSION_MS,
    ClassicConsumer,
    Consumer,
    ConsumerHost,
    Owned,
)

TOPICS = ("ab", "ac", "b", "c")
REGEXES = ("a.*", "b|c", "z")
INSTANCES = ("one", "two")

Anyone = Consumer | ClassicConsumer

some_topics = st.lists(st.sampled_from(TOPICS), unique=True, max_size=3)


class ConsumerGroups(RuleBasedStateMachine):
    """One group, and everybody who is or was in it."""

    clients = Bundle("clients")

    @initialize(
        counts=st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 4)),
        interval_ms=st.sampled_from(["0", "1000"]),
        policy=st.sampled_from(["bidirectional", "bidirectional", "upgrade", "downgrade"]),
    )
    def begin(self, counts: dict[str, int], interval_ms: str, policy: str) -> None:
        self.host = ConsumerHost(
            {
                "group.consumer.assignment.interval.ms": interval_ms,
                "group.consumer.migration.policy": policy,
            },
            **counts,
        )
        self.alive: list[Anyone] = []
        self.replaced: set[str] = set()
        """Members whose places others have taken, who may have left since."""
        self.everyone: list[Anyone] = []
        self.count = 0
        self.epoch = 0

    def name(self) -> str:
        self.count += 1
        return f"m{self.count}"

    def add(self, client: Anyone) -> Anyone:
        self.alive.append(client)
        self.everyone.append(client)
        client.step()
        return client

    # Members

    @rule(
        target=clients,
        topics=some_topics,
        regex=st.none() | st.none() | st.sampled_from(REGEXES),
        assignor=st.sampled_from([None, "uniform", "range"]),
    )
    def add_consumer(self, topics: list[str], regex: str | None, assignor: str | None) -> Anyone:
        return self.add(Consumer(self.host, self.name(), *topics, regex=regex, assignor=assignor))

    @rule(target=clients, topics=some_topics, instance=st.sampled_from(INSTANCES))
    def add_static_consumer(self, topics: list[str], instance: str) -> Anyone:
        return self.add(Consumer(self.host, self.name(), *topics, instance=instance))

    @rule(target=clients, topics=some_topics, is_eager=st.sampled_from([True, False, False]))
    def add_classic_consumer(self, topics: list[str], is_eager: bool) -> Anyone:
        return self.add(ClassicConsumer(self.host, self.name(), *topics, is_eager=is_eager))

    @rule(target=clients, topics=some_topics, instance=st.sampled_from(INSTANCES), is_eager=st.booleans())
    def add_static_classic_consumer(self, topics: list[str], instance: str, is_eager: bool) -> Anyone:
        """It takes the place of whoever had its instance id, whichever protocol that one speaks."""
        return self.add(
            ClassicConsumer(self.host, self.name(), *topics, instance=instance, is_eager=is_eager)
        )

    @rule(client=clients)
    def step(self, client: Anyone) -> None:
        if client in self.alive:
            client.step()

    @rule(reconcile=st.booleans())
    def all_beat(self, reconcile: bool) -> None:
        """All are heard of; those of the new protocol may not do at once what they are told."""
        for client in self.alive:
            if isinstance(client, Consumer):
                client.beat()
            else:
                client.step()
            self.reads_are_disjoint()
        if reconcile:
            self.all_reconcile()

    @rule()
    def all_reconcile(self) -> None:
        for client in self.alive:
            if isinstance(client, Consumer):
                client.reconcile()

    @rule(client=clients, is_lost=st.booleans())
    def beat(self, client: Anyone, is_lost: bool) -> None:
        if client in self.alive and isinstance(client, Consumer):
            client.beat(is_lost=is_lost)

    @rule(client=clients)
    def step_in_vain(self, client: Anyone) -> None:
        """The log takes nothing."""
        if client in self.alive:
            self.host.refuses = NotCoordinator()
            client.step()
            self.host.refuses = None

    @rule(client=clients, topics=some_topics, regex=st.sampled_from([None, "", *REGEXES]))
    def subscribe(self, client: Anyone, topics: list[str], regex: str | None) -> None:
        if client in self.alive and isinstance(client, Consumer):
            client.subscribe(*topics, regex=regex)
            client.beat()

    @rule(client=consumes(clients))
    def leave(self, client: Anyone) -> None:
        if client in self.alive:
            self.alive.remove(client)
            client.leave()

    @rule(client=consumes(clients))
    def leave_for_a_while(self, client: Anyone) -> None:
        if client in self.alive and isinstance(client, Consumer) and client.instance is not None:
            self.alive.remove(client)
            client.leave(for_a_while=True)

    @rule(client=consumes(clients))
    def die(self, client: Anyone) -> None:
        """It reads on, and is never heard of again."""
        if client in self.alive:
            self.alive.remove(client)

    # The world

    @rule(name=st.sampled_from(TOPICS), more=st.integers(1, 3))
    def put_topic(self, name: str, more: int) -> None:
        known = self.host.topics.by_name(name)
        self.host.put_topic(name, more if known is None else known.partition_count + more)

    @rule(name=st.sampled_from(TOPICS))
    def delete_topic(self, name: str) -> None:
        if self.host.topics.by_name(name) is None:
            return
        for client in self.everyone:
            if isinstance(client, ClassicConsumer):
                client.reads = {each for each in client.reads if each[0] != name}
        self.host.delete_topic(name)

    @rule(ms=st.sampled_from([500, 1000, 5000, 20_000]))
    def wait(self, ms: int) -> None:
        self.host.wait(ms)

    @rule()
    def move(self) -> None:
        """Another coordinator takes over."""
        self.host.reload(NotCoordinator())
        for client in self.alive:
            if isinstance(client, ClassicConsumer):
                client.joining = client.syncing = None

    @rule()
    def come_to_rest(self) -> None:
        """Whoever is alive goes on for long enough: then all is shared, and nothing moves any more."""
        for _ in range(int(max(SESSION_MS, REBALANCE_MS) / 5000) + 12):
            for _ in range(4):
                self.all_beat(reconcile=True)
            self.host.wait(5000)
        group = self.host.shard.consumer.groups.get("g")
        if group is None:
            return
        members = {client.member_id: client for client in self.alive if client.member_id in group.members}
        assert set(members) == set(group.members)
        assert group.state in (ConsumerState.STABLE, ConsumerState.EMPTY)
        everything: Owned = {
            (topic.name, number)
            for topic in group.known_topics(self.host.topics)
            for number in range(topic.partition_count)
        }
        read: Owned = set()
        for client in members.values():
            read |= client.reads
        assert read == everything

    # What must always hold

    @invariant()
    def reads_are_disjoint(self) -> None:
        """No two members read the same partition; those that were dropped may not know it yet."""
        if not hasattr(self, "host"):
            return
        group = self.host.shard.find("g")
        if group is None:
            return
        readers = Counter(
            partition
            for client in self.everyone
            if client.member_id in group.members
            for partition in client.reads
        )
        assert all(count == 1 for count in readers.values()), readers

    @invariant()
    def groups_are_consistent(self) -> None:
        if not hasattr(self, "host"):
            return
        shard = self.host.shard
        assert not set(shard.groups) & set(shard.consumer.groups)
        for group in shard.consumer.groups.values():
            holders = Counter(
                (topic_id, number)
                for member in group.members.values()
                for held in (member.assigned, member.revoking)
                for topic_id, epochs in held.items()
                for number in epochs
            )
            assert all(count == 1 for count in holders.values())
            assert set(group.owners) == set(holders)
            for (topic_id, number), member_id in group.owners.items():
                assert group.members[member_id].holds(topic_id, number)
            assert group.instances == {
                member.instance_id: member_id
                for member_id, member in group.members.items()
                if member.instance_id is not None
            }
            assert set(group.target) <= set(group.members)
            assert group.assignment_epoch <= group.epoch
            used = {member.regex for member in group.members.values() if member.regex}
            assert set(group.regexes) == used
            for member in group.members.values():
                assert LEAVING_FOR_A_WHILE <= member.epoch <= group.assignment_epoch
                if member.revoking:
                    assert member.state is MemberState.UNREVOKED_PARTITIONS
            self.targets_are_complete(group)

    def targets_are_complete(self, group: ConsumerGroup) -> None:
        """Whatever members are subscribed to is meant for exactly one of them."""
        if not group.members or group.epoch != group.assignment_epoch:
            return
        meant = Counter(
            (topic_id, number)
            for partitions in group.target.values()
            for topic_id, numbers in partitions.items()
            for number in numbers
        )
        assert all(count == 1 for count in meant.values())
        assert set(meant) == {
            (topic.topic_id, number)
            for topic in group.known_topics(self.host.topics)
            for number in range(topic.partition_count)
        }

    @invariant()
    def everybody_is_watched(self) -> None:
        if not hasattr(self, "host"):
            return
        keys = self.host.timer_keys
        for group in self.host.shard.consumer.groups.values():
            for member in group.members.values():
                assert ("consumer", "session", "g", member.member_id) in keys
                if member.state is MemberState.UNREVOKED_PARTITIONS and not member.is_classic:
                    assert ("consumer", "revocation", "g", member.member_id) in keys

    @invariant()
    def nobody_who_is_heard_of_is_dropped(self) -> None:
        if not hasattr(self, "host"):
            return
        group = self.host.shard.consumer.groups.get("g")
        now_ms = self.host.clock.elapsed_ms
        for client in self.alive:
            if group is None or not isinstance(client, Consumer) or client.epoch <= 0:
                continue
            if group.instances.get(client.instance or "", client.member_id) != client.member_id:
                self.replaced.add(client.member_id)  # a classic one has taken its place
            elif client.member_id in group.members:
                self.replaced.discard(client.member_id)
            if client.member_id in self.replaced:
                continue
            if client.told == client.owned and now_ms - client.last_heard_ms < SESSION_MS:
                assert client.member_id in group.members

    @invariant()
    def the_log_gives_it_back(self) -> None:
        if hasattr(self, "host"):
            assert durable(self.host.replayed()) == durable(self.host.shard)


def durable(shard: GroupShard) -> Any:
    """What must survive."""
    return (
        {name: group.written for name, group in shard.groups.items() if group.written is not None},
        {
            name: (
                group.epoch,
                group.metadata_hash,
                group.assignment_epoch,
                group.members,
                group.target,
                group.regexes,
                group.owners,
                group.instances,
            )
            for name, group in shard.consumer.groups.items()
        },
    )


TestConsumerGroups = ConsumerGroups.TestCase
TestConsumerGroups.settings = settings(
    max_examples=80,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
