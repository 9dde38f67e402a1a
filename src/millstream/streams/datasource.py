"""MillstreamSource: what `format("millstream")` is to Spark, for reading and for writing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class MillstreamSource(DataSource):
    """Topics as a Spark data source, with the options and columns of Spark's own Kafka connector.

    Spark makes one of these wherever it plans, reads or writes, and asks it for one thing. What that thing
    needs is imported then: a worker that reads never pays for the writer.
    """

    @classmethod
    def name(cls) -> str:
        return "millstream"

    def schema(self) -> StructType:
        from millstream.streams.reading.schema import schema_of
        from millstream.streams.reading.settings import check_options

        check_options(self.options)  # so that load() tells, not a query much later
        return schema_of(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from millstream.streams.reading.batch import BatchReader
        from millstream.streams.reading.schema import check_schema

        check_schema(schema, self.options)
        return BatchReader(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from millstream.streams.reading.schema import check_schema
        from millstream.streams.reading.stream import StreamReader

        check_schema(schema, self.options)
        return StreamReader(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from millstream.streams.options import BadOption
        from millstream.streams.sink import BatchWriter

        if overwrite:
            raise BadOption('records are appended to topics, nothing is overwritten: write .mode("append")')
        return BatchWriter(self.options, schema)

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        from millstream.streams.sink import StreamWriter

        return StreamWriter(self.options, schema)
