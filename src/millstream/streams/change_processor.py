"""ChangeProcessor: a stateful operator that sees the changes of each key in their order.

Of Spark's two APIs for such operators, that of rows holds all that is given for a key, and that of frames
makes a frame for each key. So keys are put together in buckets and frames are used: what is held is bounded,
and what a frame costs is shared by many keys. State is by bucket and key. `BUCKETS` is therefore a part of
each checkpoint and never changes. It also is how many tasks a step can be divided among.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from millstream.streams.changes import ARROW, ORDER, Change
from millstream.streams.row_sort import MAX_ROWS, RowSort

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

BUCKET = "_bucket"
BUCKETS = 64
GIVEN_CHARACTERS = 4 << 20
"""How much text of rows is given to Spark at a time."""


class ChangeProcessor(StatefulProcessor):
    """What `apply` says for each key, one after another. It gives rows with the columns in `columns`."""

    columns: tuple[str, ...]

    @abstractmethod
    def apply(self, key: str, changes: Iterable[Change]) -> Iterator[tuple[Any, ...]]:
        """What follows from the changes of a key, which come in order."""

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Any,
        timerValues: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        import pandas as pd

        given: list[tuple[Any, ...]] = []
        characters = 0
        for of_key, changes in groupby(_in_order(rows), attrgetter("k")):
            for row in self.apply(of_key, changes):
                given.append(row)
                characters += sum(len(each) for each in row if isinstance(each, str))
                if len(given) >= MAX_ROWS or characters >= GIVEN_CHARACTERS:
                    yield pd.DataFrame(given, columns=self.columns)
                    given, characters = [], 0
        if given:
            yield pd.DataFrame(given, columns=self.columns)

    def close(self) -> None:
        pass


def processed(changes: DataFrame, processor: ChangeProcessor, schema: str) -> DataFrame:
    """What a processor makes of changes."""
    in_buckets = changes.drop("keyless").withColumn(BUCKET, F.pmod(F.hash("k"), F.lit(BUCKETS)))
    return in_buckets.groupBy(BUCKET).transformWithStateInPandas(processor, schema, "Append", "None")


def _in_order(frames: Iterable[pd.DataFrame]) -> Iterator[Change]:
    batches = (pa.RecordBatch.from_pandas(each[ARROW.names], ARROW, preserve_index=False) for each in frames)
    for batch in RowSort(ORDER).sorted(batches):
        yield from map(Change._make, zip(*(column.to_pylist() for column in batch.columns), strict=True))
