"""join_table: each row of a stream with what a table holds for it at that time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Literal

from millstream.streams.change_processor import ChangeProcessor, processed
from millstream.streams.changes import Change, changes, check_how, check_join, names, unfold
from millstream.streams.columns import of_value
from millstream.streams.held_row import HeldRow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

TABLE, STREAM = 0, 1


def join_table(
    stream: DataFrame,
    table: DataFrame,
    on: str | Iterable[str],
    how: Literal["inner", "left"] = "inner",
) -> DataFrame:
    """Each row of `stream` with the table's latest row of the same key; the table's own changes give nothing.

    Within a micro-batch rows of both sides apply in the order of their timestamps, the table first on ties;
    over batches, in the order in which they come. A table row older than the one held is passed over. The
    same function over history, as a batch, applies everything in the order of the timestamps.

    The columns are the stream's, then those of the table's value that are not in `on`. Stream rows for which
    the table holds nothing are left out, or with `how="left"` kept with nulls.
    """
    key = names(on)
    added = [name for name in of_value(table.columns) if name not in key]
    check_how(how, ("inner", "left"), "join_table")
    check_join(stream, table, key, added, "join_table")
    known = changes(table, key, TABLE, "join_table").where("NOT keyless")
    asked = changes(stream, key, STREAM, "join_table")
    found = processed(
        known.unionByName(asked), TableLookup(keeps_all=how == "left"), "left STRING, right STRING"
    )
    joined = found.select(unfold("left", stream.schema).alias("l"), unfold("right", table.schema).alias("r"))
    return joined.select("l.*", *[f"r.`{name}`" for name in added])


class TableLookup(ChangeProcessor):
    """Holds a table's latest row of a key, and gives it to the stream's rows of that key."""

    columns = ("left", "right")

    def __init__(self, *, keeps_all: bool) -> None:
        self.keeps_all = keeps_all

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._held = HeldRow(handle, "table")

    def apply(self, key: str, changes: Iterable[Change]) -> Iterator[tuple[str, str | None]]:
        self._held.load(key)
        for change in changes:
            if change.side == TABLE:
                self._held.apply(change)
            elif self.keeps_all or self._held.row is not None:
                yield change.row, self._held.row
        self._held.store()
