"""Transactions on the wire: both protocols, fencing, verification, and what readers of committed data see."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from millstream.protocol.batch import decode_marker, decode_records, read_header
from millstream.protocol.messages import (
    AddPartitionsToTxnRequest,
    ApiVersionsRequest,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    ListTransactionsRequest,
    OffsetFetchRequest,
    ProduceRequest,
    WriteTxnMarkersRequest,
)
from tests.conftest import Name
from tests.processes import until
from tests.transactional import (
    NEW_END,
    NEW_PRODUCE,
    OLD_END,
    OLD_PRODUCE,
    TransactionalProducer,
    find_coordinator,
    read_committed,
    until_settled,
    visible,
)
from tests.wire import (
    Wire,
    append,
    batch,
    batches,
    create_topic,
    end_offset,
    fetch,
    fetch_partition,
    fetch_request,
    fetched,
    produce,
    values,
)

UNKNOWN_TOPIC, INVALID_TOPIC, INVALID_GROUP, INVALID_REQUEST, OUT_OF_ORDER = 3, 17, 24, 42, 45
INVALID_EPOCH, INVALID_TXN_STATE, INVALID_MAPPING, INVALID_TIMEOUT = 47, 48, 49, 50
NOT_AUTHORIZED, NOT_ATTEMPTED, FENCED, UNSTABLE, NO_SUCH_ID, ABORTABLE = 53, 55, 90, 88, 105, 120
INVALID_PATTERN = 128
PATIENCE_S = 30.0


@pytest.fixture
def wire(bootstrap: str) -> Iterator[Wire]:
    with Wire(bootstrap) as connection:
        yield connection


@pytest.fixture
def topic(wire: Wire, new_name: Name) -> str:
    name = new_name("txn")
    create_topic(wire, name, partitions=2)
    return name


@pytest.fixture
def producer(wire: Wire, topic: str, new_name: Name) -> TransactionalProducer:
    return TransactionalProducer(wire, new_name("id"), topic).begun()


def stable(wire: Wire, topic: str, partition: int = 0) -> int:
    """The last stable offset, from ListOffsets."""
    wanted = ListOffsetsRequest.ListOffsetsPartition(partition_index=partition, timestamp=-1)
    entry = ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[wanted])
    request = ListOffsetsRequest(replica_id=-1, isolation_level=1, topics=[entry])
    offset: int = wire.ask(request, 7).topics[0].partitions[0].offset
    return offset


def settled(wire: Wire, topic: str, partition: int = 0) -> None:
    """Wait until no transaction holds the last stable offset: markers come after the answer."""
    until(
        lambda: stable(wire, topic, partition) == end_offset(wire, topic, partition=partition),
        PATIENCE_S,
        "the transactions' ends are written",
    )


# The old protocol


@pytest.mark.parametrize("version", range(4))
def test_partitions_are_named_first(producer: TransactionalProducer, version: int) -> None:
    wire, topic = producer.wire, producer.topic
    end_version = min(version, OLD_END)
    assert producer.add(0, 1, version=version) == [0, 0]
    assert producer.send(b"a", b"b").base_offset == 0
    assert producer.send(b"c", partition=1).error_code == 0
    append(wire, topic, b"plain")
    assert stable(wire, topic) == 0
    during = read_committed(wire, topic)
    assert (during.last_stable_offset, during.high_watermark, during.records) == (0, 3, b"")
    assert values(fetch(wire, topic, 0).records) == [b"a", b"b", b"plain"]
    epoch = producer.epoch
    producer.commit(end_version)
    assert producer.epoch == epoch
    settled(wire, topic)
    settled(wire, topic, 1)
    assert visible(read_committed(wire, topic)) == [b"a", b"b", b"plain"]
    assert visible(read_committed(wire, topic, partition=1)) == [b"c"]
    (data, _, end) = batches(read_committed(wire, topic).records)
    assert read_header(data).producer_epoch == read_header(end).producer_epoch == epoch
    marker = decode_marker(decode_records(end, include_control=True)[0])
    assert marker is not None
    assert marker.is_commit


def test_aborted_records_are_named_to_readers(producer: TransactionalProducer) -> None:
    wire, topic = producer.wire, producer.topic
    for round_ in range(3):
        producer.add(0)
        producer.send(b"%d" % round_, b"%d" % round_)
        if round_ == 1:
            producer.commit(OLD_END)
        else:
            producer.abort(OLD_END)
    settled(wire, topic)
    found = read_committed(wire, topic)
    assert [(each.producer_id, each.first_offset) for each in found.aborted_transactions] == [
        (producer.producer_id, 0),
        (producer.producer_id, 6),
    ]
    assert visible(found) == [b"1", b"1"]
    assert fetch(wire, topic, 0).aborted_transactions is None


@pytest.mark.parametrize(
    ("version", "code"), [(3, INVALID_TXN_STATE), (10, INVALID_TXN_STATE), (11, ABORTABLE)]
)
def test_a_partition_that_was_not_named(producer: TransactionalProducer, version: int, code: int) -> None:
    """KIP-890: no batch may open a transaction that nobody would end."""
    wire, topic = producer.wire, producer.topic
    producer.add(1)
    assert producer.send(b"stray", version=version).error_code == code
    assert end_offset(wire, topic) == 0
    assert producer.send(b"named", partition=1, version=version).error_code == 0
    producer.commit(OLD_END)
    assert stable(wire, topic) == 0


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_batch_that_comes_after_the_end(producer: TransactionalProducer, is_commit: bool) -> None:
    """The last stable offset would be held for good."""
    wire, topic = producer.wire, producer.topic
    producer.add(0)
    producer.send(b"in time")
    producer.end(is_commit=is_commit, version=OLD_END)
    settled(wire, topic)
    assert producer.send(b"late").error_code in (INVALID_TXN_STATE, INVALID_EPOCH)
    settled(wire, topic)


def test_an_end_that_is_repeated(producer: TransactionalProducer) -> None:
    producer.add(0)
    producer.send(b"x")
    producer.commit(OLD_END)
    producer.commit(OLD_END)
    assert producer.end(is_commit=False, version=OLD_END).error_code == INVALID_TXN_STATE
    settled(producer.wire, producer.topic)
    assert end_offset(producer.wire, producer.topic) == 2


def test_nothing_to_end(producer: TransactionalProducer) -> None:
    for is_commit in (True, False):
        assert producer.end(is_commit=is_commit, version=OLD_END).error_code == INVALID_TXN_STATE


def test_partitions_that_do_not_exist(producer: TransactionalProducer, new_name: Name) -> None:
    assert producer.add(0, 7) == [NOT_ATTEMPTED, UNKNOWN_TOPIC]
    assert producer.add(0, topic=new_name("nowhere")) == [UNKNOWN_TOPIC]


# Transaction version 2


def test_partitions_join_by_themselves(producer: TransactionalProducer) -> None:
    wire, topic = producer.wire, producer.topic
    first_epoch = producer.epoch
    for round_ in range(3):
        assert producer.epoch == first_epoch + round_
        for partition in (0, 1):
            answer = producer.send(b"%d" % round_, partition=partition, version=NEW_PRODUCE)
            assert answer.error_code == 0
            assert producer.send(b"more", partition=partition, version=NEW_PRODUCE).error_code == 0
        if round_ == 1:
            producer.abort()
        else:
            producer.commit()
    for partition in (0, 1):
        settled(wire, topic, partition)
        found = read_committed(wire, topic, partition=partition)
        assert visible(found) == [b"0", b"more", b"2", b"more"]
        headers = [read_header(one) for one in batches(found.records)]
        epochs = [(header.is_control, header.producer_epoch - first_epoch) for header in headers]
        assert epochs == [
            (False, 0),
            (False, 0),
            (True, 1),
            (False, 1),
            (False, 1),
            (True, 2),
            (False, 2),
            (False, 2),
            (True, 3),
        ]


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_repeated_end_gives_the_same_epoch(producer: TransactionalProducer, is_commit: bool) -> None:
    wire, topic = producer.wire, producer.topic
    producer.send(b"x", version=NEW_PRODUCE)
    first = producer.end(is_commit=is_commit, version=NEW_END, is_heard=False)
    again = producer.end(is_commit=is_commit, version=NEW_END, is_heard=False)
    assert (first.error_code, again.error_code) == (0, 0)
    assert (again.producer_id, again.producer_epoch) == (first.producer_id, producer.epoch + 1)
    assert producer.end(is_commit=not is_commit, version=NEW_END).error_code == INVALID_TXN_STATE
    settled(wire, topic)
    assert end_offset(wire, topic) == 2


def test_aborting_nothing_gives_another_epoch(producer: TransactionalProducer) -> None:
    epoch = producer.epoch
    producer.abort()
    assert producer.epoch == epoch + 1
    assert producer.end(is_commit=True, version=NEW_END).error_code == INVALID_TXN_STATE


def test_a_late_batch_has_an_old_epoch(producer: TransactionalProducer) -> None:
    wire, topic = producer.wire, producer.topic
    producer.send(b"in time", version=NEW_PRODUCE)
    old = producer.epoch
    producer.commit()
    settled(wire, topic)
    for version in (NEW_PRODUCE, 11, OLD_PRODUCE):
        answer = producer.send(b"late", version=version, epoch=old, sequence=1)
        assert answer.error_code == INVALID_EPOCH
    assert producer.send(b"late", partition=1, version=NEW_PRODUCE, epoch=old).error_code == INVALID_EPOCH
    settled(wire, topic)
    settled(wire, topic, 1)


def test_the_first_sequence_is_0(producer: TransactionalProducer) -> None:
    assert producer.send(b"x", version=NEW_PRODUCE, sequence=5).error_code == OUT_OF_ORDER
    assert end_offset(producer.wire, producer.topic) == 0
    assert producer.send(b"x", version=NEW_PRODUCE).error_code == 0
    producer.commit()


def test_many_transactions_follow_each_other_at_once(producer: TransactionalProducer) -> None:
    """The next may begin while the markers of the last are still being written."""
    wire, topic = producer.wire, producer.topic
    for number in range(50):
        assert producer.send(b"%d" % number, version=NEW_PRODUCE).error_code == 0
        producer.end(is_commit=number % 5 != 4, version=NEW_END)
    settled(wire, topic)
    expected = [b"%d" % number for number in range(50) if number % 5 != 4]
    assert visible(read_committed(wire, topic)) == expected


@pytest.mark.parametrize("version", [12, 13])
def test_one_request_for_many_partitions(wire: Wire, new_name: Name, version: int) -> None:
    """All of them join the transaction with the first; one that is refused takes nobody with it."""
    topic = new_name("wide")
    topic_id = create_topic(wire, topic, partitions=6)
    producer = TransactionalProducer(wire, new_name("id"), topic).begun()
    places = [
        ProduceRequest.PartitionProduceData(
            index=index, records=producer.batch([b"%d" % index], sequence=0 if index != 4 else 7)
        )
        for index in range(7)
    ]
    named = {"name": topic} if version == 12 else {"topic_id": topic_id}
    entry = ProduceRequest.TopicProduceData(partition_data=places, **named)
    request = ProduceRequest(
        transactional_id=producer.transactional_id, acks=-1, timeout_ms=10_000, topic_data=[entry]
    )
    (answer,) = wire.ask(request, version).responses
    codes = {each.index: each.error_code for each in answer.partition_responses}
    assert codes == dict.fromkeys(range(4), 0) | {4: OUT_OF_ORDER, 5: 0, 6: UNKNOWN_TOPIC}
    producer.abort()
    for index in range(6):
        settled(wire, topic, index)
        assert visible(read_committed(wire, topic, partition=index)) == []


def test_the_feature_is_told(wire: Wire) -> None:
    """Clients take the new protocol only where the feature is in force."""
    for version in (3, 4):
        request = ApiVersionsRequest(client_software_name="tests", client_software_version="1")
        answer = wire.ask(request, version)
        levels = {
            each.name: (each.min_version_level, each.max_version_level) for each in answer.finalized_features
        }
        assert levels["transaction.version"] == (2, 2)
        assert answer.finalized_features_epoch >= 0
        supported = {each.name: (each.min_version, each.max_version) for each in answer.supported_features}
        # Clients of version 3 fail on a feature whose least level is 0.
        assert supported.get("transaction.version") == ((0, 2) if version >= 4 else None)


# Fencing


def test_a_zombie_is_told_in_words_it_knows(producer: TransactionalProducer) -> None:
    wire, topic = producer.wire, producer.topic
    zombie = TransactionalProducer(wire, producer.transactional_id, topic)
    zombie.producer_id, zombie.epoch = producer.producer_id, producer.epoch
    assert producer.init().error_code == 0
    assert producer.epoch == zombie.epoch + 1
    for version in range(4):
        code = FENCED if version >= 2 else INVALID_EPOCH
        assert zombie.add(0, version=version) == [code]
        assert zombie.add_offsets("group", version=version) == code
    for version in range(6):
        code = FENCED if version >= 2 else INVALID_EPOCH
        assert zombie.end(is_commit=True, version=version).error_code == code
    for version in (3, 4, 5):
        code = FENCED if version >= 4 else INVALID_EPOCH
        assert zombie.init(version, resumes=True).error_code == code
    for version in (OLD_PRODUCE, 11, NEW_PRODUCE):
        assert zombie.send(b"zombie", version=version).error_code == INVALID_EPOCH
    find_coordinator(wire, "group", 0)
    assert zombie.commit_offset("group", 1) == INVALID_EPOCH
    assert end_offset(wire, topic) == 0
    producer.send(b"alive", version=NEW_PRODUCE)
    producer.commit()


@pytest.mark.parametrize("version", [OLD_PRODUCE, NEW_PRODUCE])
def test_a_new_producer_aborts_what_its_predecessor_left_open(
    producer: TransactionalProducer, version: int
) -> None:
    wire, topic = producer.wire, producer.topic
    if version == OLD_PRODUCE:
        producer.add(0)
    producer.send(b"left behind", version=version)
    successor = TransactionalProducer(wire, producer.transactional_id, topic).begun()
    assert successor.producer_id == producer.producer_id
    assert successor.epoch > producer.epoch
    settled(wire, topic)
    assert producer.send(b"zombie", version=version).error_code == INVALID_EPOCH
    end_version = OLD_END if version == OLD_PRODUCE else NEW_END
    assert producer.end(is_commit=True, version=end_version).error_code == FENCED
    successor.send(b"new", version=NEW_PRODUCE)
    successor.commit()
    settled(wire, topic)
    assert visible(read_committed(wire, topic)) == [b"new"]


def test_a_producer_resumes_with_another_epoch(producer: TransactionalProducer) -> None:
    producer.send(b"x", version=NEW_PRODUCE)
    producer.abort()
    epoch = producer.epoch
    assert producer.init(resumes=True).producer_epoch == epoch + 1


def test_who_may_use_an_id(producer: TransactionalProducer, new_name: Name) -> None:
    wire, topic = producer.wire, producer.topic
    other = TransactionalProducer(wire, new_name("id"), topic).begun()
    stolen = TransactionalProducer(wire, other.transactional_id, topic)
    stolen.producer_id, stolen.epoch = producer.producer_id, producer.epoch
    assert stolen.add(0) == [INVALID_MAPPING]
    assert stolen.end(is_commit=True, version=NEW_END).error_code == INVALID_MAPPING
    for version in (OLD_PRODUCE, NEW_PRODUCE):
        assert stolen.send(b"x", version=version).error_code == INVALID_MAPPING
        assert producer.send(b"x", version=version, transactional_id=None).error_code == NOT_AUTHORIZED
    assert end_offset(wire, topic) == 0


def test_ids_and_time_outs_that_are_refused(wire: Wire, topic: str, new_name: Name) -> None:
    empty = InitProducerIdRequest(transactional_id="", transaction_timeout_ms=60_000)
    assert wire.ask(empty).error_code == INVALID_REQUEST
    late = TransactionalProducer(wire, new_name("id"), topic)
    assert late.init(timeout_ms=900_001).error_code == INVALID_TIMEOUT
    assert late.init(timeout_ms=0).error_code == INVALID_TIMEOUT


def test_names_that_are_empty(producer: TransactionalProducer) -> None:
    """There are coordinators of them, and they may be part of a transaction; no more than that is refused."""
    find_coordinator(producer.wire, "", 1)
    find_coordinator(producer.wire, "", 0)
    assert producer.add_offsets("") == 0
    assert producer.commit_offset("", 3) == INVALID_GROUP
    producer.abort(OLD_END)


def test_a_plain_batch_within_an_open_transaction(producer: TransactionalProducer) -> None:
    wire, topic = producer.wire, producer.topic
    producer.send(b"x", version=NEW_PRODUCE)
    outside = batch([b"y"], producer_id=producer.producer_id, producer_epoch=producer.epoch, base_sequence=1)
    assert produce(wire, topic, outside).error_code == INVALID_TXN_STATE
    producer.commit()


def test_clients_do_not_write_to_internal_topics(wire: Wire, producer: TransactionalProducer) -> None:
    assert produce(wire, "__transaction_state", batch([b"x"])).error_code == INVALID_TOPIC


# Readers


def test_readers_see_whole_transactions_in_the_order_of_the_log(
    wire: Wire, topic: str, new_name: Name
) -> None:
    """Transactions that overlap: the first open one holds back all that lies behind it."""
    one, two, three = (TransactionalProducer(wire, new_name("id"), topic).begun() for _ in range(3))
    for each, value in ((one, b"1"), (two, b"2"), (three, b"3"), (one, b"1"), (two, b"2")):
        assert each.send(value, version=NEW_PRODUCE).error_code == 0
    two.commit()
    assert stable(wire, topic) == 0
    three.abort()
    assert stable(wire, topic) == 0
    one.commit()
    settled(wire, topic)
    found = read_committed(wire, topic)
    assert visible(found) == [b"1", b"2", b"1", b"2"]
    assert [each.producer_id for each in found.aborted_transactions] == [three.producer_id]


def test_a_waiting_reader_is_woken_by_the_commit(producer: TransactionalProducer, bootstrap: str) -> None:
    topic = producer.topic
    producer.send(b"x" * 5000, version=NEW_PRODUCE)
    with Wire(bootstrap) as reader:
        place = fetch_partition(0)
        waiting = fetch_request({topic: [place]}, max_wait_ms=10_000, min_bytes=4000, isolation_level=1)
        reader.send(waiting, 12)
        time.sleep(0.1)
        started = time.monotonic()
        producer.commit()
        answer = fetched(reader.receive()[1])
        assert visible(answer) == [b"x" * 5000]
        assert time.monotonic() - started < 5


# Offsets


def committed_offset(
    wire: Wire, group_id: str, topic: str, *, require_stable: bool = False
) -> tuple[int, int]:
    """A group's offset and the error code."""
    wanted = OffsetFetchRequest.OffsetFetchRequestTopics(name=topic, partition_indexes=[0])
    group = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group_id, topics=[wanted])
    request = OffsetFetchRequest(groups=[group], require_stable=require_stable)
    answer = until_settled(lambda: wire.ask(request, 9).groups[0])
    found = answer.topics[0].partitions[0]
    return found.committed_offset, found.error_code


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4, 5])
def test_offsets_are_part_of_the_transaction(
    producer: TransactionalProducer, new_name: Name, version: int
) -> None:
    wire, topic, group = producer.wire, producer.topic, new_name("group")
    find_coordinator(wire, group, 0)
    end_version = NEW_END if version >= 5 else OLD_END
    for offset, is_commit in ((5, False), (6, True), (7, False)):
        before = committed_offset(wire, group, topic)
        if version < 5:
            assert producer.add_offsets(group, version=min(version, 4)) == 0
        assert producer.commit_offset(group, offset, version) == 0
        assert committed_offset(wire, group, topic) == before
        assert committed_offset(wire, group, topic, require_stable=True) == (-1, UNSTABLE)
        assert producer.end(is_commit=is_commit, version=end_version).error_code == 0
        until(
            lambda: committed_offset(wire, group, topic, require_stable=True)[1] == 0,
            PATIENCE_S,
            "the offsets are decided",
        )
        assert committed_offset(wire, group, topic) == ((offset, 0) if is_commit else before)


