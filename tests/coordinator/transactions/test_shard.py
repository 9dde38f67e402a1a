"""The transaction coordinator's rules, one by one."""

from __future__ import annotations

import pytest

from millstream.coordinator.shard import Entry, Producer
from millstream.coordinator.transaction_entries import TransactionLogKey, TransactionLogValue
from millstream.coordinator.transactions.shard import TransactionShard
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
    InvalidProducerIdMapping,
    InvalidTransactionTimeout,
    InvalidTxnState,
    ProducerFenced,
    TransactionAbortable,
)
from millstream.model import TopicPartition
from tests.coordinator.transactions.host import START_MS, Host

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
VERSIONS = pytest.mark.parametrize("version", [OLD, BUMPING], ids=["old", "bumping"])


@pytest.fixture
def host() -> Host:
    return Host()


def status(host: Host) -> Status:
    return host.transaction("x").status


@VERSIONS
def test_a_transaction_from_its_first_partition_to_its_end(host: Host, version: int) -> None:
    producer = host.new("x")
    assert (producer.epoch, status(host)) == (0, Status.EMPTY)
    host.clock.elapsed_ms = 10
    host.add("x", producer, A, version=version)
    host.clock.elapsed_ms = 20
    host.add("x", producer, B, version=version)
    ongoing = host.transaction("x")
    assert ongoing.status is Status.ONGOING
    assert ongoing.partitions == {A, B}
    assert (ongoing.started_ms, ongoing.updated_ms) == (START_MS + 10, START_MS + 20)
    following = host.end("x", producer, is_commit=True, version=version)
    assert host.prepared == ["x"]
    assert status(host) is Status.PREPARE_COMMIT
    assert host.transaction("x").partitions == {A, B}
    host.complete("x")
    done = host.transaction("x")
    assert (done.status, done.partitions) == (Status.COMPLETE_COMMIT, frozenset())
    assert following == (producer.producer_id, 1 if version == BUMPING else 0)
    assert following == (done.producer_id, done.epoch)
    host.add("x", following, B, version=version)
    assert host.transaction("x").partitions == {B}


def test_adding_what_is_there_writes_nothing(host: Host) -> None:
    producer = host.new("x")
    host.add("x", producer, A, B)
    length = len(host.log)
    host.add("x", producer, B)
    assert len(host.log) == length


def test_a_new_producer_fences_the_one_before(host: Host) -> None:
    old = host.new("x")
    new = host.new("x")
    assert new == (old.producer_id, old.epoch + 1)
    for version in (OLD, BUMPING):
        with pytest.raises(ProducerFenced):
            host.add("x", old, A, version=version)
        with pytest.raises(ProducerFenced):
            host.end("x", old, is_commit=False, version=version)
    with pytest.raises(ProducerFenced):
        host.init("x", expected=old)
    host.add("x", new, A)


@VERSIONS
def test_a_new_producer_aborts_what_is_open_and_has_to_ask_again(host: Host, version: int) -> None:
    old = host.new("x")
    host.add("x", old, A, version=version)
    assert host.init("x") is None
    assert status(host) is Status.PREPARE_ABORT
    with pytest.raises(ConcurrentTransactions):
        host.init("x")
    host.complete("x")
    for is_commit in (True, False):
        with pytest.raises(ProducerFenced):
            host.end("x", old, is_commit=is_commit, version=version)
    new = host.new("x")
    assert new.producer_id == old.producer_id
    assert new.epoch > old.epoch + 1
    host.add("x", new, A, version=version)


def test_a_stale_producer_cannot_abort_the_transaction_of_its_successor(host: Host) -> None:
    stale = host.new("x")
    current = host.new("x")
    host.add("x", current, A)
    with pytest.raises(ProducerFenced):
        host.init("x", expected=stale)
    assert status(host) is Status.ONGOING


