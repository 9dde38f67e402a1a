"""The sink of outputs whose rows replace earlier ones.

Spark lets no Python sink take a query in update mode, for it knows no way to ask one whether it can. It lets
a function take each micro-batch, though, and write it as a batch; its tasks know the query and the batch as
those of a streaming sink do. So the same protocol holds: the batch's rows, to whatever topics, are written in
transactions that one decision commits, and a batch that comes again is recognised.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from millstream.streams.sink import StreamWriter

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

NAME = "millstream-micro-batch"
BATCH = "microbatch"


class UpdateSink(DataSource):
    """A batch sink that is told which micro-batch it writes."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return MicroBatchWriter(self.options, schema)


class MicroBatchWriter(DataSourceArrowWriter):
    """Writes one micro-batch as the streaming sink does."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._batch = int(options[BATCH])
        self._sink = StreamWriter({key: value for key, value in options.items() if key != BATCH}, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._sink.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._sink.commit(messages, self._batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._sink.abort(messages, self._batch)


class MicroBatches:
    """What Spark calls with each micro-batch."""

    def __init__(self, spark: SparkSession, options: Mapping[str, str]) -> None:
        spark.dataSource.register(UpdateSink)
        self._options = dict(options)

    def __call__(self, batch: DataFrame, number: int) -> None:
        batch.write.format(NAME).options(**self._options, **{BATCH: str(number)}).mode("append").save()
