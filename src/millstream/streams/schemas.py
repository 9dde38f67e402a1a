"""Schemas as people write them: DDL text, Spark's StructType, a dataclass or a TypedDict."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import types
import typing
from contextlib import suppress
from typing import Any, Union

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from millstream.streams.problems import StreamsError

_PLAIN: dict[Any, DataType] = {
    str: StringType(),
    int: LongType(),
    float: DoubleType(),
    bool: BooleanType(),
    bytes: BinaryType(),
    datetime.datetime: TimestampType(),
    datetime.date: DateType(),
    decimal.Decimal: DecimalType(38, 18),
}


def schema_of(given: object) -> StructType:
    """The schema that `given` stands for."""
    if isinstance(given, StructType):
        return given
    if isinstance(given, str):
        with suppress(Exception):
            found: DataType = StructType.fromDDL(given)
            if isinstance(found, StructType):  # and not a type alone, such as 'STRING'
                return found
        raise StreamsError(f"{given!r} is no schema: write its columns as 'name STRING, amount INT'")
    if isinstance(given, type) and (dataclasses.is_dataclass(given) or typing.is_typeddict(given)):
        return _of_class(given)
    raise StreamsError(
        f"{given!r} is no schema: give 'name STRING, amount INT', a StructType, a dataclass or a TypedDict"
    )


def _of_class(kind: type) -> StructType:
    hints = typing.get_type_hints(kind)
    return StructType(
        [StructField(name, _type_of(hint, f"{kind.__name__}.{name}")) for name, hint in hints.items()]
    )


def _type_of(hint: Any, where: str) -> DataType:
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        rest = [each for each in arguments if each is not type(None)]
        if len(rest) == 1:
            return _type_of(rest[0], where)
    elif origin is list:
        return ArrayType(_type_of(arguments[0], where))
    elif origin is dict and arguments[0] is str:
        return MapType(StringType(), _type_of(arguments[1], where))
    elif isinstance(hint, type) and (dataclasses.is_dataclass(hint) or typing.is_typeddict(hint)):
        return _of_class(hint)
    raise StreamsError(f"{where} is a {hint}, which has no column type; give the schema as text instead")
