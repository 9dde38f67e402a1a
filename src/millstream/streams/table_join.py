"""join_tables: two tables as one, which changes whenever one of them does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import Row
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import StructType

from millstream.streams.changes import (
    PLACE,
    changes,
    check_join,
    is_stale,
    names,
    order_of,
    place_of,
    unfold,
)
from millstream.streams.columns import DELETED, OFFSET, PARTITION, TIMESTAMP, of_value

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Held = tuple[Any, ...] | None


def join_tables(
    left: DataFrame,
    right: DataFrame,
    on: str | Iterable[str],
    how: Literal["inner", "left", "outer"] = "inner",
) -> DataFrame:
    """The table that joins two tables by key, as its changes.

    A change of either side gives the joined row anew, with that change's timestamp; a row that is no more
    gives one with `_deleted`. Changes apply in the order of their timestamps, the left side first on ties.
    The columns are the key's, the left value's, the right value's and the table's own (`_timestamp`, …), so
    the result can be written, joined again or reduced with `latest`.
    """
    key = names(on)
    lefts = [name for name in of_value(left.columns) if name not in key]
    rights = [name for name in of_value(right.columns) if name not in key]
    check_join(left, right, key, [name for name in rights if name in lefts], "join_tables")
    both = changes(left, key, 0, "join_tables").unionByName(changes(right, key, 1, "join_tables"))
    of_key = StructType([left.schema[name] for name in key])
    joined = (
        both.where("NOT keyless")
        .groupBy("k")
        .transformWithState(
            TableJoin(how),
            "k STRING, at BIGINT, offset BIGINT, deleted BOOLEAN, left STRING, right STRING",
            "Append",
            "None",
        )
        .select(
            unfold("k", of_key).alias("k"),
            unfold("left", left.schema).alias("l"),
            unfold("right", right.schema).alias("r"),
            F.timestamp_micros("at").alias(TIMESTAMP),
            F.lit(0).alias(PARTITION),
            F.col("offset").alias(OFFSET),
            F.col("deleted").alias(DELETED),
        )
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


class TableJoin(StatefulProcessor):
    """Holds the latest row of both sides of a key. The joined row's changes are counted in `offset`, which
    puts those of one timestamp in order for whoever reads them."""

    def __init__(self, how: str) -> None:
        self.how = how

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._sides = [handle.getValueState(name, f"{PLACE}, row STRING") for name in ("left", "right")]
        self._changes = handle.getValueState("changes", "count BIGINT")

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Any,
        timerValues: Any,  # noqa: N803
    ) -> Iterator[Row]:
        held: list[Held] = [side.get() for side in self._sides]
        before = list(held)
        counted = self._changes.get()
        first = count = 0 if counted is None else counted[0]
        for row in sorted(rows, key=order_of):
            side = row["side"]
            if is_stale(row, held[side]):
                continue
            was_there = self._is_there(held)
            held[side] = None if row["deleted"] else (*place_of(row), row["row"])
            is_there = self._is_there(held)
            if was_there or is_there:
                left, right = (each and each[3] for each in held) if is_there else (None, None)
                yield Row(
                    k=row["k"], at=row["at"], offset=count, deleted=not is_there, left=left, right=right
                )
                count += 1
        for state, old, new in zip(self._sides, before, held, strict=True):
            if new is None and old is not None:
                state.clear()
            elif new is not None and new is not old:
                state.update(new)
        if count != first:
            self._changes.update((count,))

    def _is_there(self, held: list[Held]) -> bool:
        left, right = (each is not None for each in held)
        return {"inner": left and right, "left": left, "outer": left or right}[self.how]

    def close(self) -> None:
        pass