@pytest.mark.parametrize(
    ("version", "code"), [(0, INVALID_TXN_STATE), (3, INVALID_TXN_STATE), (4, ABORTABLE)]
)
def test_offsets_of_a_group_that_was_not_named(
    producer: TransactionalProducer, new_name: Name, version: int, code: int
) -> None:
    group = new_name("group")
    find_coordinator(producer.wire, group, 0)
    producer.add(0)
    assert producer.commit_offset(group, 3, version) == code
    assert committed_offset(producer.wire, group, producer.topic, require_stable=True) == (-1, 0)


# Between brokers, and for admins


def test_brokers_verify_and_add(producer: TransactionalProducer, new_name: Name) -> None:
    wire, topic = producer.wire, producer.topic
    producer.add(0)

    def ask(transactional_id: str, epoch: int, *partitions: int, is_verification: bool) -> list[int]:
        wanted = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))
        transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
            transactional_id=transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=epoch,
            verify_only=is_verification,
            topics=[wanted],
        )
        answer = wire.ask(AddPartitionsToTxnRequest(transactions=[transaction]), 5)
        assert answer.error_code == 0
        (result,) = answer.results_by_transaction
        assert result.transactional_id == transactional_id
        found = result.topic_results[0].results_by_partition
        return [each.partition_error_code for each in sorted(found, key=lambda each: each.partition_index)]

    mine, epoch = producer.transactional_id, producer.epoch
    assert ask(mine, epoch, 0, 1, is_verification=True) == [0, ABORTABLE]
    assert ask(mine, epoch + 1, 0, is_verification=True) == [FENCED]
    assert ask(new_name("other"), epoch, 0, is_verification=True) == [INVALID_MAPPING]
    assert ask(mine, epoch, 1, is_verification=False) == [0]
    assert ask(mine, epoch, 0, 1, is_verification=True) == [0, 0]
    producer.abort()


