"""latest: a table's changes reduced to what it holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from millstream.streams.change_processor import ChangeProcessor, processed
from millstream.streams.changes import Change, changes, names, unfold
from millstream.streams.held_row import HeldRow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle


def latest(frame: DataFrame, key: str | Iterable[str]) -> DataFrame:
    """The latest row of each key, by the record's timestamp and then its place.

    As a batch: what the table holds, one row per key. As a stream: each micro-batch gives the keys that
    changed, one row per key, deletions as rows with `_deleted`.
    """
    columns = names(key)
    given = changes(frame, columns, 0, "latest").where("NOT keyless")
    found = processed(given, Latest(), "row STRING, deleted BOOLEAN")
    if not frame.isStreaming:
        found = found.where("NOT deleted")
    return found.select(unfold("row", frame.schema).alias("r")).select("r.*")


class Latest(ChangeProcessor):
    """Holds the latest row of a key."""

    columns = ("row", "deleted")

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._held = HeldRow(handle, "latest")

    def apply(self, key: str, changes: Iterable[Change]) -> Iterator[tuple[str, bool]]:
        self._held.load(key)
        for change in changes:
            last = change
        if self._held.apply(last):
            yield last.row, last.deleted
        self._held.store()
