"""Turning batches that a log holds into producer state: on append, in recovery, and after a truncation."""

from __future__ import annotations

from millstream.protocol.batch import BatchHeader, ControlMarker, decode_marker, decode_records
from millstream.storage.disk import Buffer
from millstream.storage.producer_state import ProducerState
from millstream.storage.transaction_index import AbortedTransaction, TransactionIndex


def read_marker(batch: Buffer) -> ControlMarker | None:
    """The end of a transaction that a control batch is, None if it is of another kind."""
    records = decode_records(batch, include_control=True, verify_crc=False)
    return decode_marker(records[0]) if records else None


def note_marker(
    producers: ProducerState, header: BatchHeader, marker: ControlMarker, offset: int
) -> AbortedTransaction | None:
    """Close the transaction that a marker at `offset` ends; its index entry if it was aborted."""
    completed = producers.end(header, marker, offset)
    if completed is None:
        return None
    aborted = None
    if completed.is_aborted:
        stable = producers.last_stable_before(completed)
        aborted = AbortedTransaction(completed.producer_id, completed.first_offset, offset, stable)
    producers.complete(completed)
    return aborted


def note_batch(
    producers: ProducerState, index: TransactionIndex | None, header: BatchHeader, batch: Buffer
) -> None:
    """Take a batch of some producer, with the offsets it carries, into the state and the index."""
    if not header.is_control:
        producers.add(header, header.base_offset, header.last_offset)
        return
    marker = read_marker(batch)
    if marker is not None:
        aborted = note_marker(producers, header, marker, header.last_offset)
        if aborted is not None and index is not None:
            index.add(aborted)
