"""The columns of a topic read by Spark: those of Spark's own Kafka connector, in its order."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from millstream.streams.options import BadOption, flag, get

if TYPE_CHECKING:
    import pyarrow

HEADERS = "headers"
TIMESTAMP_TYPE = "timestampType"

_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    TIMESTAMP_TYPE: IntegerType(),
    HEADERS: ArrayType(
        StructType([StructField("key", StringType()), StructField("value", BinaryType())]), True
    ),
}


def schema_of(options: Mapping[str, str]) -> StructType:
    """The schema for the columns that are asked for."""
    return _schema(columns_of(options))


def check_schema(given: StructType, options: Mapping[str, str]) -> None:
    """Refuse a schema that a query brings along, unless it is the source's own: nothing is converted."""
    own = schema_of(options)
    if given.simpleString() != own.simpleString():
        raise BadOption(
            f"the columns of a topic are {own.simpleString()}, not {given.simpleString()}: leave .schema() "
            'out, choose columns with .option("columns", "key,value"), and cast them behind load()'
        )


def arrow_schema(columns: tuple[str, ...]) -> pyarrow.Schema:
    """The same as Spark wants it in Arrow; it compares the first batch of a task with this."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(_schema(columns), timezone="UTC")


def _schema(columns: tuple[str, ...]) -> StructType:
    return StructType([StructField(name, _TYPES[name]) for name in columns])


def columns_of(options: Mapping[str, str]) -> tuple[str, ...]:
    """The names of the columns: those of option `columns`, in that order, or all; headers if included."""
    includes_headers = flag(options, "includeHeaders", False)
    given = get(options, "columns")
    if given is None:
        return tuple(name for name in _TYPES if includes_headers or name != HEADERS)
    known = {name.lower(): name for name in _TYPES}
    chosen: list[str] = []
    for word in given.split(","):
        name = known.get(word.strip().lower())
        if name is None:
            near = get_close_matches(word.strip().lower(), known, n=1)
            hint = f": did you mean {known[near[0]]}?" if near else f"; there are {', '.join(_TYPES)}"
            raise BadOption(f"option columns names no column {word.strip()!r}{hint}")
        if name in chosen:
            raise BadOption(f"option columns names {name} twice")
        chosen.append(name)
    if includes_headers and HEADERS not in chosen:
        chosen.append(HEADERS)
    return tuple(chosen)
