"""Avro: values in Avro's binary encoding, by the schema that they were written with."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from millstream.streams.columns import column, of_value
from millstream.streams.problems import StreamsError
from millstream.streams.values import Format

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FRAME_BYTES = 5
"""A zero and the schema's number, four bytes: how values lie that were written with a schema registry."""

_PLAIN: dict[str, DataType] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "string": StringType(),
    "fixed": BinaryType(),
    "enum": StringType(),
}
_LOGICAL: dict[str, DataType] = {
    "date": DateType(),
    "timestamp-millis": TimestampType(),
    "timestamp-micros": TimestampType(),
    "local-timestamp-millis": TimestampNTZType(),
    "local-timestamp-micros": TimestampNTZType(),
}
DECIMAL = "decimal"


class Avro(Format):
    """Records of an Avro schema, given as JSON text or as what that text means.

    Dates, timestamps and decimals are columns of these types; other logical types (uuid, time-millis, …) are
    what they are made of, as Avro has it for readers that do not know one.

    With `framed`, five bytes come before each value, as a schema registry's clients write them; they are
    passed over when read. Framed values cannot be written. It needs the extra `millstream[avro]`.
    """

    def __init__(self, schema: str | Mapping[str, Any], *, framed: bool = False) -> None:
        try:
            import fastavro
        except ImportError:
            raise StreamsError("Avro values need fastavro: pip install 'millstream[avro]'") from None
        try:
            given = json.loads(schema) if isinstance(schema, str) else schema
            self.avro: Any = fastavro.parse_schema(_known(given))
        except Exception as error:
            raise StreamsError(f"the Avro schema cannot be used: {type(error).__name__}: {error}") from None
        self.is_framed = framed
        kind = _type_of(self.avro, {})
        if not isinstance(kind, StructType):
            raise StreamsError("an Avro value is a record: give a schema whose type is record")
        self.schema = kind

    def read(self, value: Column) -> Column:
        kind = StructType([StructField("row", self.schema), StructField("error", StringType())])
        return F.udf(_reader(self.avro, self.schema.names, FRAME_BYTES if self.is_framed else 0), kind)(value)

    def write(self, frame: DataFrame) -> Column:
        if self.is_framed:
            raise StreamsError("framed Avro values can be read only: there is no schema registry to ask")
        names = of_value(frame.columns)
        missing = [name for name in self.schema.names if name not in names]
        if missing:
            raise StreamsError(f"the Avro schema has a field {missing[0]}, and there are {', '.join(names)}")
        return F.udf(_writer(self.avro), BinaryType())(F.struct(*map(column, self.schema.names)))


def _reader(schema: Any, names: list[str], skipped: int) -> Callable[..., Any]:
    nothing = tuple(None for _ in names)

    def read(value):  # type: ignore[no-untyped-def]  # Spark takes hints for another kind of function
        import fastavro

        if value is None:
            return nothing, None
        try:
            if skipped and value[:1] != b"\0":
                return nothing, "not framed: it does not begin with a zero"
            encoded = io.BytesIO(value[skipped:])
            found = fastavro.schemaless_reader(encoded, schema, None)
            if rest := encoded.read():
                return nothing, f"not Avro of its schema ({len(rest)} bytes too many)"
        except Exception as error:
            return nothing, f"not Avro of its schema ({type(error).__name__})"
        return tuple(found[name] for name in names), None

    return read


def _writer(schema: Any) -> Callable[..., Any]:
    def write(row):  # type: ignore[no-untyped-def]
        import fastavro

        to = io.BytesIO()
        fastavro.schemaless_writer(to, schema, row.asDict(recursive=True))
        return to.getvalue()

    return write


def _known(given: Any) -> Any:
    """A schema without the logical types that have no column type."""
    if isinstance(given, list):
        return [_known(each) for each in given]
    if not isinstance(given, Mapping):
        return given
    is_known = given.get("logicalType") in (*_LOGICAL, DECIMAL)
    return {key: _known(each) for key, each in given.items() if key != "logicalType" or is_known}


def _type_of(given: Any, named: dict[str, DataType]) -> DataType:
    """The column type of an Avro type. `named`: those that were declared before and may be told by name."""
    if isinstance(given, list):
        rest = [each for each in given if each != "null"]
        if len(rest) != 1:
            raise StreamsError(f"an Avro union of {given} has no column type; only of null and one other has")
        return _type_of(rest[0], named)
    if isinstance(given, str):
        found = _PLAIN.get(given) or named.get(given)
        if found is None:
            raise StreamsError(f"the Avro schema names a type {given!r} that it has not declared by then")
        return found
    kind = given["type"]
    if given.get("logicalType") == DECIMAL:
        made: DataType = DecimalType(given["precision"], given.get("scale", 0))
    elif given.get("logicalType") in _LOGICAL:
        made = _LOGICAL[given["logicalType"]]
    elif kind == "record":
        made = StructType(
            [StructField(each["name"], _type_of(each["type"], named)) for each in given["fields"]]
        )
    elif kind == "array":
        made = ArrayType(_type_of(given["items"], named))
    elif kind == "map":
        made = MapType(StringType(), _type_of(given["values"], named))
    else:
        made = _type_of(kind, named)
    if "name" in given:
        named[given["name"]] = made
    return made
