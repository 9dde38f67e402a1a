"""What the verbs on tables do key by key and batch by batch, on Spark's own tester of stateful operators."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator
from functools import partial
from typing import Any

import pandas as pd
import pytest
from pyspark.sql.streaming.tws_tester import TwsTester

from millstream.streams import change_processor
from millstream.streams.changes import Change
from millstream.streams.latest_by_key import Latest
from millstream.streams.row_sort import RowSort
from millstream.streams.table_join import TableJoin
from millstream.streams.table_lookup import STREAM, TABLE, TableLookup

LEFT, RIGHT = 0, 1
KEY = "k"
BUCKET = 0


def change(side: int, at: int, row: str | None, offset: int = 0, key: str = KEY) -> Change:
    """`row` None: a deletion."""
    return Change(key, side, at, 0, offset, row is None, row or "gone")


def given(tester: TwsTester, *changes: Change) -> list[dict[str, Any]]:
    """What a processor gives for changes of one bucket."""
    found: Any = tester.testInPandas(BUCKET, pd.DataFrame(changes))
    return list(found.astype(object).where(found.notna(), None).to_dict("records"))


def frames(tester: TwsTester, rows: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """The same, as Spark sees it."""
    tester.handle.setGroupingKey(BUCKET)
    processor: Any = tester.processor
    yield from processor.handleInputRows((BUCKET,), rows, None)


def state(tester: TwsTester, name: str) -> dict[Any, Any]:
    return dict(tester.peekMapState(name, BUCKET))


def joined(tester: TwsTester, *changes: Change) -> list[tuple[Any, ...]]:
    return [
        (row["at"], row["offset"], None if row["deleted"] else (row["left"], row["right"]))
        for row in given(tester, *changes)
    ]


def test_a_lagging_side_changes_the_joined_row_too() -> None:
    """Its place goes up, so that `latest` behind the join does not take the change for an old one."""
    tester, behind = TwsTester(TableJoin("inner")), TwsTester(Latest())
    found = joined(tester, change(LEFT, 10, "l1"), change(RIGHT, 5, "r1"))
    found += joined(tester, change(LEFT, 20, "l2"))
    found += joined(
        tester, change(RIGHT, 15, "r2")
    )  # later than what the right side holds, and behind the left
    assert found == [(10, 0, ("l1", "r1")), (20, 1, ("l2", "r1")), (20, 2, ("l2", "r2"))]
    for at, offset, row in found:
        (latest,) = given(behind, change(LEFT, at, str(row), offset))
        assert latest["row"] == str(row)


def test_a_side_that_goes_leaves_the_place_behind() -> None:
    tester = TwsTester(TableJoin("left"))
    assert joined(tester, change(LEFT, 10, "l1"), change(RIGHT, 40, "r1"))[-1] == (40, 1, ("l1", "r1"))
    assert joined(tester, change(RIGHT, 50, None)) == [(50, 2, ("l1", None))]
    assert joined(tester, change(LEFT, 30, "l2")) == [(50, 3, ("l2", None))]


@pytest.mark.parametrize("how", ["inner", "left", "outer"])
def test_a_row_that_is_deleted_leaves_no_state(how: str) -> None:
    tester = TwsTester(TableJoin(how))
    assert joined(tester, change(LEFT, 10, "l"), change(RIGHT, 11, "r"))[-1][2] == ("l", "r")
    assert joined(tester, change(LEFT, 20, None), change(RIGHT, 21, None))[-1][2] is None
    for name in ("left", "right", "joined"):
        assert state(tester, name) == {}
    assert joined(tester, change(LEFT, 5, "l"), change(RIGHT, 6, "r"))[-1][2] == ("l", "r")


def test_the_order_in_which_rows_come_within_a_batch_does_not_count() -> None:
    batches = [
        [
            change(STREAM, 10, "a"),
            change(TABLE, 10, "t1"),  # a tie: the table comes first
            change(STREAM, 9, "b"),
            change(TABLE, 20, None),
            change(STREAM, 20, "c"),
            change(TABLE, 30, "t2", 7),
            change(TABLE, 30, "t3", 8),
            change(STREAM, 31, "d"),
        ],
        [change(TABLE, 29, "old"), change(STREAM, 1, "e"), change(TABLE, 40, None)],
        [change(STREAM, 1, "f")],
    ]
    wanted = [[("b", None), ("a", "t1"), ("c", None), ("d", "t3")], [("e", "t3")], [("f", None)]]
    dice = random.Random(1)
    for _ in range(20):
        tester = TwsTester(TableLookup(keeps_all=True))
        found = []
        for batch in batches:
            rows = given(tester, *dice.sample(batch, len(batch)))
            found.append([(row["left"], row["right"]) for row in rows])
        assert found == wanted
        assert state(tester, "table") == {}


def test_keys_of_a_bucket_do_not_meet() -> None:
    """Each has its own row, and its own place among the changes of a joined table."""
    tester = TwsTester(TableJoin("inner"))
    changes = [
        change(side, 10 * side + number, f"{key}{side}", key=key)
        for number, key in enumerate("abc")
        for side in (LEFT, RIGHT)
    ]
    found = given(tester, *random.Random(2).sample(changes, len(changes)))
    assert [(row["k"], row["at"], row["offset"], row["left"], row["right"]) for row in found] == [
        (key, 10 + number, 0, f"{key}0", f"{key}1") for number, key in enumerate("abc")
    ]
    (again,) = given(tester, change(LEFT, 50, "b9", key="b"))
    assert (again["k"], again["offset"], again["left"], again["right"]) == ("b", 1, "b9", "b1")
    given(tester, change(LEFT, 60, None, key="b"))
    assert set(state(tester, "left")) == set(state(tester, "joined")) == {("a",), ("c",)}


def test_what_is_given_comes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that rows of one key need not all be in memory."""
    monkeypatch.setattr(change_processor, "MAX_ROWS", 10)
    monkeypatch.setattr(change_processor, "GIVEN_CHARACTERS", 100)
    tester = TwsTester(TableLookup(keeps_all=True))
    changes = [change(STREAM, number, f"{number}") for number in range(25)]
    changes += [change(STREAM, 25, "x" * 99), change(STREAM, 26, "y")]
    assert [list(each["left"]) for each in frames(tester, iter([pd.DataFrame(changes)]))] == [
        [str(number) for number in range(10)],
        [str(number) for number in range(10, 20)],
        [*(str(number) for number in range(20, 25)), "x" * 99],
        ["y"],
    ]


@pytest.mark.parametrize("processor", [TableLookup(keeps_all=True), TableJoin("left"), Latest()])
def test_rows_of_one_key_are_not_all_in_memory(
    monkeypatch: pytest.MonkeyPatch, processor: change_processor.ChangeProcessor
) -> None:
    """Neither what comes nor what is given: 10 MB pass through."""
    sort = partial(RowSort, max_bytes=1 << 20, block_bytes=1 << 16)
    monkeypatch.setattr(change_processor, "RowSort", sort)
    monkeypatch.setattr(change_processor, "GIVEN_CHARACTERS", 1 << 19)
    side = STREAM if isinstance(processor, TableLookup) else LEFT
    batches, per_batch = 100, 100

    def rows() -> Iterator[pd.DataFrame]:
        for number in range(batches):
            text = f"{number:04}" * 250
            yield pd.DataFrame([change(side, each, text + str(each), number) for each in range(per_batch)])

    tracemalloc.start()
    try:
        count = sum(len(each) for each in frames(TwsTester(processor), rows()))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == (1 if isinstance(processor, Latest) else batches * per_batch)
    assert most < 6 << 20