def write_marker(wire: Wire, topic: str, *partitions: int, version: int = 1, **fields: Any) -> list[int]:
    place = WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=topic, partition_indexes=list(partitions))
    marker = WriteTxnMarkersRequest.WritableTxnMarker(topics=[place], **fields)
    (answer,) = wire.ask(WriteTxnMarkersRequest(markers=[marker]), version).markers
    found = sorted(answer.topics[0].partitions, key=lambda each: each.partition_index)
    return [each.error_code for each in found]


@pytest.mark.parametrize("version", [1, 2])
def test_an_admin_ends_a_transaction(producer: TransactionalProducer, version: int) -> None:
    wire, topic = producer.wire, producer.topic
    producer.abort()
    producer.send(b"stuck", version=NEW_PRODUCE)
    place = DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[0])

    def state() -> Any:
        answer = wire.ask(DescribeProducersRequest(topics=[place]))
        (found,) = answer.topics[0].partitions[0].active_producers
        return found

    assert (state().producer_id, state().current_txn_start_offset) == (producer.producer_id, 0)
    fields = {
        "producer_id": producer.producer_id,
        "transaction_result": False,
        "coordinator_epoch": 0,
    }
    assert write_marker(wire, topic, 0, producer_epoch=producer.epoch - 1, version=version, **fields) == [
        INVALID_EPOCH
    ]
    codes = write_marker(wire, topic, 0, 9, producer_epoch=producer.epoch, version=version, **fields)
    assert codes == [0, UNKNOWN_TOPIC]
    assert state().current_txn_start_offset == -1
    assert stable(wire, topic) == end_offset(wire, topic)
    assert visible(read_committed(wire, topic)) == []


