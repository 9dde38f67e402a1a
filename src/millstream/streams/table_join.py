"""join_tables: two tables as one, which changes whenever one of them does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import StructType

from millstream.streams.change_processor import ChangeProcessor, processed
from millstream.streams.changes import Change, changes, check_how, check_join, names, unfold
from millstream.streams.columns import DELETED, OFFSET, PARTITION, TIMESTAMP, of_value
from millstream.streams.held_row import KEY, HeldRow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle


def join_tables(
    left: DataFrame,
    right: DataFrame,
    on: str | Iterable[str],
    how: Literal["inner", "left", "outer"] = "inner",
) -> DataFrame:
    """The table that joins two tables by key, as its changes.

    A change of either side gives the joined row anew; a row that is no more gives one with `_deleted`.
    Changes apply in the order of their timestamps, the left side first on ties; from batch to batch, as they
    come. The joined row's `_timestamp` never goes back: it is the latest of the changes that made it.
    The columns are the key's, the left value's, the right value's and the table's own (`_timestamp`, …), so
    the result can be written, joined again or reduced with `latest`.
    """
    key = names(on)
    lefts = [name for name in of_value(left.columns) if name not in key]
    rights = [name for name in of_value(right.columns) if name not in key]
    check_how(how, ("inner", "left", "outer"), "join_tables")
    check_join(left, right, key, [name for name in rights if name in lefts], "join_tables")
    both = changes(left, key, 0, "join_tables").unionByName(changes(right, key, 1, "join_tables"))
    of_key = StructType([left.schema[name] for name in key])
    found = processed(
        both.where("NOT keyless"),
        TableJoin(how),
        "k STRING, at BIGINT, offset BIGINT, deleted BOOLEAN, left STRING, right STRING",
    )
    joined = found.select(
        unfold("k", of_key).alias("k"),
        unfold("left", left.schema).alias("l"),
        unfold("right", right.schema).alias("r"),
        F.timestamp_micros("at").alias(TIMESTAMP),
        F.lit(0).alias(PARTITION),
        F.col("offset").alias(OFFSET),
        F.col("deleted").alias(DELETED),
    )
    return joined.select(
        "k.*",
        *[f"l.`{name}`" for name in lefts],
        *[f"r.`{name}`" for name in rights],
        TIMESTAMP,
        PARTITION,
        OFFSET,
        DELETED,
    )


class TableJoin(ChangeProcessor):
    """Holds the latest row of both sides of a key, and of the joined row, while there is one, the place.

    That place goes up with each change, though one side may lag behind the other: whoever reads the joined
    table tells old changes from new ones by it.
    """

    columns = ("k", "at", "offset", "deleted", "left", "right")

    def __init__(self, how: str) -> None:
        self.how = how

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._sides = [HeldRow(handle, "left"), HeldRow(handle, "right")]
        self._joined = handle.getMapState("joined", KEY, "at BIGINT, changes BIGINT")

    def apply(self, key: str, changes: Iterable[Change]) -> Iterator[tuple[Any, ...]]:
        for side in self._sides:
            side.load(key)
        stored = self._joined.getValue((key,))
        at, count = stored or (None, 0)
        first = count
        for change in changes:
            was_there = self._is_there()
            if not self._sides[change.side].apply(change):
                continue
            is_there = self._is_there()
            if was_there or is_there:
                at = change.at if at is None else max(at, change.at)
                left, right = (side.row for side in self._sides) if is_there else (None, None)
                yield key, at, count, not is_there, left, right
                count += 1
        for side in self._sides:
            side.store()
        if self._is_there():
            if count != first:
                self._joined.updateValue((key,), (at, count))
        elif stored is not None:
            self._joined.removeKey((key,))

    def _is_there(self) -> bool:
        left, right = (side.row is not None for side in self._sides)
        return {"inner": left and right, "left": left, "outer": left or right}[self.how]
