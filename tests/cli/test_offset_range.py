"""The grammar of ranges: every form, and what is said about those that are none."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.cli.offset_range import (
    Bound,
    From,
    OffsetRange,
    parse_duration_ms,
    parse_offset_range,
    parse_time_ms,
)

NOW_MS = 1_780_000_000_000
HOUR_MS = 3_600_000
MAY_MS = int(datetime(2026, 5, 31, tzinfo=UTC).timestamp() * 1000)


def at(value: int) -> Bound:
    return Bound(From.OFFSET, value)


def when(value: int) -> Bound:
    return Bound(From.TIME, value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("start", OffsetRange(Bound(From.START))),
        ("end", OffsetRange(Bound(From.END))),
        (":end", OffsetRange(Bound(From.START), Bound(From.END))),
        ("+5", OffsetRange(Bound(From.START, 5))),
        ("-5", OffsetRange(Bound(From.END, -5))),
        ("7", OffsetRange(at(7))),
        ("7:", OffsetRange(at(7))),
        (":9", OffsetRange(Bound(From.START), at(9))),
        ("7:9", OffsetRange(at(7), at(9))),
        ("7:end", OffsetRange(at(7), Bound(From.END))),
        ("@1780000000123", OffsetRange(when(1780000000123))),
        ("@1780000000", OffsetRange(when(1780000000000))),
        ("@-1h", OffsetRange(when(NOW_MS - HOUR_MS))),
        ("@-1h:", OffsetRange(when(NOW_MS - HOUR_MS))),
        ("@-2h:-1h", OffsetRange(when(NOW_MS - 2 * HOUR_MS), when(NOW_MS - HOUR_MS))),
        ("@-2h:30m", OffsetRange(when(NOW_MS - 2 * HOUR_MS), when(NOW_MS - HOUR_MS * 3 // 2))),
        ("@-5m:end", OffsetRange(when(NOW_MS - 300_000), Bound(From.END))),
        ("@:-1h", OffsetRange(Bound(From.START), when(NOW_MS - HOUR_MS))),
        ("@now", OffsetRange(when(NOW_MS))),
        ("@2026-05-31", OffsetRange(when(MAY_MS))),
        ("@2026-05-31T00:00:01Z", OffsetRange(when(MAY_MS + 1000))),
        ("@2026-05-31T02:00:00+02:00", OffsetRange(when(MAY_MS))),
        ("@2026-05-31:2026-06-01", OffsetRange(when(MAY_MS), when(MAY_MS + 24 * HOUR_MS))),
        (
            "@2026-05-31T01:00:00Z:2026-05-31T02:00:00.500Z",
            OffsetRange(when(MAY_MS + HOUR_MS), when(MAY_MS + 2 * HOUR_MS + 500)),
        ),
    ],
)
def test_every_form_of_a_range(text: str, expected: OffsetRange) -> None:
    assert parse_offset_range(text, NOW_MS) == expected


@pytest.mark.parametrize(
    "text", ["", ":", "@", "@:", "begin", "1:2:3", "+", "-", "1-2", "@yesterday", "@1h", "9:7", "1.5"]
)
def test_a_range_that_is_none_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match=r"write|ends before it starts"):
        parse_offset_range(text, NOW_MS)


def test_a_range_of_times_cannot_end_before_it_starts() -> None:
    with pytest.raises(ValueError, match="ends before it starts"):
        parse_offset_range("@-1h:-2h", NOW_MS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("500ms", 500), ("1.5s", 1500), ("1h30m", 5_400_000), ("2d", 172_800_000), ("1w", 604_800_000)],
)
def test_durations(text: str, expected: int) -> None:
    assert parse_duration_ms(text) == expected


@pytest.mark.parametrize("text", ["", "5", "h", "1h 30m", "1y"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration_ms(text)


@given(st.datetimes(datetime(2001, 9, 10), datetime(2200, 1, 1)))
def test_a_time_is_read_as_utc_to_the_millisecond(moment: datetime) -> None:
    exact = moment.replace(microsecond=moment.microsecond // 1000 * 1000, tzinfo=UTC)
    expected = round(exact.timestamp() * 1000)
    assert parse_time_ms(exact.isoformat(), NOW_MS) == expected
    assert parse_time_ms(exact.replace(tzinfo=None).isoformat(), NOW_MS) == expected
    assert parse_offset_range(f"@{exact.isoformat(timespec='milliseconds')}", NOW_MS) == OffsetRange(
        when(expected)
    )