def test_a_producer_that_goes_on_after_an_error(host: Host) -> None:
    """KIP-360: it gets the next epoch, and the same one if it has to ask twice."""
    first = host.new("x")
    second = host.init("x", expected=first)
    assert second == (first.producer_id, 1)
    assert host.init("x", expected=first) == second
    assert host.init("x", expected=second) == (first.producer_id, 2)
    with pytest.raises(ProducerFenced):
        host.init("x", expected=first)


def test_asking_again_is_not_mistaken_after_another_producer_came(host: Host) -> None:
    first = host.new("x")
    host.init("x", expected=first)
    host.new("x")
    with pytest.raises(ProducerFenced):
        host.init("x", expected=first)


def test_a_producer_that_nobody_remembers_gets_a_new_id(host: Host) -> None:
    got = host.init("x", expected=Producer(7, 3))
    assert got is not None
    assert got.producer_id != 7
    assert got.epoch == 0


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_time_outs_that_are_not_allowed(host: Host, timeout_ms: int) -> None:
    with pytest.raises(InvalidTransactionTimeout):
        host.init("x", timeout_ms)
    assert host.init("x", 900_000) is not None


@VERSIONS
def test_while_an_end_is_under_way(host: Host, version: int) -> None:
    producer = host.new("x")
    host.add("x", producer, A, version=version)
    following = host.end("x", producer, is_commit=True, version=version)
    with pytest.raises(ConcurrentTransactions):
        host.end("x", producer, is_commit=True, version=version)
    with pytest.raises(ConcurrentTransactions):
        host.add("x", following, A, version=version)
    with pytest.raises(ConcurrentTransactions):
        host.init("x")
    with pytest.raises(ConcurrentTransactions):
        host.shard.verify_partition("x", following, A)


def test_ends_of_the_old_version(host: Host) -> None:
    producer = host.new("x")
    for is_commit in (True, False):
        with pytest.raises(InvalidTxnState):
            host.end("x", producer, is_commit=is_commit, version=OLD)
        host.add("x", producer, A, version=OLD)
        host.end("x", producer, is_commit=is_commit, version=OLD)
        with pytest.raises(InvalidTxnState):
            host.end("x", producer, is_commit=not is_commit, version=OLD)
        host.complete("x")
        assert host.end("x", producer, is_commit=is_commit, version=OLD) == producer
        assert host.prepared == []
        with pytest.raises(InvalidTxnState):
            host.end("x", producer, is_commit=not is_commit, version=OLD)
        producer = host.new("x")


@pytest.mark.parametrize("before", [Status.EMPTY, Status.COMPLETE_ABORT, Status.COMPLETE_COMMIT])
def test_ends_of_version_2_where_nothing_is_open(host: Host, before: Status) -> None:
    """A repeated end of the same kind succeeds; an abort of nothing gives another epoch."""
    old = current = host.new("x")
    if before is not Status.EMPTY:
        host.add("x", old, A)
        current = host.end("x", old, is_commit=before is Status.COMPLETE_COMMIT)
        host.complete("x")
        assert host.end("x", old, is_commit=before is Status.COMPLETE_COMMIT) == current
        with pytest.raises(InvalidTxnState):
            host.end("x", old, is_commit=before is not Status.COMPLETE_COMMIT)
    assert status(host) is before
    with pytest.raises(InvalidTxnState):
        host.end("x", current, is_commit=True)
    assert host.end("x", current, is_commit=False) == (current.producer_id, current.epoch + 1)
    host.complete("x")
    assert status(host) is Status.COMPLETE_ABORT


def test_a_repeated_end_is_known_after_a_reload(host: Host) -> None:
    producer = host.new("x")
    host.add("x", producer, A)
    following = host.end("x", producer, is_commit=True)
    host.reload()
    assert host.prepared == ["x"]
    with pytest.raises(ConcurrentTransactions):
        host.end("x", producer, is_commit=True)
    host.complete("x")
    host.reload()
    assert host.prepared == []
    assert host.end("x", producer, is_commit=True) == following


