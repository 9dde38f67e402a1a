"""Turning batches that a log holds into producer state: on append, in recovery, and after a truncation."""

from __future__ import annotations

from millstream.protocol.batch import BatchHeader, ControlMarker, decode_marker, decode_records
from millstream.storage.disk import Buffer
from millstream.storage.producer_state import ProducerState
from millstream.storage.transaction_index import AbortedTransaction


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


def note_batch(producers: ProducerState, header: BatchHeader, batch: Buffer) -> AbortedTransaction | None:
    """Take a batch of some producer, with the offsets it carries, into the state.

    Gives the entry for the transaction index, if it ends a transaction that was aborted.
    """
    if not header.is_control:
        producers.add(header, header.base_offset, header.last_offset)
        return None
    marker = read_marker(batch)
    return None if marker is None else note_marker(producers, header, marker, header.last_offset)
