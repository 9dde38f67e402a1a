"""What a task tells the driver when its rows are written."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from millstream.client.producer_identity import HandedOver
from millstream.streams.sink_names import Run


@dataclass(frozen=True)
class Attempt(WriterCommitMessage):
    """One attempt of one task. No transaction: there was nothing to write, or the batch `was_decided`."""

    run: Run
    batch: int
    partition: int
    attempt: int
    transaction: HandedOver | None
    was_decided: bool = False
