"""What a task of deduplicate gives on: without a watermark one row of each value, so that no order counts."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from millstream.streams import deduplication, row_sort

SCHEMA = pa.schema([("id", pa.int64()), ("of.text", pa.string()), ("at", pa.int64()), ("number", pa.int64())])
VALUE = ["id", "of.text"]


def rows(seed: int) -> list[dict[str, Any]]:
    dice = random.Random(seed)
    return [
        {
            "id": dice.choice([None, *range(dice.choice([1, 40]))]),
            "of.text": dice.choice([None, "", "a", "b"]),
            "at": dice.choice([None, *range(20)]),
            "number": number,
        }
        for number in range(400)
    ]


def given(step: Any, made: list[dict[str, Any]]) -> list[dict[str, Any]]:
    batches = [
        pa.RecordBatch.from_pylist(made[start : start + 30], SCHEMA) for start in range(0, len(made), 30)
    ]
    return [row for batch in step(iter(batches)) for row in batch.to_pylist()]


def place(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["at"] is None, row["at"] or 0, row["number"]


@pytest.mark.parametrize("max_rows", [1, 7, 1000])
@pytest.mark.parametrize("seed", range(4))
def test_one_row_of_each_value(monkeypatch: pytest.MonkeyPatch, max_rows: int, seed: int) -> None:
    """The first by place, also where rows of a value come in several batches."""
    monkeypatch.setattr(row_sort, "MAX_ROWS", max_rows)
    made = rows(seed)
    first: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in sorted(made, key=place):
        first.setdefault(tuple(row[name] for name in VALUE), row)
    found = given(deduplication._First(VALUE, ["at", "number"]), made)
    assert sorted(found, key=place) == sorted(first.values(), key=place)


def test_with_a_watermark_all_rows_in_order() -> None:
    made = rows(1)
    assert given(deduplication._Sorted(["at", "number"]), made) == sorted(made, key=place)


def test_a_value_that_is_the_place() -> None:
    made = rows(2)
    found = given(deduplication._First(["at"], ["at", "number"]), made)
    assert [row["at"] for row in found] == [*range(20), None]
    assert given(deduplication._First(["at"], ["at"]), []) == []


def test_values_of_a_batch_that_are_no_text_or_no_number() -> None:
    """They are forgotten after a while as all others are, and not taken for each other."""
    at = [datetime(2026, 11, 16, 0, 0, second) for second in (0, 1, 9, 0, 0, 1)]
    keys = pa.array([b"\x80", b"\x80", b"\x80", b"\x81", b"z", b"z"]).view(pa.string())
    numbers = pa.array([float("nan")] * 6)
    batch = pa.RecordBatch.from_arrays(
        [keys, numbers, pa.array(at), pa.array(range(6))], ["key", "x", "at", "row"]
    )
    step = deduplication._Apart(["key", "x"], "at", timedelta(seconds=5))
    (kept,) = step(iter([batch]))
    assert kept.column("row").to_pylist() == [0, 2, 3, 4]