def test_only_the_owner_touches_a_transaction(host: Host) -> None:
    producer = host.new("x")
    other = host.new("y")
    for version in (OLD, BUMPING):
        for name, wrong in (("x", other), ("nobody", producer)):
            with pytest.raises(InvalidProducerIdMapping):
                host.add(name, wrong, A, version=version)
            with pytest.raises(InvalidProducerIdMapping):
                host.end(name, wrong, is_commit=True, version=version)
        with pytest.raises(ProducerFenced):
            host.add("x", Producer(producer.producer_id, 1), A, version=version)
        with pytest.raises(ProducerFenced):
            host.end("x", Producer(producer.producer_id, 1), is_commit=False, version=version)
    with pytest.raises(InvalidProducerIdMapping):
        host.shard.verify_partition("x", other, A)


def test_verifying_a_partition(host: Host) -> None:
    producer = host.new("x")
    with pytest.raises(TransactionAbortable):
        host.shard.verify_partition("x", producer, A)
    host.add("x", producer, A, version=OLD)
    host.shard.verify_partition("x", producer, A)
    with pytest.raises(TransactionAbortable):
        host.shard.verify_partition("x", producer, B)
    host.end("x", producer, is_commit=True, version=OLD)
    host.complete("x")
    with pytest.raises(TransactionAbortable):
        host.shard.verify_partition("x", producer, A)


# Time


@VERSIONS
def test_a_transaction_that_takes_too_long_is_aborted(host: Host, version: int) -> None:
    late, quick = host.new("x", 30_000), host.new("y", 200_000)
    host.add("x", late, A, version=version)
    host.add("y", quick, A, version=version)
    host.wait(30_000)
    assert host.prepared == []
    host.wait(10_000)
    assert host.prepared == ["x"]
    assert status(host) is Status.PREPARE_ABORT
    assert host.transaction("x").version == BUMPING  # its marker is above all epochs of the producer
    assert host.transaction("y").status is Status.ONGOING
    with pytest.raises(ProducerFenced):
        host.end("x", late, is_commit=True, version=version)
    host.complete("x")
    for is_commit in (True, False):
        with pytest.raises(ProducerFenced):
            host.end("x", late, is_commit=is_commit, version=version)
    assert host.new("x").epoch > late.epoch


def test_the_time_is_counted_from_the_first_partition(host: Host) -> None:
    producer = host.new("x", 30_000)
    host.wait(100_000)
    host.add("x", producer, A)
    host.wait(20_000)
    assert host.prepared == []
    host.reload()
    host.wait(25_000)
    assert host.prepared == ["x"]


@pytest.mark.parametrize("is_reloaded", [False, True])
@pytest.mark.parametrize("jump_ms", [-3_600_000, 3_600_000])
def test_a_clock_that_is_set_makes_no_transaction_last_longer(
    host: Host, jump_ms: int, is_reloaded: bool
) -> None:
    """Nor does it end one that has been looked at before its time."""
    host.add("x", host.new("x", 60_000), A)
    host.wait(15_000)
    host.clock.jumped_ms = jump_ms
    if is_reloaded:
        host.reload()
    host.wait(20_000)
    assert host.prepared == (["x"] if is_reloaded and jump_ms > 0 else [])
    host.wait(60_000)
    assert host.prepared == ["x"]


@pytest.mark.parametrize("jump_ms", [-3_600_000, 3_600_000])
def test_a_clock_that_is_set_does_not_end_a_transaction_that_has_just_begun(host: Host, jump_ms: int) -> None:
    host.add("x", host.new("x", 60_000), A)
    host.wait(1000)
    host.clock.jumped_ms = jump_ms
    host.wait(50_000)
    assert host.prepared == []
    host.wait(20_000)
    assert host.prepared == ["x"]


def test_a_transaction_that_goes_on_after_a_move_gets_no_more_time(host: Host) -> None:
    producer = host.new("x", 30_000)
    host.add("x", producer, A)
    host.wait(25_000)
    host.reload()
    host.add("x", producer, B)
    host.wait(15_000)
    assert host.prepared == ["x"]


