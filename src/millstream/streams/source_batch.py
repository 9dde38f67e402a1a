"""BatchReader: a range of each partition, read once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyspark.sql.datasource import DataSourceReader, InputPartition


class BatchReader(DataSourceReader):
    """Plans on the driver, reads in tasks."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)

    def read(self, partition: InputPartition) -> Iterator[tuple]:  # type: ignore[type-arg]
        raise NotImplementedError
