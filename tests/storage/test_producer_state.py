from __future__ import annotations

import pytest

from millstream.config.log import LogConfig
from millstream.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaStorageError,
    NotLeaderOrFollower,
    OutOfOrderSequenceNumber,
    TransactionCoordinatorFenced,
)
from millstream.protocol.batch import ControlMarker, encode_marker, read_header
from millstream.storage.log import Appended, Log
from millstream.storage.producer_state import DAY_MS, REFUSED_MS
from tests.storage.logs import NOW_MS, World, append, batch

LAST_SEQUENCE = 0x7FFFFFFF


@pytest.fixture
def log(world: World) -> Log:
    return world.open()


def send(log: Log, sequence: int, *, epoch: int = 0, count: int = 1, producer_id: int = 7) -> Appended:
    return append(log, batch(*[b"v"] * count, producer_id=producer_id, epoch=epoch, sequence=sequence))


def write(log: Log, producer_id: int, sequence: int = 0, epoch: int = 0) -> Appended:
    return append(
        log, batch(b"t", producer_id=producer_id, epoch=epoch, sequence=sequence, is_transactional=True)
    )


def end(
    log: Log,
    producer_id: int,
    *,
    is_commit: bool,
    epoch: int = 0,
    coordinator_epoch: int = 1,
    version: int = 0,
) -> Appended:
    marker = encode_marker(
        ControlMarker(is_commit, coordinator_epoch),
        producer_id=producer_id,
        producer_epoch=epoch,
        timestamp_ms=NOW_MS,
    )
    return append(log, marker, transaction_version=version)


def test_batches_in_order_are_taken(log: Log) -> None:
    assert send(log, 0, count=3).base_offset == 0
    assert send(log, 3, count=2).base_offset == 3
    assert send(log, 5).base_offset == 5
    assert log.producers.producers[7].last_sequence == 5


def test_the_last_five_batches_are_recognised(log: Log) -> None:
    for number in range(7):
        send(log, number * 2, count=2)
    for number in range(2, 7):
        again = send(log, number * 2, count=2)
        assert again.is_duplicate
        assert (again.base_offset, again.last_offset) == (number * 2, number * 2 + 1)
    assert log.end_offset == 14
    for number in range(2):
        with pytest.raises(OutOfOrderSequenceNumber):
            send(log, number * 2, count=2)
    with pytest.raises(OutOfOrderSequenceNumber):
        send(log, 12, count=1)


def test_a_gap_is_refused(log: Log) -> None:
    send(log, 0)
    with pytest.raises(OutOfOrderSequenceNumber):
        send(log, 2)
    assert send(log, 1).base_offset == 1


