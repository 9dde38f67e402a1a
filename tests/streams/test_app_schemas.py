"""Schemas as people write them."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import TypedDict

import pytest
from pyspark.sql import SparkSession

from millstream.streams import StreamsError
from millstream.streams.schemas import schema_of


class Place(TypedDict):
    lat: float
    names: dict[str, str]


@dataclass
class Order:
    id: int
    city: str | None
    at: datetime.datetime
    places: list[Place]


@dataclass
class Odd:
    what: set[int]


def test_classes_and_text_mean_the_same(spark: SparkSession) -> None:
    text = (
        "id BIGINT, city STRING, at TIMESTAMP, places ARRAY<STRUCT<lat: DOUBLE, names: MAP<STRING, STRING>>>"
    )
    assert schema_of(Order) == schema_of(text) == schema_of(schema_of(text))


def test_what_is_no_schema_is_said(spark: SparkSession) -> None:
    with pytest.raises(StreamsError, match="write its columns as 'name STRING, amount INT'"):
        schema_of("name; amount")
    with pytest.raises(StreamsError, match="'STRING' is no schema: write its columns"):
        schema_of("STRING")
    with pytest.raises(StreamsError, match=r"Odd.what is a set\[int\], which has no column type"):
        schema_of(Odd)
    with pytest.raises(StreamsError, match="7 is no schema"):
        schema_of(7)