def test_an_id_that_is_used_again_has_its_whole_time(host: Host) -> None:
    producer = host.new("x", 60_000)
    host.add("x", producer, A)
    host.wait(50_000)
    host.end("x", producer, is_commit=True)
    host.complete("x")
    host.add("x", host.new("x", 60_000), A)
    host.wait(50_000)
    assert host.prepared == []
    host.wait(20_000)
    assert host.prepared == ["x"]


def test_an_abort_that_the_log_refused_is_tried_again(host: Host) -> None:
    host.add("x", host.new("x", 1000), A)
    host.refuses = CoordinatorNotAvailable()
    host.wait(60_000)
    assert host.prepared == []
    host.refuses = None
    host.wait(600)
    assert host.prepared == ["x"]


def test_many_late_transactions_are_aborted_a_few_at_a_time(host: Host) -> None:
    for number in range(3000):
        partitions = [TopicPartition("a-topic-with-a-long-name", index) for index in range(50)]
        host.add(f"id-{number}", host.new(f"id-{number}", 1000), *partitions)
    length = len(host.log)
    host.wait(20_000)
    assert sorted(host.prepared) == sorted(f"id-{number}" for number in range(3000))
    assert len(host.log) == length + 3000
    assert host.largest_bytes < 600_000


def test_ids_that_nobody_uses_are_forgotten() -> None:
    host = Host(
        {
            "transactional.id.expiration.ms": "100000",
            "transaction.remove.expired.transaction.cleanup.interval.ms": "10000",
        }
    )
    for name in ("empty", "committed", "open", "used"):
        producer = host.new(name, 900_000)
        if name != "empty":
            host.add(name, producer, A)
        if name == "committed":
            host.end(name, producer, is_commit=True)
            host.complete(name)
    host.wait(95_000)
    assert len(list(host.shard)) == 4
    used = host.transaction("used")
    host.end("used", Producer(used.producer_id, used.epoch), is_commit=False)
    host.wait(100_000 - 95_000 + 10_000)
    assert {transaction.transactional_id for transaction in host.shard} == {"open", "used"}
    assert {transaction.transactional_id for transaction in host.replayed()} == {"open", "used"}
    assert host.new("empty").epoch == 0


def test_many_ids_expire_a_few_at_a_time() -> None:
    host = Host({"transactional.id.expiration.ms": "1", "transaction.max.timeout.ms": "1000"})
    for number in range(5000):
        host.new(f"id-{number}", 1000)
    host.wait(3_600_000)
    assert list(host.shard) == []


def test_ids_whose_end_the_log_refused_are_forgotten_when_it_takes_it() -> None:
    host = Host({"transactional.id.expiration.ms": "1", "transaction.max.timeout.ms": "1000"})
    for number in range(5000):
        host.new(f"id-{number}", 1000)
    host.refuses = CoordinatorNotAvailable()
    host.wait(3_600_000)
    assert len(list(host.shard)) == 5000
    host.refuses = None
    host.wait(5000)
    assert list(host.shard) == []


# Epochs


def at_epoch(host: Host, epoch: int, state: Status = Status.EMPTY) -> Producer:
    """A producer that has come to this epoch."""
    host.put(Transaction("x", 7, epoch, 60_000, state, START_MS, started_ms=START_MS))
    return Producer(7, epoch)


def test_a_new_producer_gets_another_id_when_the_epochs_are_used_up(host: Host) -> None:
    at_epoch(host, MAX_EPOCH - 2)
    last = host.new("x")
    assert last == (7, MAX_EPOCH - 1)
    following = host.new("x")
    assert following.producer_id != 7
    assert following.epoch == 0
    with pytest.raises(InvalidProducerIdMapping):
        host.add("x", last, A)
    with pytest.raises(ProducerFenced):
        host.init("x", expected=last)