def test_markers_of_version_2_need_a_higher_epoch(producer: TransactionalProducer) -> None:
    wire, topic = producer.wire, producer.topic
    producer.send(b"open", version=NEW_PRODUCE)
    fields = {
        "producer_id": producer.producer_id,
        "transaction_result": True,
        "coordinator_epoch": 0,
        "transaction_version": 2,
    }
    assert write_marker(wire, topic, 0, version=2, producer_epoch=producer.epoch, **fields) == [INVALID_EPOCH]
    assert stable(wire, topic) == 0
    producer.abort()
    settled(wire, topic)
    assert visible(read_committed(wire, topic)) == []


def test_transactions_are_listed_and_described(wire: Wire, topic: str, new_name: Name) -> None:
    prefix = new_name("listed")
    idle, open_, done = (TransactionalProducer(wire, f"{prefix}-{n}", topic).begun() for n in range(3))
    open_.send(b"x", version=NEW_PRODUCE)
    open_.send(b"x", version=NEW_PRODUCE, partition=1)
    done.send(b"x", version=NEW_PRODUCE)
    done.commit()
    mine = [each.producer_id for each in (idle, open_, done)]

    def listed(version: int = 2, **filters: Any) -> dict[str, str]:
        answer = wire.ask(ListTransactionsRequest(**{"producer_id_filters": mine, **filters}), version)
        assert answer.error_code == 0
        return {each.transactional_id: each.transaction_state for each in answer.transaction_states}

    until(lambda: "CompleteCommit" in listed().values(), PATIENCE_S, "the markers are written")
    every = {f"{prefix}-0": "Empty", f"{prefix}-1": "Ongoing", f"{prefix}-2": "CompleteCommit"}
    for version in range(3):
        assert listed(version) == every
        assert listed(version, producer_id_filters=[idle.producer_id]) == {f"{prefix}-0": "Empty"}
        assert listed(version, state_filters=["Ongoing"]) == {f"{prefix}-1": "Ongoing"}
    assert listed(1, duration_filter=0, state_filters=["Ongoing"]) == {f"{prefix}-1": "Ongoing"}
    assert listed(1, duration_filter=600_000, state_filters=["Ongoing"]) == {}
    assert listed(2, transactional_id_pattern=f"{prefix}-[12]") == {
        name: state for name, state in every.items() if not name.endswith("0")
    }
    assert listed(2, transactional_id_pattern=prefix) == {}
    bad = wire.ask(ListTransactionsRequest(transactional_id_pattern="("), 2)
    assert bad.error_code == INVALID_PATTERN
    unknown = wire.ask(ListTransactionsRequest(state_filters=["Ongoing", "Lost"]), 0)
    assert unknown.unknown_state_filters == ["Lost"]

    request = DescribeTransactionsRequest(transactional_ids=[open_.transactional_id, "nobody"])
    found, missing = wire.ask(request).transaction_states
    assert (found.error_code, missing.error_code) == (0, NO_SUCH_ID)
    assert (found.transaction_state, found.transaction_timeout_ms) == ("Ongoing", 60_000)
    assert (found.producer_id, found.producer_epoch) == (open_.producer_id, open_.epoch)
    assert abs(found.transaction_start_time_ms - time.time() * 1000) < 60_000
    assert [(each.topic, sorted(each.partitions)) for each in found.topics] == [(topic, [0, 1])]
    open_.abort()
