"""Value formats: what turns a record's bytes into columns, and columns into a record's bytes."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    NullType,
    StringType,
    StructField,
    StructType,
)

from millstream.streams.changes import JSON
from millstream.streams.columns import column, of_value
from millstream.streams.problems import StreamsError
from millstream.streams.schemas import schema_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BROKEN = "_broken"
"""The field in which Spark's JSON reader leaves what it cannot read."""

SEAL = f"_{secrets.token_hex(8)}"
"""A name that nobody who writes records can know; another one in each process."""


class Format(ABC):
    """A value format. `read` never fails: what cannot be read is an error beside a row of nulls."""

    schema: StructType

    @abstractmethod
    def read(self, value: Column) -> Column:
        """A struct of `row`, a struct of this format's schema, and `error`, a text or null."""

    @abstractmethod
    def write(self, frame: DataFrame) -> Column:
        """The bytes of a frame's value columns."""


class Json(Format):
    """A JSON object, and nothing behind it. Fields that the schema does not name are passed over, and those
    that are missing are null."""

    def __init__(self, schema: object, **options: str) -> None:
        self.schema = schema_of(schema)
        self.options = options

    def read(self, value: Column) -> Column:
        # Spark's reader stops behind the first object, whatever follows, and puts U+FFFD for what is no text.
        # Here the last element must come in the same array right behind the value's. No value can bring one
        # of its own, or close the array and begin it anew: that takes the seal.
        text = F.try_validate_utf8(value.cast("string"))
        whole = F.concat(F.lit(f'{{"{SEAL}":['), text, F.lit(f'\n,{{"{SEAL}":true}}]}}'))
        sealed = StructType([*self.schema.fields, StructField(SEAL, BooleanType())])
        wide = StructType([StructField(SEAL, ArrayType(sealed)), StructField(BROKEN, StringType())])
        parsed = F.from_json(whole, wide, {"columnNameOfCorruptRecord": BROKEN, **self.options})
        one, last = (F.get(parsed[SEAL], F.lit(number)) for number in (0, 1))
        is_whole = (F.size(parsed[SEAL]) == 2) & last[SEAL]
        is_good = parsed[BROKEN].isNull() & is_whole & one.isNotNull()
        what = F.when(F.is_valid_utf8(value.cast("string")), f"JSON of {self.schema.simpleString()}")
        why = F.concat(F.lit("not "), what.otherwise("text in UTF-8"))
        error = F.when(value.isNotNull() & ~F.coalesce(is_good, F.lit(False)), why)
        row = F.struct(*[one[name].alias(name) for name in self.schema.names])
        return F.struct(row.alias("row"), error.alias("error"))

    def write(self, frame: DataFrame) -> Column:
        names = of_value(frame.columns)
        if not names:
            raise StreamsError("there are no columns to write: a value is made of those without a leading _")
        options = {"ignoreNullFields": "false", **JSON, **self.options}
        return F.to_json(F.struct(*map(column, names)), options).cast("binary")


class Plain(Format):
    """Text or bytes as they stand, in one column called `value`."""

    def __init__(self, *, is_text: bool) -> None:
        self.is_text = is_text
        self.schema = StructType([StructField("value", StringType() if is_text else BinaryType())])

    def read(self, value: Column) -> Column:
        plain = value.cast("string") if self.is_text else value
        error = F.lit(None).cast("string")
        if self.is_text:
            error = F.when(value.isNotNull() & ~F.is_valid_utf8(plain), F.lit("not text in UTF-8"))
        return F.struct(F.struct(plain.alias("value")).alias("row"), error.alias("error"))

    def write(self, frame: DataFrame) -> Column:
        names = of_value(frame.columns)
        if names != ["value"]:
            raise StreamsError(f"a plain value is one column called value, and these are {', '.join(names)}")
        kind = frame.schema["value"].dataType
        if not isinstance(kind, StringType | BinaryType | NullType):
            raise StreamsError(
                f"a plain value is text or bytes, and the column value is {kind.simpleString()}: "
                'cast it with .withColumn("value", F.col("value").cast("string"))'
            )
        return F.col("value").cast("binary")


def format_of(given: object) -> Format:
    """The format that `value=` names: "string", "bytes", a schema for JSON, or a Format itself."""
    if isinstance(given, Format):
        return given
    if given == "string":
        return Plain(is_text=True)
    if given == "bytes":
        return Plain(is_text=False)
    return Json(given)


def format_for(frame: DataFrame) -> Format:
    """How a frame is written if nothing is said: one text or binary column `value` plainly, else as JSON."""
    if of_value(frame.columns) == ["value"] and isinstance(
        kind := frame.schema["value"].dataType, StringType | BinaryType
    ):
        return Plain(is_text=isinstance(kind, StringType))
    return Json(frame.select(*map(column, of_value(frame.columns))).schema)
