"""Records as rows: a value's fields as columns, then the record's own columns, and where bad rows go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import ArrayType, MapType, StructType

from millstream.streams.columns import (
    DELETED,
    HEADERS,
    KEY,
    OFFSET,
    PARTITION,
    RECORD,
    TIMESTAMP,
    TOPIC,
    column,
)
from millstream.streams.problems import StreamsError
from millstream.streams.values import Format, Plain

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEYS = ("string", "bytes")


def parsed(records: DataFrame, form: Format) -> DataFrame:
    """Records with their value read: what the source gives, and `read` of `row` and `error`."""
    return records.withColumn("read", form.read(F.col("value")))


def rows(
    read: DataFrame, form: Format, key: str, *, fails: bool, has_headers: bool, is_table: bool
) -> DataFrame:
    """The rows whose value could be read. With `fails`, one that could not stops the query.

    A record without a value is a deletion to a table. To a stream it is nothing, unless its value is taken
    as it stands.
    """
    if clashes := sorted({*form.schema.names} & {*RECORD}):
        raise StreamsError(
            f"the value has a field {clashes[0]}, which is the name of a column of the record: read it with "
            'value="string", and its fields with Spark\'s from_json under other names'
        )
    if key not in KEYS:
        raise StreamsError(f"a record's key is read as {' or '.join(KEYS)}, not {key!r}")
    if not is_table and not isinstance(form, Plain):
        read = read.where("value IS NOT NULL")
    # One row out of each record, or none: values are read once, and also where no column of theirs is used.
    good = F.when(F.col("read.error").isNull(), F.array("read.row"))
    return read.select(
        F.inline(good.otherwise(F.raise_error(_complaint())) if fails else good),
        F.col("key").cast("string" if key == "string" else "binary").alias(KEY),
        F.col("timestamp").alias(TIMESTAMP),
        F.col("topic").alias(TOPIC),
        F.col("partition").alias(PARTITION),
        F.col("offset").alias(OFFSET),
        *([F.col("headers").alias(HEADERS)] if has_headers else []),
        *([F.col("value").isNull().alias(DELETED)] if is_table else []),
    )


def dead_letters(read: DataFrame) -> DataFrame:
    """The records whose value could not be read: as they came, with headers that say where and why."""
    why = {
        "error": F.col("read.error"),
        "topic": F.col("topic"),
        "partition": F.col("partition").cast("string"),
        "offset": F.col("offset").cast("string"),
    }
    added = F.array(
        *[
            F.struct(F.lit(f"dead-letter.{name}").alias("key"), said.cast("binary").alias("value"))
            for name, said in why.items()
        ]
    )
    headers = F.concat(F.coalesce(F.col("headers"), F.array().cast(read.schema["headers"].dataType)), added)
    return read.where("read.error IS NOT NULL").select(
        F.col("value"), F.col("key").alias(KEY), headers.alias(HEADERS)
    )


def with_table_key(frame: DataFrame, key: Sequence[str], schema: StructType) -> DataFrame:
    """A table's rows with their key in its columns, also where the value is gone: the record has it."""
    own = _of_key(F.col(KEY), key, schema)
    return frame.withColumns(
        {
            name: F.coalesce(column(name), found) if name in schema.names else found
            for name, found in own.items()
        }
    )


def with_keyless_deletions(read: DataFrame, key: Sequence[str], schema: StructType) -> DataFrame:
    """Records with their value read; those whose key is needed and cannot be read have an error, too."""
    text = F.col("key").cast("string")
    own = _of_key(text, key, schema)
    has_none = F.col("value").isNull() & F.greatest(F.lit(False), *[each.isNull() for each in own.values()])
    said = F.when(has_none, F.lit(f"a deletion, and its key has no {', '.join(key)}"))
    if any(name not in schema.names for name in key):
        said = F.when(~F.is_valid_utf8(text), F.lit("one with a key that is not text in UTF-8")).otherwise(
            said
        )
    error = F.coalesce(F.col("read.error"), said)
    return read.withColumn("read", F.struct(F.col("read.row").alias("row"), error.alias("error")))


def _of_key(text: Column, key: Sequence[str], schema: StructType) -> dict[str, Column]:
    """The key columns as a record's key has them.

    One is the key itself, or the field of that name of a JSON object in it, as change data capture writes
    them; several are such an object, as `to` writes them.
    """
    text = F.try_validate_utf8(text)  # else keys that are no text would become equal in the state
    missing = [name for name in key if name not in schema.names]
    if len(key) == 1 and missing:
        return {key[0]: text}
    if missing:
        raise StreamsError(f"key={missing[0]}: there is no such field in {schema.simpleString()}")
    fields = F.from_json(text, StructType([schema[name] for name in key]))
    kind = schema[key[0]].dataType
    if len(key) > 1 or isinstance(kind, StructType | ArrayType | MapType):  # which no text is cast to
        return {name: fields[name] for name in key}
    return {key[0]: F.coalesce(fields[key[0]], text.try_cast(kind))}


def _complaint() -> Column:
    where = F.concat_ws("-", "topic", F.col("partition").cast("string"))
    return F.concat(
        F.lit("the record at offset "),
        F.col("offset").cast("string"),
        F.lit(" of "),
        where,
        F.lit(" is "),
        F.col("read.error"),
        F.lit("; pass such records on with bad='TOPIC' or leave them out with bad='drop'"),
    )
