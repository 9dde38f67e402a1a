"""RowSort gives rows in order, whether they fit into memory or not, and leaves no file behind."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millstream.streams.row_sort import LOCAL_FOLDERS, RowSort

COLUMNS = ["at", "name"]
SCHEMA = pa.schema([("at", pa.int64()), ("name", pa.string()), ("number", pa.int64())])
SMALL = {"max_bytes": 4000, "block_bytes": 500}
"""So that some hundred rows are many runs of many blocks."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where runs are written."""
    monkeypatch.setenv(LOCAL_FOLDERS, f"{tmp_path / 'missing'},{tmp_path}")
    return tmp_path


def batches(rows: list[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(rows), 50):
        yield pa.RecordBatch.from_pylist(rows[start : start + 50], SCHEMA)


def in_order(rows: list[dict[str, Any]], **sizes: int) -> list[dict[str, Any]]:
    found = RowSort(COLUMNS, **sizes).sorted(batches(rows))
    return [row for batch in found for row in batch.to_pylist()]


def open_files(folder: Path) -> list[str]:
    """What this process has open in a folder, also files that have no name any more."""
    links = []
    for each in Path("/proc/self/fd").iterdir():
        try:
            links.append(os.readlink(each))
        except FileNotFoundError:
            continue
    return [link for link in links if link.startswith(f"{folder}/")]


@pytest.mark.parametrize("sizes", [{}, SMALL], ids=["held", "written"])
@pytest.mark.parametrize("seed", range(5))
def test_order_and_ties(sizes: dict[str, int], seed: int) -> None:
    """Rows that are equal in the columns stay as they came: `number` goes up among them."""
    dice = random.Random(seed)
    rows: list[dict[str, Any]] = [
        {
            "at": dice.choice([None, *range(dice.choice([1, 5, 1000]))]),
            "name": dice.choice(["", "ä", "b", "\U0001f600", "￿", None]),
            "number": number,
        }
        for number in range(1000)
    ]

    def place(row: dict[str, Any]) -> tuple[Any, ...]:
        at, name = row["at"], row["name"]
        return at is None, at or 0, name is None, (name or "").encode()

    assert in_order(rows, **sizes) == sorted(rows, key=place)


def test_all_rows_equal() -> None:
    rows = [{"at": 1, "name": "x", "number": number} for number in range(2000)]
    assert in_order(rows, **SMALL) == rows


def test_values_that_python_orders_in_another_way() -> None:
    """What is no number comes behind numbers, and times count that Python has no years for."""
    schema = pa.schema([("time", pa.timestamp("us", "UTC")), ("real", pa.float64())])
    far = [-(10**17), 0, 3 * 10**17, None]  # years before 1 and after 9999
    reals = [1.5, float("nan"), float("-inf"), None, 0.0]
    dice = random.Random(1)
    times = pa.array([dice.choice(far) for _ in range(1000)], pa.int64()).cast(schema.field("time").type)
    given = pa.RecordBatch.from_arrays(
        [times, pa.array([dice.choice(reals) for _ in range(1000)], pa.float64())], schema=schema
    )
    parts = [given.slice(start, 50) for start in range(0, 1000, 50)]
    found = pa.Table.from_batches(RowSort(["time", "real"], **SMALL).sorted(parts))
    wanted = pa.Table.from_batches(RowSort(["time", "real"]).sorted(parts))
    assert found.column("time").equals(wanted.column("time"))
    assert str(found.column("real").to_pylist()) == str(wanted.column("real").to_pylist())


def test_text_that_is_no_utf_8() -> None:
    """As a record's key may be: bytes count."""
    dice = random.Random(2)
    given = pa.array(
        [dice.choice([b"\x80", b"\xff\x01", b"z", "ä".encode()]) for _ in range(1000)], pa.binary()
    )
    text = pa.RecordBatch.from_arrays([given.view(pa.string())], ["name"])
    parts = [text.slice(start, 50) for start in range(0, 1000, 50)]
    found = pa.Table.from_batches(RowSort(["name"], **SMALL).sorted(parts))
    assert found.column("name").cast(pa.binary()).to_pylist() == sorted(given.to_pylist())


def test_nothing() -> None:
    assert in_order([]) == []


def test_rows_that_fit_into_memory_need_no_file(folder: Path) -> None:
    sort = RowSort(COLUMNS).sorted(batches([{"at": 1, "name": "x", "number": 1}] * 100))
    next(sort)
    assert open_files(folder) == []


@pytest.mark.parametrize("ending", ["read", "left", "failed"])
def test_no_file_is_left(folder: Path, ending: str) -> None:
    """Whether all is read, the reader goes away, or what gives the rows fails."""
    rows = [{"at": number % 7, "name": "x", "number": number} for number in range(1000)]
    seen: list[int] = []

    def given() -> Iterator[pa.RecordBatch]:
        yield from batches(rows)
        seen.append(len(open_files(folder)))
        if ending == "failed":
            raise ValueError("no more")

    sort = RowSort(COLUMNS, **SMALL).sorted(given())
    if ending == "failed":
        with pytest.raises(ValueError, match="no more"):
            next(sort)
    elif ending == "left":
        next(sort)
        del sort
    else:
        assert sum(batch.num_rows for batch in sort) == 1000
    assert seen == [1], "the rows were in a file"
    assert open_files(folder) == []
    assert list(folder.iterdir()) == []


def test_a_killed_process_leaves_no_file(folder: Path) -> None:
    program = f"""
import os, signal
import pyarrow as pa
from tests.streams.test_row_sort import Path, RowSort, open_files
batch = pa.RecordBatch.from_pydict({{"at": [*range(100)]}})
rows = RowSort(["at"], max_bytes={SMALL["max_bytes"]}).sorted(batch for _ in range(100))
next(rows)
assert open_files(Path({str(folder)!r}))
os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", program], timeout=120)
    assert ended.returncode == -signal.SIGKILL
    assert list(folder.iterdir()) == []


def test_memory_does_not_grow_with_the_rows() -> None:
    """What Arrow holds stays near the limit, though there is twenty times as much."""
    limit = 1 << 20
    text = "x" * 1000

    def given() -> Iterator[pa.RecordBatch]:
        for number in range(200):
            yield pa.RecordBatch.from_pydict({"at": [*range(number, number + 100)], "text": [text] * 100})

    before, most, count = pa.total_allocated_bytes(), 0, 0

    def watched() -> Iterator[pa.RecordBatch]:
        nonlocal most
        for batch in given():
            most = max(most, pa.total_allocated_bytes() - before)
            yield batch

    for batch in RowSort(["at"], max_bytes=limit, block_bytes=1 << 14).sorted(watched()):
        count += batch.num_rows
        most = max(most, pa.total_allocated_bytes() - before)
    assert count == 20_000
    assert most < 3 * limit
