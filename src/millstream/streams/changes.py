"""Rows of several frames in one form, so that one stateful operator sees them together.

A change is: `k`, the key as JSON text; `side`, which frame it is of; `at`, the record's timestamp in
microseconds; `partition` and `offset`; `deleted`; and `row`, the whole row as JSON text. JSON keeps every
column type but maps whose keys are no text, can be read in the state store by people, and lets a table
gain a column without making its state unreadable. It has no place for text that is no UTF-8, as a record's
key may be: such a `_key` is in it as bytes, in `_key_bytes`.

Changes of a key apply in the order `ORDER`: by timestamp, the lower side first on ties, then by place. That
order depends on the rows alone, so a batch that is replayed gives the same output.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

from millstream.streams.columns import DELETED, KEY, OFFSET, PARTITION, TIMESTAMP, column
from millstream.streams.problems import StreamsError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

JSON = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Times to the microsecond, as Spark keeps them."""


class Change(NamedTuple):
    """A change as a stateful operator sees it."""

    k: str
    side: int
    at: int
    partition: int
    offset: int
    deleted: bool
    row: str


ARROW = pa.schema(
    [
        ("k", pa.string()),
        ("side", pa.int32()),
        ("at", pa.int64()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("deleted", pa.bool_()),
        ("row", pa.string()),
    ]
)
ORDER = ("k", "at", "side", "partition", "offset", "row")
"""What changes are sorted by; those of a key that are equal in all of it are the same change."""

WATERMARK = "spark.watermarkDelayMs"

KEY_BYTES = "_key_bytes"

_WHOLE = (ByteType, ShortType, IntegerType, LongType)


def changes(frame: DataFrame, key: Sequence[str], side: int, verb: str) -> DataFrame:
    """The rows of a frame as changes."""
    for name in (*key, TIMESTAMP):
        require(frame, name, verb)
    late = next((field.name for field in frame.schema.fields if WATERMARK in field.metadata), None)
    if late is not None and frame.isStreaming:
        raise StreamsError(
            f"{verb} comes before the watermark of {late}: leave late= out of stream(), and write "
            f'.withWatermark("{late}", ...) behind {verb}'
        )

    def own(name: str, other: Column) -> Column:
        return F.coalesce(F.col(name), other) if name in frame.columns else other

    return frame.select(
        _text(frame, key).alias("k"),
        F.lit(side).alias("side"),
        F.unix_micros(TIMESTAMP).alias("at"),
        own(PARTITION, F.lit(0)).alias("partition"),
        own(OFFSET, F.lit(0).cast("long")).alias("offset"),
        own(DELETED, F.lit(False)).alias("deleted"),
        _text(frame, frame.columns).alias("row"),
        F.greatest(F.lit(False), *[column(name).isNull() for name in key]).alias("keyless"),
    )


def require(frame: DataFrame, name: str, verb: str) -> None:
    """Refuse a frame that lacks a column which the verb needs."""
    if name not in frame.columns:
        raise StreamsError(f"{verb} needs a column {name}, and there are {', '.join(frame.columns)}")


def unfold(text: str, schema: StructType) -> Column:
    """The row that a change holds as JSON text, as a struct again.

    One that is held since a column had another type, which does not become this one, stops the query: Spark
    would have a null for it.
    """
    broken = "_broken"
    while broken in schema.names:
        broken += "_"
    own = [StructField(KEY_BYTES, BinaryType()), StructField(broken, StringType())]
    wide = StructType([*schema.fields, *own])
    found = F.from_json(text, wide, {**JSON, "columnNameOfCorruptRecord": broken})

    def row_of(row: Column) -> Column:
        columns = {name: row[name] for name in schema.names}
        if _has_text_key(schema):
            columns[KEY] = F.coalesce(row[KEY_BYTES].cast("string"), row[KEY])
        good = F.struct(*[each.alias(name) for name, each in columns.items()])
        return F.when(row[broken].isNull(), F.when(row.isNotNull(), good)).otherwise(
            F.raise_error(_complaint(row[broken]))
        )

    return F.get(F.transform(F.array(found), row_of), F.lit(0))  # as plain fields each would be read anew


def _complaint(text: Column) -> Column:
    return F.concat(
        F.lit("the app holds a row whose columns have other types now, "),
        F.substring(text, 1, 200),
        F.lit(": reset the app, or give it another name"),
    )


def _text(frame: DataFrame, names: Sequence[str]) -> Column:
    """Columns as the text of a JSON object; other values always give another text."""
    found = [column(name) for name in names]
    if KEY in names and _has_text_key(frame.schema):
        is_text = F.is_valid_utf8(KEY)
        found[names.index(KEY)] = F.when(is_text, F.col(KEY)).alias(KEY)
        found.append(F.when(~is_text, F.col(KEY).cast("binary")).alias(KEY_BYTES))
    return F.to_json(F.struct(*found), JSON)


def _has_text_key(schema: StructType) -> bool:
    return KEY in schema.names and isinstance(schema[KEY].dataType, StringType)


def names(given: str | Iterable[str]) -> list[str]:
    """One column name or several."""
    return [given] if isinstance(given, str) else list(given)


def check_how(how: str, known: Sequence[str], verb: str) -> None:
    """Refuse a kind of join that the verb does not know."""
    if how not in known:
        raise StreamsError(f"{verb} has no how={how!r}: it is one of {', '.join(known)}")


def check_join(left: DataFrame, right: DataFrame, on: Sequence[str], added: Sequence[str], verb: str) -> None:
    """Refuse keys of two types, which would never be equal, and columns that both sides have."""
    for name in on:
        for side in (left, right):
            require(side, name, verb)
        one, other = left.schema[name].dataType, right.schema[name].dataType
        if one != other and not (isinstance(one, _WHOLE) and isinstance(other, _WHOLE)):
            raise StreamsError(
                f"{verb} on {name}: it is {one.simpleString()} on one side and {other.simpleString()} "
                "on the other; cast one of them"
            )
    both = [name for name in added if name in left.columns]
    if both:
        raise StreamsError(
            f"{verb}: both sides have a column {both[0]}; rename one with .withColumnRenamed()"
        )
