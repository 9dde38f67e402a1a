"""Random histories of producers, zombies, time-outs, lost answers and reloads, against what must hold.

Partitions check producers and markers with the code of real logs, so a marker that a log would refuse,
or a transaction that nobody ends, shows here. MILLSTREAM_TXN_EXAMPLES makes a longer run.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millstream.coordinator.shard import Producer
from millstream.coordinator.transactions.transaction import (
    BUMPING,
    MAX_EPOCH,
    OLD,
    Status,
    Transaction,
)
from millstream.errors import (
    ConcurrentTransactions,
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTxnState,
    OutOfOrderSequenceNumber,
    ProducerFenced,
    TransactionAbortable,
)
from millstream.model import TopicPartition
from tests.coordinator.transactions.host import START_MS, DataPartition, Host

EXAMPLES = int(os.environ.get("MILLSTREAM_TXN_EXAMPLES", "200"))
IDS = ("x", "y")
PARTITIONS = tuple(TopicPartition("t", index) for index in range(3))
TIMEOUT_MS = 30_000

places = st.integers(0, 2)
names = st.sampled_from(("x", "x", "x", "y"))


@dataclass(eq=False)
class Client:
    """A producer as a client knows itself; it goes on even if it has been fenced."""

    transactional_id: str
    version: int
    identity: Producer
    number: int
    transaction: int = 0
    added: set[TopicPartition] = field(default_factory=set)
    sequences: dict[TopicPartition, int] = field(default_factory=dict)
    unanswered: bool | None = None
    """The end it asked for last, if it does not know the answer."""
    is_behind: bool = False
    """Whether it was given another identity and did not hear of it."""

    @property
    def key(self) -> tuple[int, int]:
        """The transaction it is in now."""
        return self.number, self.transaction

    def go_on(self, identity: Producer) -> None:
        if identity != self.identity:
            self.sequences = {}
            self.is_behind = False
        self.identity = identity
        self.transaction += 1
        self.added = set()
        self.unanswered = None


class Transactions(RuleBasedStateMachine):
    """Clients, each in a place of its own, against one shard and three partitions."""

    @initialize(
        epochs=st.lists(st.sampled_from([-1, 5, MAX_EPOCH - 3, MAX_EPOCH - 1]), min_size=2, max_size=2)
    )
    def begin(self, epochs: list[int]) -> None:
        self.host = Host({"transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000"})
        self.partitions = {name: DataPartition() for name in PARTITIONS}
        self.clients: dict[int, Client] = {}
        self.given: dict[str, list[Producer]] = {name: [] for name in IDS}
        self.count = 0
        self.outcomes: dict[tuple[int, int], bool] = {}
        """How transactions ended, as their clients were told."""
        self.not_committed: set[tuple[int, int]] = set()
        """Transactions whose clients were told that they are not committed."""
        self.marked: dict[str, set[TopicPartition]] = {}
        self.fenced: set[tuple[str, Producer]] = set()
        """Who can do nothing more with the epoch it has."""
        for name, epoch in zip(IDS, epochs, strict=True):
            if epoch >= 0:
                self.host.put(
                    Transaction(name, 10 + IDS.index(name), epoch, TIMEOUT_MS, Status.EMPTY, START_MS)
                )

    def _fence(self, transactional_id: str) -> None:
        self.fenced |= {(transactional_id, identity) for identity in self.given[transactional_id]}

    def _give(self, transactional_id: str, identity: Producer) -> None:
        """A client was given an identity: nobody had it before."""
        assert identity not in self.given[transactional_id]
        assert identity.epoch < MAX_EPOCH
        same_id = [other.epoch for other in self.given[transactional_id] if other[0] == identity[0]]
        assert all(identity.epoch > epoch for epoch in same_id)
        for other_id in IDS:
            if other_id != transactional_id:
                assert identity.producer_id not in {each.producer_id for each in self.given[other_id]}
        self.given[transactional_id].append(identity)

    # Producers come

    @rule(place=places, name=names, version=st.sampled_from([OLD, BUMPING]))
    def come(self, place: int, name: str, version: int) -> None:
        """Who had the place before is never heard of again; others with the same id are zombies now."""
        try:
            identity = self.host.init(name, TIMEOUT_MS)
        except (ConcurrentTransactions, CoordinatorNotAvailable):
            return
        self._fence(name)
        if identity is None:
            return
        self._give(name, identity)
        self.count += 1
        self.clients[place] = Client(name, version, identity, self.count)

    @rule(place=places, is_heard=st.booleans())
    def recover(self, place: int, is_heard: bool) -> None:
        """Ask for another epoch after an error (KIP-360)."""
        client = self.clients.get(place)
        if client is None:
            return
        try:
            identity = self.host.init(client.transactional_id, TIMEOUT_MS, client.identity)
        except (ConcurrentTransactions, CoordinatorNotAvailable):
            return
        except ProducerFenced:
            self._check_shut_out(client)
            return
        assert (client.transactional_id, client.identity) not in self.fenced
        if identity is None:
            self._fence(client.transactional_id)
            return
        if identity not in self.given[client.transactional_id]:
            self._give(client.transactional_id, identity)
        if is_heard:
            client.go_on(identity)
        elif identity != client.identity:
            client.is_behind = True

    def _check_shut_out(self, client: Client) -> None:
        """Nobody is shut out but who was fenced, or did not hear that it is somebody else by now."""
        assert client.is_behind or (client.transactional_id, client.identity) in self.fenced

    # They write

    @rule(
        place=places,
        names=st.lists(st.sampled_from(PARTITIONS), min_size=1, max_size=3),
        names_first=st.booleans(),
    )
    def write(self, place: int, names: list[TopicPartition], names_first: bool) -> None:
        client = self.clients.get(place)
        if client is not None:
            for name in names:
                self._write(client, name, names_first)

    def _write(self, client: Client, name: TopicPartition, names_first: bool) -> None:
        """As the partition's leader does: the coordinator is asked, unless the transaction is open there."""
        partition = self.partitions[name]
        host, identity = self.host, client.identity
        try:
            # While it does not know how its transaction ended it begins none; what is late may still come.
            is_between = client.unanswered is not None
            if client.version == OLD and names_first and name not in client.added and not is_between:
                host.add(client.transactional_id, identity, name, version=OLD)
                client.added.add(name)
            if not partition.state.is_open(*identity):
                if client.version == OLD:
                    host.shard.verify_partition(client.transactional_id, identity, name)
                else:
                    host.add(client.transactional_id, identity, name)
            assert (client.transactional_id, identity) not in self.fenced or partition.state.is_open(
                *identity
            )
            partition.write(identity, client.sequences.get(name, 0), client.key)
        except (ConcurrentTransactions, CoordinatorNotAvailable, TransactionAbortable):
            return
        except (InvalidProducerEpoch, InvalidProducerIdMapping, ProducerFenced):
            self._check_shut_out(client)
            return
        except OutOfOrderSequenceNumber:
            # Only one who lost an answer can be out of step.
            assert client.unanswered is not None
            return
        client.sequences[name] = client.sequences.get(name, 0) + 1

    # They end

    @rule(place=places, is_commit=st.booleans(), is_heard=st.booleans())
    def end(self, place: int, is_commit: bool, is_heard: bool) -> None:
        client = self.clients.get(place)
        if client is None:
            return
        if client.unanswered is not None:
            is_commit = client.unanswered  # it repeats itself, as clients do
        try:
            following = self.host.end(
                client.transactional_id, client.identity, is_commit=is_commit, version=client.version
            )
        except (ConcurrentTransactions, CoordinatorNotAvailable):
            return
        except (InvalidTxnState, InvalidProducerIdMapping, ProducerFenced) as error:
            if not isinstance(error, InvalidTxnState):
                self._check_shut_out(client)
            if client.unanswered is None and is_commit:
                self.not_committed.add(client.key)
            client.go_on(client.identity)
            return
        assert (client.transactional_id, client.identity) not in self.fenced
        if following not in self.given[client.transactional_id]:
            assert client.version == BUMPING
            self._give(client.transactional_id, following)
        if not is_heard:
            client.unanswered = is_commit
            client.is_behind = client.is_behind or following != client.identity
            return
        self.outcomes[client.key] = is_commit
        client.go_on(following)

    # The coordinator works

    @rule(number=st.integers(0, 1), count=st.integers(1, 3))
    def mark(self, number: int, count: int) -> None:
        """Markers are written; after the last the transaction is complete."""
        for _ in range(count):
            if self.host.prepared:
                self._mark_one(self.host.prepared[number % len(self.host.prepared)])

    def _mark_one(self, transactional_id: str) -> None:
        prepared = self.host.transaction(transactional_id)
        assert prepared.is_prepared
        marked = self.marked.setdefault(transactional_id, set())
        left = sorted(prepared.partitions - marked)
        if left:
            producer = Producer(prepared.producer_id, prepared.epoch)
            self.partitions[left[0]].mark(producer, prepared.is_commit, prepared.version)
            marked.add(left[0])
        if len(left) <= 1:
            try:
                self.host.complete(transactional_id)
            except CoordinatorNotAvailable:
                self.host.prepared.append(transactional_id)
                return
            del self.marked[transactional_id]

    @rule(ms=st.sampled_from([100, 5_000, TIMEOUT_MS + 1000]))
    def wait(self, ms: int) -> None:
        ongoing = {each.transactional_id for each in self.host.shard if each.status is Status.ONGOING}
        self.host.wait(ms)
        for transactional_id in ongoing:
            if self.host.transaction(transactional_id).status is not Status.ONGOING:
                self._fence(transactional_id)

    @rule()
    def reload(self) -> None:
        """The coordinator dies: the log is all that is left, and all markers are written again."""
        self.host.reload()
        self.marked.clear()

    @rule()
    def full_disk(self) -> None:
        """The log refuses what comes next."""
        self.host.refuses, self.host.refuses_once = CoordinatorNotAvailable(), True

    # What must hold

    @invariant()
    def state_is_what_replaying_gives(self) -> None:
        if hasattr(self, "host"):
            prepared = list(self.host.prepared)
            assert set(self.host.replayed()) == set(self.host.shard)
            assert self.host.prepared == prepared

    @invariant()
    def prepared_transactions_wait_for_their_markers(self) -> None:
        if hasattr(self, "host"):
            waiting = {each.transactional_id for each in self.host.shard if each.is_prepared}
            assert sorted(self.host.prepared) == sorted(waiting)

    @invariant()
    def no_record_is_decided_against_its_transaction(self) -> None:
        for key, ends in self._ends().items():
            told = self.outcomes.get(key)
            if told is not None:
                assert ends <= {told, None}, f"{key} was told {told}"
            if key in self.not_committed:
                assert True not in ends, f"{key} was told that it is not committed"

    @invariant()
    def no_transaction_is_half_committed(self) -> None:
        for key, ends in self._ends().items():
            assert not {True, False} <= ends, f"{key} is committed here and aborted there"

    def _ends(self) -> dict[tuple[int, int], set[bool | None]]:
        ends: dict[tuple[int, int], set[bool | None]] = {}
        for partition in getattr(self, "partitions", {}).values():
            for record in partition.records:
                ends.setdefault(record.value, set()).add(record.is_committed)
        return ends

    def teardown(self) -> None:
        """When all is quiet nothing is open: no transaction hangs."""
        if not hasattr(self, "host"):
            return
        self.host.refuses = None
        for _ in range(2):
            self.host.wait(TIMEOUT_MS + 2000)
            while self.host.prepared:
                self._mark_one(self.host.prepared[0])
        for name, partition in self.partitions.items():
            assert partition.open_count == 0, f"{name} has a transaction that nobody ends"
            assert partition.state.last_stable_offset(partition.end_offset) == partition.end_offset
        for key, ends in self._ends().items():
            assert None not in ends
            if key in self.outcomes:
                assert ends == {self.outcomes[key]}
        self.no_transaction_is_half_committed()
        self.no_record_is_decided_against_its_transaction()


TestTransactions = Transactions.TestCase
TestTransactions.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=80,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
