"""The entries of `__transaction_state`: one for each transactional id."""

from __future__ import annotations

from millstream.coordinator.entry_format import EntryKey, EntryValue
from millstream.protocol.schema import Struct, tagged
from millstream.protocol.types import i8, i16, i32, i64


class TransactionLogKey(EntryKey, types=(0,)):
    """A transactional id."""

    transactional_id: str


class TransactionLogValue(EntryValue, versions=(0, 1), flexible=1, written=1):
    """v1 is flexible; its tagged fields are those of KIP-890.

    Statuses: 0 empty, 1 ongoing, 2 prepare commit, 3 prepare abort, 4 complete commit, 5 complete
    abort, 6 dead, 7 prepare epoch fence.
    """

    class PartitionsSchema(Struct):
        topic: str
        partition_ids: list[i32]

    producer_id: i64
    previous_producer_id: i64 = tagged(0, -1, since=1)
    next_producer_id: i64 = tagged(1, -1, since=1)
    producer_epoch: i16
    transaction_timeout_ms: i32
    transaction_status: i8
    transaction_partitions: list[PartitionsSchema] | None
    transaction_last_update_timestamp_ms: i64
    transaction_start_timestamp_ms: i64
    client_transaction_version: i16 = tagged(2, 0, since=1)
