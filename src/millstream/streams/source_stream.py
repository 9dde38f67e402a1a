"""StreamReader: the driver's side of a stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition


class StreamReader(DataSourceStreamReader):
    """Says how far there is to read, and plans it."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)

    def read(self, partition: InputPartition) -> Iterator[tuple]:  # type: ignore[type-arg]
        raise NotImplementedError
