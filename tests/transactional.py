"""A transactional producer that sends what it is told, right or wrong, in any version of the protocol."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from millstream.protocol.batch import read_header
from millstream.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    FetchResponse,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    OffsetFetchRequest,
    ProduceResponse,
    TxnOffsetCommitRequest,
)
from tests.wire import Wire, batch, batches, fetch, produce_request, produced, values

CONCURRENT_TRANSACTIONS = 51
RETRIABLE = {14, 15, 16, CONCURRENT_TRANSACTIONS}
"""The coordinator is coming, or another transaction is being ended."""

PATIENCE_S = 20.0

OLD_PRODUCE = 10
"""The last version of Produce whose clients add partitions themselves and know no TRANSACTION_ABORTABLE."""
NEW_PRODUCE = 12
OLD_END = 4
NEW_END = 5


def until_settled(ask: Any) -> Any:
    """An answer that is not 'try again'."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        answer = ask()
        if answer.error_code not in RETRIABLE or time.monotonic() > deadline:
            return answer
        time.sleep(0.02)


def find_coordinator(wire: Wire, key: str, key_type: int = 1) -> None:
    """Wait until the coordinator of a transactional id (or of a group, type 0) is there."""

    def ask() -> Any:
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
        return wire.ask(request).coordinators[0]

    answer = until_settled(ask)
    assert answer.error_code == 0, answer


class TransactionalProducer:
    """One transactional id on one connection. Versions are those of the request at hand."""

    def __init__(self, wire: Wire, transactional_id: str, topic: str) -> None:
        self.wire = wire
        self.transactional_id = transactional_id
        self.topic = topic
        self.producer_id, self.epoch = -1, -1
        self.sequences: dict[int, int] = {}

    def init(self, version: int = 5, *, timeout_ms: int = 60_000, resumes: bool = False) -> Any:
        """Ask for an id and an epoch until they are given; `resumes` names those that it has (KIP-360)."""
        find_coordinator(self.wire, self.transactional_id)
        known = {"producer_id": self.producer_id, "producer_epoch": self.epoch} if resumes else {}
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout_ms=timeout_ms, **known
        )
        answer = until_settled(lambda: self.wire.ask(request, version))
        if answer.error_code == 0:
            self._become(answer.producer_id, answer.producer_epoch)
        return answer

    def begun(self, **settings: Any) -> TransactionalProducer:
        """Init, successfully."""
        answer = self.init(**settings)
        assert answer.error_code == 0, answer
        return self

    def _become(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            self.sequences.clear()
        self.producer_id, self.epoch = producer_id, epoch

    def add(self, *partitions: int, version: int = 3, topic: str | None = None) -> list[int]:
        """AddPartitionsToTxn as clients send it; the partitions' error codes."""
        wanted = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(
            name=topic or self.topic, partitions=list(partitions)
        )
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[wanted],
        )
        deadline = time.monotonic() + PATIENCE_S
        while True:
            (result,) = self.wire.ask(request, version).results_by_topic_v3_and_below
            found = sorted(result.results_by_partition, key=lambda each: each.partition_index)
            codes = [each.partition_error_code for each in found]
            if CONCURRENT_TRANSACTIONS not in codes or time.monotonic() > deadline:
                return codes
            time.sleep(0.02)

    def batch(self, records: Sequence[bytes], *, sequence: int, epoch: int | None = None) -> bytearray:
        return batch(
            records,
            producer_id=self.producer_id,
            producer_epoch=self.epoch if epoch is None else epoch,
            base_sequence=sequence,
            is_transactional=True,
        )

    def send(
        self,
        *records: bytes,
        partition: int = 0,
        version: int = OLD_PRODUCE,
        sequence: int | None = None,
        epoch: int | None = None,
        transactional_id: str | None = "",
        topic: str | None = None,
    ) -> ProduceResponse.PartitionProduceResponse:
        """Produce one batch; the answer, whatever it says."""
        at = self.sequences.get(partition, 0) if sequence is None else sequence
        data = self.batch(records, sequence=at, epoch=epoch)
        request = produce_request(topic or self.topic, data, partition=partition)
        request.transactional_id = self.transactional_id if transactional_id == "" else transactional_id
        answer = produced(self.wire.ask(request, version))
        if answer.error_code == 0 and sequence is None:
            self.sequences[partition] = at + len(records)
        return answer

    def end(self, *, is_commit: bool, version: int, epoch: int | None = None, is_heard: bool = True) -> Any:
        """EndTxn until it is decided; with version 5 the producer goes on with the epoch it is given."""
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch if epoch is None else epoch,
            committed=is_commit,
        )
        answer = until_settled(lambda: self.wire.ask(request, version))
        if answer.error_code == 0 and version >= NEW_END and is_heard:
            self._become(answer.producer_id, answer.producer_epoch)
        return answer

    def commit(self, version: int = NEW_END) -> None:
        answer = self.end(is_commit=True, version=version)
        assert answer.error_code == 0, answer

    def abort(self, version: int = NEW_END) -> None:
        answer = self.end(is_commit=False, version=version)
        assert answer.error_code == 0, answer

    def add_offsets(self, group_id: str, version: int = 3) -> int:
        """AddOffsetsToTxn; its error code."""
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=group_id,
        )
        code: int = until_settled(lambda: self.wire.ask(request, version)).error_code
        return code

    def commit_offset(
        self, group_id: str, offset: int, version: int = 3, *, topic: str | None = None, partition: int = 0
    ) -> int:
        """TxnOffsetCommit of one position, in the producer's topic if no other is named; its error code."""
        place = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[
                TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                    name=topic or self.topic, partitions=[place]
                )
            ],
        )
        deadline = time.monotonic() + PATIENCE_S
        while True:
            (answer,) = self.wire.ask(request, version).topics
            code: int = answer.partitions[0].error_code
            if code not in RETRIABLE or time.monotonic() > deadline:
                return code
            time.sleep(0.02)


def stable_offset(wire: Wire, group_id: str, topic: str, partition: int = 0) -> tuple[int, int]:
    """A group's position that no open transaction may change, and the error code."""
    wanted = OffsetFetchRequest.OffsetFetchRequestTopics(name=topic, partition_indexes=[partition])
    group = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group_id, topics=[wanted])
    request = OffsetFetchRequest(groups=[group], require_stable=True)
    answer = until_settled(lambda: wire.ask(request, 9).groups[0])
    found = answer.topics[0].partitions[0]
    return found.committed_offset, found.error_code


def read_committed(wire: Wire, topic: str, offset: int = 0, partition: int = 0, **settings: Any) -> Any:
    """One fetch of what is committed; the partition's answer."""
    return fetch(wire, topic, offset, partition=partition, isolation_level=1, **settings)


def visible(data: FetchResponse.PartitionData) -> list[bytes | None]:
    """The values that a reader of committed records shows of a fetch: those of aborted transactions are
    left out by the list that came with it."""
    open_from: Mapping[int, list[int]] = {}
    for aborted in data.aborted_transactions or ():
        open_from.setdefault(aborted.producer_id, []).append(aborted.first_offset)  # type: ignore[attr-defined]
    found: list[bytes | None] = []
    skipped: set[int] = set()
    for one in batches(data.records):
        header = read_header(one)
        firsts = sorted(open_from.get(header.producer_id, []))
        if firsts and firsts[0] <= header.base_offset:
            skipped.add(header.producer_id)
        if header.is_control:
            if header.producer_id in skipped:
                skipped.discard(header.producer_id)
                open_from[header.producer_id].remove(firsts[0])
            continue
        if not (header.is_transactional and header.producer_id in skipped):
            found += values(one)
    return found