def test_the_new_id_can_be_asked_for_twice(host: Host) -> None:
    last = at_epoch(host, MAX_EPOCH - 1)
    following = host.init("x", expected=last)
    assert following is not None
    assert following.producer_id != 7
    assert host.init("x", expected=last) == following


@pytest.mark.parametrize("is_commit", [True, False])
def test_an_end_gives_another_id_when_the_epochs_are_used_up(host: Host, is_commit: bool) -> None:
    last = at_epoch(host, MAX_EPOCH - 1)
    host.add("x", last, A)
    following = host.end("x", last, is_commit=is_commit)
    assert following.producer_id != 7
    assert following.epoch == 0
    prepared = host.transaction("x")
    assert (prepared.producer_id, prepared.epoch) == (7, MAX_EPOCH)  # what the marker carries
    assert prepared.next_producer_id == following.producer_id
    with pytest.raises(ConcurrentTransactions):
        host.end("x", last, is_commit=is_commit)
    host.reload()
    host.complete("x")
    assert host.end("x", last, is_commit=is_commit) == following
    with pytest.raises(InvalidTxnState):
        host.end("x", last, is_commit=not is_commit)
    host.add("x", following, A)
    with pytest.raises(InvalidProducerIdMapping):
        host.end("x", last, is_commit=is_commit)


@pytest.mark.parametrize("is_reloaded", [True, False])
@pytest.mark.parametrize("is_commit", [True, False])
def test_a_producer_that_goes_on_with_its_new_id_waits_for_the_markers(
    host: Host, is_commit: bool, is_reloaded: bool
) -> None:
    """It was told its new id before the end was complete: it has to try again, and is not shut out."""
    last = at_epoch(host, MAX_EPOCH - 1)
    host.add("x", last, A)
    following = host.end("x", last, is_commit=is_commit)
    if is_reloaded:
        host.reload()
    with pytest.raises(ConcurrentTransactions):
        host.add("x", following, A)
    with pytest.raises(ConcurrentTransactions):
        host.shard.verify_partition("x", following, A)
    with pytest.raises(ConcurrentTransactions):
        host.end("x", following, is_commit=False)
    with pytest.raises(ConcurrentTransactions):
        host.init("x", expected=following)
    with pytest.raises(InvalidProducerIdMapping):
        host.add("x", Producer(following.producer_id, 1), A)
    host.complete("x")
    host.add("x", following, A)
    assert host.end("x", following, is_commit=True) == (following.producer_id, 1)


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_producer_that_ends_again_before_the_markers_are_written_has_to_wait(
    host: Host, is_commit: bool
) -> None:
    """It gave up a transaction in which it could not write yet: it is not fenced for that."""
    producer = host.new("x")
    host.add("x", producer, A)
    following = host.end("x", producer, is_commit=is_commit)
    for _ in range(2):
        with pytest.raises(ConcurrentTransactions):
            host.end("x", following, is_commit=False)
        host.reload()
    host.complete("x")
    assert host.end("x", following, is_commit=False) == (following.producer_id, following.epoch + 1)


def test_only_an_end_that_raised_the_epoch_is_repeated_with_the_one_before(host: Host) -> None:
    """A producer that was fenced by one of the old protocol must not get the identity of that one."""
    fenced = host.new("x")
    newer = host.new("x")
    assert newer.epoch == fenced.epoch + 1
    host.add("x", newer, A, version=OLD)
    host.end("x", newer, is_commit=False, version=OLD)
    with pytest.raises(ProducerFenced):
        host.end("x", fenced, is_commit=False)
    host.complete("x")
    with pytest.raises(ProducerFenced):
        host.end("x", fenced, is_commit=False)
    with pytest.raises(ProducerFenced):
        host.init("x", expected=fenced)


