"""latest: a table's changes reduced to what it holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from millstream.streams.changes import changes, names, order_of, unfold
from millstream.streams.held_row import HeldRow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def latest(frame: DataFrame, key: str | Iterable[str]) -> DataFrame:
    """The latest row of each key, by the record's timestamp and then its place.

    As a batch: what the table holds, one row per key. As a stream: each micro-batch gives the keys that
    changed, one row per key, deletions as rows with `_deleted`.
    """
    columns = names(key)
    found = (
        changes(frame, columns, 0, "latest")
        .where("NOT keyless")
        .groupBy("k")
        .transformWithState(Latest(), "row STRING, deleted BOOLEAN", "Append", "None")
    )
    if not frame.isStreaming:
        found = found.where("NOT deleted")
    return found.select(unfold("row", frame.schema).alias("r")).select("r.*")


class Latest(StatefulProcessor):
    """Holds the latest row of a key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._held = HeldRow(handle, "latest")

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Any,
        timerValues: Any,  # noqa: N803
    ) -> Iterator[Row]:
        self._held.load()
        row = max(rows, key=order_of)
        if self._held.apply(row):
            yield Row(row=row["row"], deleted=row["deleted"])
        self._held.store()

    def close(self) -> None:
        pass
