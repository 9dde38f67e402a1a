"""HeldRow: what a table holds for one key, in Spark's state store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

    from millstream.streams.changes import Change

KEY = "k STRING"
SCHEMA = "at BIGINT, partition INT, offset BIGINT, row STRING"


class HeldRow:
    """The latest row of a key: its place (timestamp, partition, offset) and its text.

    Between `load` and `store`, which go with the changes of one key, changes apply in memory. A change that
    is older than the row held is passed over. A deleted row leaves nothing in the store.
    """

    def __init__(self, handle: StatefulProcessorHandle, name: str) -> None:
        self._state = handle.getMapState(name, KEY, SCHEMA)
        self._key = ("",)
        self._stored: tuple[Any, ...] | None = None
        self._now: tuple[Any, ...] | None = None

    def load(self, key: str) -> None:
        self._key = (key,)
        self._stored = self._now = self._state.getValue(self._key)

    @property
    def row(self) -> str | None:
        """The row's text; None if there is no row."""
        return None if self._now is None else self._now[3]

    def apply(self, change: Change) -> bool:
        """Put the change's row in the place of what is held; false if that is newer."""
        place = change.at, change.partition, change.offset
        if self._now is not None and place < tuple(self._now[:3]):
            return False
        self._now = None if change.deleted else (*place, change.row)
        return True

    def store(self) -> None:
        if self._now is self._stored:
            return
        if self._now is None:
            self._state.removeKey(self._key)
        else:
            self._state.updateValue(self._key, self._now)