@pytest.mark.parametrize("epoch", [5, MAX_EPOCH - 1])
def test_a_producer_that_did_not_hear_of_its_end_can_ask_for_its_epoch(host: Host, epoch: int) -> None:
    last = at_epoch(host, epoch)
    host.add("x", last, A)
    following = host.end("x", last, is_commit=True)
    with pytest.raises(ConcurrentTransactions):
        host.init("x", expected=last)
    host.complete("x")
    assert host.init("x", expected=last) == following
    host.add("x", following, A)
    with pytest.raises(ProducerFenced):
        host.init("x", expected=last)


@pytest.mark.parametrize("epoch", [MAX_EPOCH - 3, MAX_EPOCH - 2, MAX_EPOCH - 1])
def test_fencing_at_the_end_of_the_epochs(host: Host, epoch: int) -> None:
    last = at_epoch(host, epoch)
    host.add("x", last, A)
    assert host.init("x") is None
    assert last.epoch < host.transaction("x").epoch <= MAX_EPOCH
    host.complete("x")
    for is_commit in (True, False):
        with pytest.raises(ProducerFenced):
            host.end("x", last, is_commit=is_commit)
        for version in (OLD, BUMPING):
            with pytest.raises(ProducerFenced):
                host.end("x", Producer(7, MAX_EPOCH), is_commit=is_commit, version=version)
    with pytest.raises(ProducerFenced):
        host.add("x", Producer(7, MAX_EPOCH), A)
    following = host.new("x")
    assert following.epoch < MAX_EPOCH
    assert following.producer_id != 7 or following.epoch > epoch


# The log


def test_the_format_of_the_log() -> None:
    """As Kafka writes it: bytes that its own coordinator would take over."""
    transaction = Transaction(
        "x",
        producer_id=5,
        epoch=3,
        timeout_ms=60_000,
        status=Status.PREPARE_COMMIT,
        updated_ms=1001,
        partitions=frozenset({B, A, TopicPartition("s", 4)}),
        started_ms=1000,
        previous_producer_id=5,
        next_producer_id=9,
        version=2,
    )
    key, value = transaction.to_entry()
    assert key == bytes.fromhex("0000 0001") + b"x"
    assert value is not None
    assert value[:2] == b"\x00\x01"
    decoded = TransactionLogValue.decode(value, 1, 2)
    assert decoded.transaction_partitions is not None
    assert [(each.topic, each.partition_ids) for each in decoded.transaction_partitions] == [
        ("s", [4]),
        ("t", [0, 1]),
    ]
    assert decoded.client_transaction_version == 2


def test_entries_that_are_not_known_are_passed_over(host: Host) -> None:
    host.new("x")
    known = host.transaction("x")
    key = TransactionLogKey(transactional_id="x").to_bytes()
    for entry in (
        Entry(b"\x00\x63other", b"\x00\x00"),
        Entry(key, b"\x00\x63future"),
        Entry(key, b"\x00\x01torn"),
        Entry(b"\x00", b""),
    ):
        host.shard.replay(entry, None, 99)
    assert host.transaction("x") == known


def test_version_0_of_the_log_is_read(host: Host) -> None:
    value = TransactionLogValue(
        producer_id=5,
        producer_epoch=3,
        transaction_timeout_ms=60_000,
        transaction_status=int(Status.PREPARE_ABORT),
        transaction_partitions=[TransactionLogValue.PartitionsSchema(topic="t", partition_ids=[1])],
        transaction_last_update_timestamp_ms=11,
        transaction_start_timestamp_ms=10,
    )
    key = TransactionLogKey(transactional_id="old").to_bytes()
    host.log.append(Entry(key, b"\x00\x00" + value.encode(0)))
    host.reload()
    assert host.prepared == ["old"]
    found = host.transaction("old")
    assert (set(found.partitions), found.version, found.epoch) == ({B}, OLD, 3)


def test_a_shard_that_is_replaced_ends_nothing_more(host: Host) -> None:
    producer = host.new("x")
    host.add("x", producer, A)
    replaced: TransactionShard = host.shard
    host.reload()
    host.end("x", producer, is_commit=True)
    replaced.replay(host.log[-1], None, len(host.log) - 1)
    assert host.prepared == ["x"]
