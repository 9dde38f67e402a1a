"""Random histories of groups: after every step, what must always hold holds; the log alone gives it back."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millstream.coordinator.groups.classic_group import State
from millstream.coordinator.groups.commits import Caller, Commit
from millstream.coordinator.promise import Promise
from millstream.coordinator.shard import Producer
from millstream.errors import CoordinatorNotAvailable, KafkaError, NotCoordinator
from millstream.model import TopicPartition
from tests.coordinator.groups.believer import Client, Place
from tests.coordinator.groups.claims import check_group, check_timers
from tests.coordinator.groups.host import Host
from tests.coordinator.groups.written import durable, written_groups

GROUPS = ("g", "h")
INSTANCES = (None, None, "i", "j")
PROTOCOLS: tuple[dict[str, bytes], ...] = (
    {"range": b"1", "sticky": b"1"},
    {"sticky": b"2", "range": b"2"},
    {"sticky": b"3"},
)
SESSION_MS = 10_000
REBALANCE_MS = 25_000
MAX_SIZE = 5
UNKNOWN_MEMBER = 25
ILLEGAL_GENERATION = 22


class Groups(RuleBasedStateMachine):
    """Clients that behave, vanish, come back, and a coordinator that moves or whose log fails."""

    def __init__(self) -> None:
        super().__init__()
        self.host = Host({"group.max.size": str(MAX_SIZE)})
        self.clients: list[Client] = []
        self.generations: dict[str, int] = {}
        self.visible: dict[Place, tuple[int, int | None]] = {}
        """The offset that is visible, None if it was deleted, and where in the log it stands."""
        self.open: dict[int, dict[Place, tuple[int, int]]] = {}
        self.next_producer = 0

    @initialize(delay_ms=st.sampled_from([0, 500]))
    def begin(self, delay_ms: int) -> None:
        self.host.config["group.initial.rebalance.delay.ms"] = str(delay_ms)
        self.host.reload(NotCoordinator())

    # What clients do

    @rule(
        group=st.sampled_from(GROUPS),
        instance=st.sampled_from(INSTANCES),
        version=st.sampled_from([0, 2, 5, 9]),
        protocols=st.sampled_from(PROTOCOLS),
    )
    def arrive(self, group: str, instance: str | None, version: int, protocols: dict[str, bytes]) -> None:
        client = Client(group, instance if version >= 5 else None, version)
        self.clients.append(client)
        self.join(client, protocols)

    @rule(data=st.data(), protocols=st.sampled_from(PROTOCOLS))
    def join_again(self, data: st.DataObject, protocols: dict[str, bytes]) -> None:
        idle = [client for client in self.clients if client.is_idle]
        if idle:
            self.join(data.draw(st.sampled_from(idle)), protocols)

    def join(self, client: Client, protocols: dict[str, bytes]) -> None:
        if client.instance is not None and not client.member_id:
            for other in self.clients:
                if (other.group, other.instance) == (client.group, client.instance):
                    other.is_replaced = other is not client
        client.last_heard_ms = self.host.clock.elapsed_ms
        client.joining = self.host.join(
            client.group,
            client.member_id,
            instance=client.instance,
            protocols=protocols,
            session_ms=SESSION_MS,
            rebalance_ms=REBALANCE_MS,
            version=client.version,
        )
        self.hear()
        if client.is_idle and client.generation == -1 and client.member_id:
            # it was told to come back with its member id
            client.joining = self.host.join(
                client.group,
                client.member_id,
                protocols=protocols,
                session_ms=SESSION_MS,
                rebalance_ms=REBALANCE_MS,
                version=client.version,
            )
            self.hear()

    @rule(data=st.data())
    def sync(self, data: st.DataObject) -> None:
        joined = [client for client in self.clients if client.is_idle and client.generation >= 0]
        if not joined:
            return
        self.sync_one(data.draw(st.sampled_from(joined)))

    def sync_one(self, client: Client) -> None:
        wanted = client.members if client.leads else {}
        client.last_heard_ms = self.host.clock.elapsed_ms
        client.syncing = self.host.sync(
            client.group, client.member_id, client.generation, wanted, instance=client.instance
        )
        self.hear()

    @rule(group=st.sampled_from(GROUPS))
    def sync_all(self, group: str) -> None:
        """All that have joined ask for their assignment, the leader last."""
        joined = [each for each in self.clients if each.group == group and each.is_idle]
        for client in sorted(joined, key=lambda each: each.leads):
            if client.generation >= 0:
                self.sync_one(client)

    @rule(group=st.sampled_from(GROUPS))
    def rebalance(self, group: str) -> None:
        """All of a group that are alive do what they are expected to."""
        for client in list(self.clients):
            if client.group == group and client.is_idle:
                self.join(client, PROTOCOLS[0])
        self.wait(500)
        self.sync_all(group)

    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        joined = [client for client in self.clients if client.is_idle and client.generation >= 0]
        if not joined:
            return
        client = data.draw(st.sampled_from(joined))
        code = self.host.heartbeat(client.group, client.member_id, client.generation, client.instance)
        self.refused(client, code)
        if not code:
            client.last_heard_ms = self.host.clock.elapsed_ms

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        idle = [client for client in self.clients if client.is_idle and client.member_id]
        if not idle:
            return
        client = data.draw(st.sampled_from(idle))
        version = data.draw(st.sampled_from([2, 5]))
        if version < 3 and client.instance is not None:
            version = 5
        self.host.leave(client.group, (client.member_id, client.instance), version=version)
        client.is_gone = True
        self.hear()

    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        alive = [client for client in self.clients if not client.is_gone]
        if alive:
            data.draw(st.sampled_from(alive)).is_gone = True

    @rule(data=st.data(), partition=st.integers(0, 2), offset=st.integers(0, 100))
    def commit(self, data: st.DataObject, partition: int, offset: int) -> None:
        joined = [client for client in self.clients if client.is_idle and client.generation >= 0]
        if not joined:
            return
        client = data.draw(st.sampled_from(joined))
        caller = Caller(client.generation, client.member_id, client.instance)
        self.commit_as(client.group, caller, TopicPartition("t", partition), offset, client)

    @rule(group=st.sampled_from(GROUPS), partition=st.integers(0, 2), offset=st.integers(0, 100))
    def commit_from_outside(self, group: str, partition: int, offset: int) -> None:
        found = self.host.shard.find(group)
        if self.commit_as(group, Caller(), TopicPartition("t", partition), offset, None):
            assert found is None or found.is_empty

    def commit_as(
        self, group: str, caller: Caller, partition: TopicPartition, offset: int, client: Client | None
    ) -> bool:
        try:
            result = self.host.shard.commits.commit(group, caller, [Commit(partition, offset, -1, "")])
            assert self.host.apply(result) == {}
        except KafkaError as error:
            if client is not None:
                self.refused(client, error.code)
            return False
        self.visible[group, partition] = (len(self.host.log) - 1, offset)
        if client is not None:
            client.last_heard_ms = self.host.clock.elapsed_ms
        return True

    # Transactions

    @rule(group=st.sampled_from(GROUPS), partition=st.integers(0, 2), offset=st.integers(0, 100))
    def commit_in_a_transaction(self, group: str, partition: int, offset: int) -> None:
        if not self.open or len(self.open) < 2:
            self.next_producer += 1
            self.open[self.next_producer] = {}
        producer_id = max(self.open)
        name = TopicPartition("t", partition)
        try:
            result = self.host.shard.commits.commit_in_transaction(
                group, Caller(), Producer(producer_id, 0), [Commit(name, offset, -1, "")]
            )
            self.host.apply(result)
        except KafkaError:
            return
        self.open[producer_id][group, name] = (len(self.host.log) - 1, offset)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), is_commit=st.booleans())
    def end_a_transaction(self, data: st.DataObject, is_commit: bool) -> None:
        producer_id = data.draw(st.sampled_from(sorted(self.open)))
        self.host.end_transaction(Producer(producer_id, 0), is_commit=is_commit)
        for place, (at, offset) in self.open.pop(producer_id).items():
            if is_commit and self.visible.get(place, (-1, None))[0] < at:
                self.visible[place] = (at, offset)

    # Admins, time and failures

    @rule(group=st.sampled_from(GROUPS))
    def delete(self, group: str) -> None:
        found = self.host.shard.find(group)
        try:
            self.host.apply(self.host.shard.delete_group(group))
        except KafkaError:
            return
        assert found is not None
        assert found.is_empty
        self.generations.pop(group, None)
        for place in [*self.visible, *(place for places in self.open.values() for place in places)]:
            if place[0] == group:
                self.visible[place] = (len(self.host.log) - 1, None)

    @rule(ms=st.sampled_from([1, 400, 3000, 9_999, 10_000, 26_000, 301_000]))
    def wait(self, ms: int) -> None:
        self.host.wait(ms)
        self.hear()

    @rule()
    def move(self) -> None:
        """The coordinator goes to another broker."""
        self.host.reload(NotCoordinator())
        self.generations = {name: group.generation for name, group in self.host.shard.groups.items()}
        self.hear()

    @rule(work=st.sampled_from(["rebalance", "sync_all", "leave", "wait"]), data=st.data())
    def fail_to_write(self, work: str, data: st.DataObject) -> None:
        """The log takes nothing for a while."""
        self.host.refuses = CoordinatorNotAvailable()
        if work == "leave":
            self.leave(data)
        elif work == "wait":
            self.wait(10_000)
        else:
            getattr(self, work)(data.draw(st.sampled_from(GROUPS)))
        self.host.refuses = None

    def teardown(self) -> None:
        self.everybody_settles()

    def everybody_settles(self) -> None:
        """Live clients that go on joining come to one generation, and each gets its assignment."""
        for client in self.clients:
            client.is_gone = client.is_gone or client.is_replaced
        for _ in range(12):
            for client in self.clients:
                if client.is_idle and client.assignment is None:
                    if client.generation >= 0:
                        self.sync_one(client)
                    if client.is_idle and client.assignment is None:
                        self.join(client, PROTOCOLS[0])
                elif client.is_idle:
                    code = self.host.heartbeat(
                        client.group, client.member_id, client.generation, client.instance
                    )
                    self.refused(client, code)
            self.host.wait(6000)
            self.hear()
        for group in GROUPS:
            alive = [client for client in self.clients if client.group == group and not client.is_gone]
            if 0 < len(alive) <= MAX_SIZE:
                assert [client.assignment for client in alive] == [client.name for client in alive], group
                assert self.host.shard.groups[group].state is State.STABLE

    # What clients hear

    def hear(self) -> None:
        """Do what is due, and give every client the answers that have come."""
        self.host.run_timers()
        for client in self.clients:
            if client.joining is not None and client.joining.is_done:
                promise, client.joining = client.joining, None
                self.joined(client, promise)
            if client.syncing is not None and client.syncing.is_done:
                promise, client.syncing = client.syncing, None
                self.synced(client, promise)

    def joined(self, client: Client, promise: Promise[Any]) -> None:
        client.generation, client.assignment, client.leads = -1, None, False
        try:
            answer = promise.result()
        except NotCoordinator:
            return
        if answer.error_code == 79:
            client.member_id = answer.member_id
        elif answer.error_code:
            self.refused(client, answer.error_code)
        else:
            client.last_heard_ms = self.host.clock.elapsed_ms
            client.member_id = answer.member_id
            client.generation = answer.generation_id
            client.members = {
                member.member_id: (member.group_instance_id or member.member_id).encode()
                for member in answer.members
            }
            client.leads = answer.leader == answer.member_id and not answer.skip_assignment
            if client.leads:
                assert answer.member_id in client.members

    def synced(self, client: Client, promise: Promise[Any]) -> None:
        client.assignment = None
        try:
            answer = promise.result()
        except NotCoordinator:
            return
        if answer.error_code:
            self.refused(client, answer.error_code)
        else:
            client.last_heard_ms = self.host.clock.elapsed_ms
            client.assignment = answer.assignment

    def refused(self, client: Client, code: int) -> None:
        if code == UNKNOWN_MEMBER:
            client.member_id, client.generation, client.assignment = "", -1, None
        elif code == ILLEGAL_GENERATION:
            client.generation, client.assignment = -1, None
        elif code == 81 or (code == 82 and client.is_replaced):
            client.is_gone = True
        elif code == 27:
            client.generation, client.assignment = -1, None
        elif code == 82:
            raise AssertionError("a static member was fenced though nobody took its place")

    # What must always hold

    @invariant()
    def groups_are_consistent(self) -> None:
        for name, group in self.host.shard.groups.items():
            assert group.group_id == name
            check_group(group, MAX_SIZE)

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        for group in self.host.shard.groups.values():
            check_timers(group, self.host.timer_keys)

    @invariant()
    def generations_only_grow(self) -> None:
        for name, group in self.host.shard.groups.items():
            assert group.generation >= self.generations.get(name, 0)
        self.generations = {name: group.generation for name, group in self.host.shard.groups.items()}

    @invariant()
    def one_client_has_one_assignment(self) -> None:
        """No two clients hold the same assignment in one generation, and all got what was meant for them."""
        held: set[tuple[str, int, bytes]] = set()
        for client in self.clients:
            if client.assignment and not client.is_replaced:
                place = (client.group, client.generation, client.assignment)
                assert place not in held
                held.add(place)

    @invariant()
    def nobody_who_is_heard_of_is_dropped(self) -> None:
        """Whoever the broker heard of within the session is a member still, unless it has to join again."""
        now_ms = self.host.clock.elapsed_ms
        for client in self.clients:
            if not client.is_idle or client.is_replaced or client.generation < 0:
                continue
            if now_ms - client.last_heard_ms < SESSION_MS:
                group = self.host.shard.groups.get(client.group)
                if group is not None and group.generation == client.generation and client.assignment:
                    assert client.member_id in group.members

    @invariant()
    def offsets_are_those_committed(self) -> None:
        found = {
            (group_id, partition): committed.offset
            for group_id in self.host.shard.offsets
            for partition, committed in self.host.shard.offsets.of(group_id)
        }
        assert found == {place: offset for place, (_, offset) in self.visible.items() if offset is not None}

    @invariant()
    def the_log_gives_it_back(self) -> None:
        assert durable(self.host.replayed()) == durable(self.host.shard)
        assert written_groups(self.host) == {
            name: group.written for name, group in self.host.shard.groups.items() if group.written is not None
        }


TestGroups = Groups.TestCase
TestGroups.settings = settings(
    max_examples=120,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
