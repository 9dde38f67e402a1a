"""The columns of a sink: which there may be, and Arrow rows parted by the topic they go to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
)

from millstream.streams.options import BadOption
from millstream.streams.sink_errors import BadRow

if TYPE_CHECKING:
    import pyarrow as pa

RECORD_COLUMNS = ("value", "key", "headers", "partition")


def check_schema(schema: StructType, topic: str | None) -> None:
    """Refuse rows that cannot become records. Columns that a record does not have are passed over."""
    types = {field.name: field.dataType for field in schema.fields}
    if "value" not in types:
        there = ", ".join(types) or "none"
        raise BadOption(
            f"a sink needs a column named value, string or binary; there are: {there}. "
            'Name one, as in df.selectExpr("to_json(struct(*)) AS value")'
        )
    if topic is None and "topic" not in types:
        raise BadOption('no topic is named: add .option("topic", "NAME"), or a column named topic')
    for name in ("value", "key"):
        _check(types, name, (StringType, BinaryType), "string or binary", "STRING")
    _check(types, "topic", (StringType,), "string", "STRING")
    _check(types, "partition", (IntegerType,), "int", "INT")
    headers = types.get("headers")
    if headers is not None and not _are_headers(headers):
        raise BadOption(
            f"column headers is {headers.simpleString()}; it has to be array<struct<key:string,value:binary>>"
        )


def _check(
    types: dict[str, DataType], name: str, allowed: tuple[type[DataType], ...], word: str, cast: str
) -> None:
    if name in types and not isinstance(types[name], allowed):
        raise BadOption(
            f"column {name} is {types[name].simpleString()}, not {word}: cast it, as in "
            f'df.withColumn("{name}", df["{name}"].cast("{cast.lower()}"))'
        )


def _are_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = [(field.name, type(field.dataType)) for field in kind.elementType.fields]
    return fields == [("key", StringType), ("value", BinaryType)]


def by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of a batch for each topic, in order, with a record's columns only."""
    names = [name for name in RECORD_COLUMNS if name in batch.schema.names]
    rows = batch.select(names)
    _check_partitions(rows)
    _check_headers(rows)
    if topic is not None:
        yield topic, rows
        return
    import pyarrow.compute as pc

    topics: Any = batch.column("topic")
    if topics.null_count:
        raise BadRow('a row has no topic: fill the column topic, or add .option("topic", "NAME")')
    different = pc.unique(topics).to_pylist()
    if len(different) == 1:
        yield different[0], rows
        return
    for each in different:
        yield each, rows.filter(pc.equal(topics, each))


def gathered(
    batches: Iterable[pa.RecordBatch], topic: str | None, enough_bytes: int
) -> Iterator[tuple[str, pa.Table]]:
    """The rows of each topic in their order, of as many batches as have `enough_bytes`.

    All columns count: what came as one piece stays in memory as long as a part of it is needed.
    """
    held: dict[str, list[pa.RecordBatch]] = {}
    held_bytes = 0
    for batch in batches:
        for each, rows in by_topic(batch, topic):
            held.setdefault(each, []).append(rows)
        held_bytes += batch.nbytes
        if held_bytes >= enough_bytes:
            yield from _joined(held)
            held, held_bytes = {}, 0
    yield from _joined(held)


def _joined(held: dict[str, list[pa.RecordBatch]]) -> Iterator[tuple[str, pa.Table]]:
    import pyarrow as pa

    for topic, batches in held.items():
        yield topic, pa.Table.from_batches(batches)


def _check_partitions(rows: pa.RecordBatch) -> None:
    if "partition" in rows.schema.names:
        import pyarrow.compute as pc

        least = pc.min(rows.column("partition")).as_py()
        if least is not None and least < 0:
            raise BadRow(f"a row has partition {least}: it is 0 or more, or null for the key's partition")


def _check_headers(rows: pa.RecordBatch) -> None:
    if "headers" in rows.schema.names:
        pairs: Any = rows.column("headers").flatten()
        if pairs.null_count or pairs.field("key").null_count:
            raise BadRow("a row has a header without a key: a header's key is text, its value may be null")
