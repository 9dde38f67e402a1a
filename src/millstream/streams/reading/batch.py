"""BatchReader: a range of each partition, read once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from millstream.streams.reading.bounds import bounds
from millstream.streams.reading.lookup import Lookup
from millstream.streams.reading.settings import settings_of
from millstream.streams.reading.slices import Slice, slices

if TYPE_CHECKING:
    import pyarrow


class BatchReader(DataSourceReader):
    """Plans on the driver, reads in tasks. What is read is fixed when the query is planned."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._settings = settings_of(options, is_stream=False)

    def partitions(self) -> Sequence[InputPartition]:
        settings = self._settings
        with Lookup(settings) as lookup:
            ids = lookup.ids(lookup.partitions())  # before the offsets: of an older topic, if of another
            start, end = bounds(settings, lookup)
        return slices(
            start,
            end,
            ids=ids,
            min_partitions=settings.min_partitions,
            max_records=settings.max_records,
        )

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        # Spark makes up a partition of its own where there are none.
        from millstream.streams.reading.task import read_slice  # what the driver does without

        return read_slice(self._settings, partition) if isinstance(partition, Slice) else iter(())
