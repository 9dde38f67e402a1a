"""A batch that is larger than its topic allows, as two smaller ones."""

from __future__ import annotations

from millstream.client.batch_builder import UNNUMBERED, Batch
from millstream.client.producer_line import SEQUENCES
from millstream.protocol.batch import decode_records
from millstream.protocol.client_kernel import BatchBuilder
from millstream.protocol.header import HEADER_SIZE

RECORD_BOUND_BYTES = 40


def split(batch: Batch) -> list[Batch]:
    """The halves of a batch that a broker refused as too large; none if it has one record only.

    They stand in its place and share its sequences, so that nothing behind has to change. The batch is done
    when both are.
    """
    if batch.data is None or batch.count < 2:
        return []
    records = decode_records(batch.data)
    middle = len(records) // 2
    halves: list[Batch] = []
    for place, part in enumerate((records[:middle], records[middle:])):
        limit = HEADER_SIZE + sum(
            RECORD_BOUND_BYTES
            + len(record.key or b"")
            + len(record.value or b"")
            + sum(10 + 4 * len(name) + len(content or b"") for name, content in record.headers)
            for record in part
        )
        builder = BatchBuilder(limit)
        for record in part:
            builder.append(record.timestamp, record.key, record.value, record.headers)
        span = batch.span / 2
        half = Batch(
            batch.topic, batch.partition, batch.number + place * span, builder, builder.size, batch.created_at
        )
        half.span = span
        half.attempts = 1
        if batch.base_sequence != UNNUMBERED:
            half.producer_id, half.producer_epoch = batch.producer_id, batch.producer_epoch
            half.base_sequence = (batch.base_sequence + place * middle) % SEQUENCES
        halves.append(half)
    batch.become(halves)
    return halves
