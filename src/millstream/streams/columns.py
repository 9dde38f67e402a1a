"""The columns of a record as the source gives it, and the names they have in an app.

A record's own columns begin with an underscore, so that they never meet a field of its value.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

KEY = "_key"
TIMESTAMP = "_timestamp"
TOPIC = "_topic"
PARTITION = "_partition"
OFFSET = "_offset"
HEADERS = "_headers"
DELETED = "_deleted"

RECORD = (KEY, TIMESTAMP, TOPIC, PARTITION, OFFSET, HEADERS, DELETED)
"""Columns that belong to the record, not to its value; `to` writes none of them into a value."""

RAW = (
    StructType()
    .add("key", BinaryType())
    .add("value", BinaryType())
    .add("topic", StringType())
    .add("partition", IntegerType())
    .add("offset", LongType())
    .add("timestamp", TimestampType())
    .add("timestampType", IntegerType())
    .add("headers", ArrayType(StructType().add("key", StringType()).add("value", BinaryType())))
)
"""What a source gives, and what a sink takes key, value, topic and headers from."""


def column(name: str) -> Column:
    """The column of this name, also where that has dots, which else would mean a field of a field."""
    return F.col("`{}`".format(name.replace("`", "``")))


def of_value(names: list[str]) -> list[str]:
    """Those columns of a frame that make up its value."""
    return [name for name in names if name not in RECORD]