def test_what_follows_a_batch_that_was_not_written_waits_for_it(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new producer's first batch met a full disk; those in flight behind it must not overtake it."""

    def refuse(*_: object) -> None:
        raise KafkaStorageError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(log, "_write", refuse)
        with pytest.raises(KafkaStorageError):
            send(log, 0, count=2)
    with pytest.raises(KafkaStorageError, match="the disk is full"):
        send(log, 2)
    assert send(log, 0, producer_id=8).base_offset == 0
    assert send(log, 0, count=2).base_offset == 1
    assert send(log, 2).base_offset == 3


def refuse(log: Log, sequence: int, *, epoch: int = 0) -> None:
    header = read_header(batch(b"v", producer_id=7, epoch=epoch, sequence=sequence))
    log.producers.refuse(header, NotLeaderOrFollower())


@pytest.mark.parametrize(("sent", "lost"), [(4, 5), (LAST_SEQUENCE - 1, LAST_SEQUENCE), (LAST_SEQUENCE, 0)])
def test_a_known_producers_batches_behind_one_that_was_not_written_can_be_sent_again(
    log: Log, sent: int, lost: int
) -> None:
    """Told that they are out of order, clients begin a new epoch, in which duplicates are not recognised."""
    behind = 0 if lost == LAST_SEQUENCE else lost + 1
    send(log, sent)
    refuse(log, lost)
    refuse(log, behind)
    for _ in range(2):  # the client sends both again, in order
        with pytest.raises(NotLeaderOrFollower):
            send(log, behind)
        refuse(log, lost)
    assert send(log, sent).is_duplicate
    send(log, lost)
    send(log, behind)
    with pytest.raises(OutOfOrderSequenceNumber):
        send(log, behind + 2)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_batch_that_its_client_gave_up_is_not_waited_for(log: Log, is_known: bool) -> None:
    """It would be for ever: clients begin a new epoch when they hear that they are out of order."""
    if is_known:
        send(log, 4)
    refuse(log, 5)
    for sequence in (6, 7):
        with pytest.raises(NotLeaderOrFollower):
            send(log, sequence)
    for sequence in (6, 7):  # 5 took too long
        with pytest.raises(OutOfOrderSequenceNumber):
            send(log, sequence)
    send(log, 0, epoch=1)


def test_only_what_is_not_in_the_log_is_waited_for(log: Log) -> None:
    for sequence in (0, 1):
        send(log, sequence)
    refuse(log, 1)  # its answer was lost, and here nobody led when it came again
    with pytest.raises(OutOfOrderSequenceNumber):
        send(log, 3)
    log.producers.expire(NOW_MS, DAY_MS)
    log.producers.expire(NOW_MS + DAY_MS, DAY_MS)
    assert 7 not in log.producers
    send(log, 2)


def test_a_batch_that_does_not_come_again_is_forgotten_in_time(log: Log) -> None:
    refuse(log, 0)
    for now_ms in (NOW_MS, NOW_MS + REFUSED_MS - 1):
        log.producers.expire(now_ms, DAY_MS)
        with pytest.raises((NotLeaderOrFollower, OutOfOrderSequenceNumber)):
            send(log, 1)
    log.producers.expire(NOW_MS + REFUSED_MS, DAY_MS)
    send(log, 1)


def test_that_a_batch_was_not_written_is_known_also_after_a_cut(log: Log) -> None:
    """Another broker leads meanwhile: this one cuts off what that one has not, and copies what it has."""
    for sequence in range(3):
        send(log, sequence)
    refuse(log, 3)
    log.truncate_to(1)
    for sequence in (1, 2):
        send(log, sequence)
    with pytest.raises(NotLeaderOrFollower):
        send(log, 4)
    refuse(log, 3)
    log.restart_at(9)
    with pytest.raises(NotLeaderOrFollower):
        send(log, 4)
    send(log, 3)
    send(log, 4)


def test_a_new_epoch_waits_for_nothing_that_was_not_written_before_it(log: Log) -> None:
    send(log, 0)
    refuse(log, 1)
    send(log, 0, epoch=1)
    refuse(log, 1, epoch=1)
    with pytest.raises(NotLeaderOrFollower):
        send(log, 2, epoch=1)
    refuse(log, 0, epoch=2)
    with pytest.raises(NotLeaderOrFollower):
        send(log, 1, epoch=2)
    send(log, 0, epoch=2)
    send(log, 1, epoch=2)


def test_the_first_of_several_batches_that_were_not_written_counts(log: Log) -> None:
    for sequence in (0, 1):
        refuse(log, sequence)
    with pytest.raises(NotLeaderOrFollower):
        send(log, 1)
    assert send(log, 0).base_offset == 0
    assert send(log, 1).base_offset == 1


def test_an_unknown_producer_may_start_anywhere(log: Log) -> None:
    """KIP-360: what it wrote before may have been deleted."""
    assert send(log, 500).base_offset == 0
    assert send(log, 501).base_offset == 1


def test_sequences_wrap_around(log: Log) -> None:
    send(log, LAST_SEQUENCE - 1, count=2)
    assert send(log, 0).base_offset == 2
    send(log, 1)
    assert send(log, LAST_SEQUENCE - 1, count=2).is_duplicate


def test_a_batch_across_the_wrap_is_recognised(log: Log) -> None:
    send(log, LAST_SEQUENCE - 1, count=4)
    assert log.producers.producers[7].last_sequence == 1
    assert send(log, LAST_SEQUENCE - 1, count=4).is_duplicate
    assert send(log, 2).base_offset == 4


def test_a_new_epoch_starts_at_zero(log: Log) -> None:
    send(log, 0)
    send(log, 1)
    with pytest.raises(OutOfOrderSequenceNumber):
        send(log, 2, epoch=1)
    assert send(log, 0, epoch=1).base_offset == 2
    with pytest.raises(InvalidProducerEpoch):
        send(log, 1, epoch=0)
    assert send(log, 0, epoch=1).is_duplicate
    assert log.end_offset == 3


def test_a_refused_batch_changes_nothing(log: Log) -> None:
    send(log, 0)
    before = log.segments.active.size
    with pytest.raises(OutOfOrderSequenceNumber):
        send(log, 5)
    assert send(log, 0).is_duplicate
    assert (log.end_offset, log.segments.active.size) == (1, before)


def test_silent_producers_are_forgotten_unless_in_a_transaction(log: Log) -> None:
    send(log, 0, producer_id=1)
    write(log, 2)
    log.apply_retention(NOW_MS)
    log.apply_retention(NOW_MS + DAY_MS - 1)
    assert sorted(log.producers.producers) == [1, 2]
    log.producers.expire(NOW_MS + DAY_MS, DAY_MS)
    assert sorted(log.producers.producers) == [2]
    assert [producer.producer_id for producer in log.active_producers()] == [2]


def test_old_timestamps_do_not_make_a_producer_silent(log: Log) -> None:
    old = batch(b"x", timestamp=NOW_MS - 1000 * DAY_MS, producer_id=1, epoch=0, sequence=0)
    append(log, bytearray(old))
    log.apply_retention(NOW_MS)
    assert append(log, bytearray(old)).is_duplicate
    log.apply_retention(NOW_MS + DAY_MS - 1)
    following = batch(b"y", timestamp=NOW_MS - 1000 * DAY_MS, producer_id=1, epoch=0, sequence=1)
    append(log, bytearray(following))
    log.apply_retention(NOW_MS + 2 * DAY_MS - 2)
    assert append(log, bytearray(following)).is_duplicate
    log.apply_retention(NOW_MS + 3 * DAY_MS)
    assert log.active_producers() == []


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_restart_makes_no_producer_silent(world: World, is_clean: bool) -> None:
    log = world.open(LogConfig(retention_ms=-1))
    old = batch(b"x", timestamp=NOW_MS - 1000 * DAY_MS, producer_id=1, epoch=0, sequence=0)
    append(log, bytearray(old))
    log.close(is_clean=is_clean)
    log = world.open(LogConfig(retention_ms=-1), is_clean=is_clean)
    log.apply_retention(NOW_MS)
    log.apply_retention(NOW_MS + DAY_MS - 1)
    assert append(log, bytearray(old)).is_duplicate
    log.close()


def test_a_batch_sent_again_has_the_time_of_its_first_append(log: Log) -> None:
    first = batch(b"x", producer_id=1, epoch=0, sequence=0)
    again = batch(b"x", timestamp=NOW_MS + 5, producer_id=1, epoch=0, sequence=0)
    for data, answered in ((first, False), (again, True)):
        header = read_header(data)
        stamped = header._replace(attributes=header.attributes | 8)
        appended = log.append(memoryview(data), stamped, 0)
        assert (appended.is_duplicate, appended.log_append_time_ms) == (answered, NOW_MS)


def test_the_last_stable_offset_waits_for_open_transactions(log: Log) -> None:
    send(log, 0)
    assert log.last_stable_offset(1) == 1
    write(log, 1)
    write(log, 2)
    send(log, 1)
    assert log.last_stable_offset(4) == 1
    end(log, 1, is_commit=True)
    assert log.last_stable_offset(5) == 2
    end(log, 2, is_commit=False)
    assert log.last_stable_offset(6) == 6


def test_a_decision_counts_once_it_is_committed(log: Log) -> None:
    write(log, 1)
    end(log, 1, is_commit=True)
    assert log.last_stable_offset(1) == 0
    assert log.last_stable_offset(2) == 2


def test_aborted_transactions_are_found_by_the_range_they_touch(log: Log) -> None:
    write(log, 1)  # 0
    write(log, 2)  # 1
    end(log, 1, is_commit=False)  # 2
    send(log, 0)  # 3
    end(log, 2, is_commit=False)  # 4
    write(log, 1, sequence=1)  # 5
    end(log, 1, is_commit=True)  # 6
    assert log.aborted_transactions(0, 7) == [(1, 0), (2, 1)]
    assert log.aborted_transactions(3, 7) == [(2, 1)]
    assert log.aborted_transactions(0, 1) == [(1, 0)]
    assert log.aborted_transactions(5, 7) == []


def test_a_producer_in_a_transaction_writes_only_in_it(log: Log) -> None:
    write(log, 1)
    with pytest.raises(InvalidTxnState):
        send(log, 1, producer_id=1)


def test_an_old_coordinator_is_fenced(log: Log) -> None:
    write(log, 1)
    end(log, 1, is_commit=True, coordinator_epoch=5)
    with pytest.raises(TransactionCoordinatorFenced):
        end(log, 1, is_commit=True, coordinator_epoch=4)


def test_a_marker_of_an_old_epoch_is_refused(log: Log) -> None:
    write(log, 1, epoch=3)
    with pytest.raises(InvalidProducerEpoch):
        end(log, 1, is_commit=True, epoch=2)
    end(log, 1, is_commit=True, epoch=3)


def test_in_version_2_a_marker_carries_a_higher_epoch(log: Log) -> None:
    """KIP-890: a delayed marker must not end the producer's next transaction."""
    write(log, 1, epoch=3)
    with pytest.raises(InvalidProducerEpoch):
        end(log, 1, is_commit=True, epoch=3, version=2)
    end(log, 1, is_commit=True, epoch=4, version=2)
    end(log, 1, is_commit=True, epoch=4, version=2)  # a retry of what was done
    assert log.producers.producers[1].epoch == 4
    with pytest.raises(OutOfOrderSequenceNumber):
        write(log, 1, epoch=4, sequence=1)
    write(log, 1, epoch=4, sequence=0)
    with pytest.raises(InvalidProducerEpoch):
        end(log, 1, is_commit=True, epoch=4, version=2)


def test_a_marker_without_a_transaction_changes_no_offset(log: Log) -> None:
    end(log, 1, is_commit=False)
    assert log.aborted_transactions(0, 10) == []
    assert log.last_stable_offset(1) == 1


def test_transactions_survive_a_clean_restart(world: World) -> None:
    log = world.open()
    write(log, 1)
    send(log, 0)
    log.close()
    log = world.open(is_clean=True)
    assert log.last_stable_offset(2) == 0
    end(log, 1, is_commit=False)
    assert log.last_stable_offset(3) == 3
    log.close()
    assert world.open(is_clean=True).aborted_transactions(0, 3) == [(1, 0)]


def test_what_is_refused_of_an_epoch_before_hides_nothing_of_a_later_one(log: Log) -> None:
    """It was in flight when the producer began anew."""
    refuse(log, 0, epoch=1)
    refuse(log, 7)
    with pytest.raises(NotLeaderOrFollower):
        send(log, 1, epoch=1)


def test_a_copied_batch_of_an_epoch_before_hides_nothing_that_was_refused_of_a_later_one(log: Log) -> None:
    """A follower still copies what the producer wrote before it began anew, and will lead."""
    send(log, 0)
    refuse(log, 0, epoch=1)
    send(log, 1)
    with pytest.raises(NotLeaderOrFollower):
        send(log, 1, epoch=1)
