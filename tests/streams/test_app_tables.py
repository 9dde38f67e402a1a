"""What the verbs on tables do key by key and batch by batch, on Spark's own tester of stateful operators."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.tws_tester import TwsTester

from millstream.streams.latest_by_key import Latest
from millstream.streams.table_join import TableJoin
from millstream.streams.table_lookup import STREAM, TABLE, TableLookup

LEFT, RIGHT = 0, 1
KEY = "k"


def change(side: int, at: int, row: str | None, offset: int = 0) -> Row:
    """`row` None: a deletion."""
    return Row(
        k=KEY,
        side=side,
        at=at,
        partition=0,
        offset=offset,
        deleted=row is None,
        row=row or "gone",
        keyless=False,
    )


def joined(tester: TwsTester, *given: Row) -> list[tuple[Any, ...]]:
    found = tester.test(KEY, list(given))
    return [
        (row["at"], row["offset"], None if row["deleted"] else (row["left"], row["right"])) for row in found
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
        (latest,) = behind.test(KEY, [change(LEFT, at, str(row), offset)])
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
        assert tester.peekValueState(name, KEY) is None
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
            rows = tester.test(KEY, dice.sample(batch, len(batch)))
            found.append([(row["left"], row["right"]) for row in rows])
        assert found == wanted
        assert tester.peekValueState("table", KEY) is None
