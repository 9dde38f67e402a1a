"""Which records to read, as a person writes it: `start`, `-10`, `100:200`, `@-1h`, `@t1:t2`.

| text       | reads                                                            |
|------------|------------------------------------------------------------------|
| `start`    | from the first record                                            |
| `end`      | only what comes from now on                                      |
| `:end`     | from the first record up to the present end                      |
| `+N`       | from N records after the first                                   |
| `-N`       | the last N records of each partition, and what comes             |
| `N`, `N:`  | from offset N                                                    |
| `:M`       | from the first record up to offset M (not included)              |
| `N:M`      | from offset N up to offset M (not included)                      |
| `@T`, `@T:`| from time T                                                      |
| `@:T`      | from the first record up to time T (not included)                |
| `@T1:T2`   | from time T1 up to time T2 (not included)                        |

A time is milliseconds since 1970 (13 digits), seconds (9 or 10 digits), `2026-05-31`,
`2026-05-31T12:30:00Z` (UTC unless a zone is written), `-1h30m` (that long ago), `now`, and as the
second of two also `end` or `2h` (that long after the first).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum

from millstream.client.admin import AsyncAdmin
from millstream.client.offsets import EARLIEST, LATEST
from millstream.deadline import Deadline
from millstream.model import TopicPartition

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION = r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d|w))+"
_TIME = (
    r"(?:\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?"
    rf"|-?{_DURATION}|\d{{13}}|\d{{9,10}}|now|end)"
)
_TIME_RANGE = re.compile(rf"@(?P<start>{_TIME})?(?:(?P<colon>:)(?P<stop>{_TIME})?)?")
_OFFSET_RANGE = re.compile(r"(?P<start>\d+)?(?P<colon>:)?(?P<stop>\d+|end)?")


class From(Enum):
    """What a bound counts from."""

    START = "start"
    END = "end"
    OFFSET = "offset"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a range: `value` records after what it counts from, or the offset or time itself."""

    origin: From
    value: int = 0


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """From `start`, included, to `stop`, not included; without `stop` it goes on for ever."""

    start: Bound
    stop: Bound | None = None


def parse_offset_range(text: str, now_ms: int) -> OffsetRange:
    """Read the grammar above; ValueError says what is wrong."""
    text = text.strip()
    if text == "start":
        return OffsetRange(Bound(From.START))
    if text == "end":
        return OffsetRange(Bound(From.END))
    if re.fullmatch(r"[+-]\d+", text):
        return OffsetRange(Bound(From.START if text[0] == "+" else From.END, int(text)))
    if text.startswith("@"):
        return _time_range(text, now_ms)
    match = _OFFSET_RANGE.fullmatch(text)
    if not text or text == ":" or match is None or (match["stop"] and not match["colon"]):
        raise ValueError(
            f"{text!r} is not a range of offsets: write start, end, N, +N, -N, N:M, @TIME or @TIME:TIME"
        )
    start = Bound(From.START) if match["start"] is None else Bound(From.OFFSET, int(match["start"]))
    stop = None
    if match["stop"] is not None:
        stop = Bound(From.END) if match["stop"] == "end" else Bound(From.OFFSET, int(match["stop"]))
        if stop.origin is From.OFFSET and start.origin is From.OFFSET and stop.value < start.value:
            raise ValueError(f"{text!r} ends before it starts")
    return OffsetRange(start, stop)


def _time_range(text: str, now_ms: int) -> OffsetRange:
    match = _TIME_RANGE.fullmatch(text)
    if match is None or text in ("@", "@:"):
        raise ValueError(
            f"{text!r} is not a time: write @2026-05-31, @2026-05-31T12:30:00Z, @-1h (an hour ago), "
            "@MILLISECONDS, or two of them with a colon between"
        )
    start = Bound(From.START)
    if match["start"] == "end":
        start = Bound(From.END)
    elif match["start"] is not None:
        start = Bound(From.TIME, parse_time_ms(match["start"], now_ms))
    if match["stop"] is None:
        return OffsetRange(start)
    if match["stop"] == "end":
        return OffsetRange(start, Bound(From.END))
    since_ms = start.value if start.origin is From.TIME else now_ms
    stop = Bound(From.TIME, parse_time_ms(match["stop"], now_ms, since_ms=since_ms))
    if start.origin is From.TIME and stop.value < start.value:
        raise ValueError(f"{text!r} ends before it starts")
    return OffsetRange(start, stop)


def parse_time_ms(text: str, now_ms: int, *, since_ms: int | None = None) -> int:
    """A time as milliseconds since 1970. A plain duration counts from `since_ms`, a negative from now."""
    if text == "now":
        return now_ms
    if re.fullmatch(rf"-{_DURATION}", text):
        return now_ms - parse_duration_ms(text[1:])
    if since_ms is not None and re.fullmatch(_DURATION, text):
        return since_ms + parse_duration_ms(text)
    if re.fullmatch(r"\d{13}", text):
        return int(text)
    if re.fullmatch(r"\d{9,10}", text):
        return int(text) * 1000
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is not a time: write 2026-05-31, 2026-05-31T12:30:00Z, -1h (an hour ago), "
            "or milliseconds since 1970"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - EPOCH) // timedelta(milliseconds=1)


def parse_duration_ms(text: str) -> int:
    """`1h30m` as milliseconds."""
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is not a duration: write 500ms, 30s, 5m, 1h30m, 2d or 1w")
    return int(sum(float(number) * UNIT_MS[unit] for number, unit in parts))


@dataclass(frozen=True, slots=True)
class Span:
    """Where to read in one partition: the offsets it has, where to start, where to stop."""

    first: int
    end: int
    start: int
    stop: int | None


async def resolve(
    admin: AsyncAdmin,
    partitions: list[TopicPartition],
    wanted: OffsetRange,
    deadline: Deadline,
    *,
    only_committed: bool = False,
) -> dict[TopicPartition, Span]:
    """Turn a range into offsets of each partition, within what the partition holds."""
    first = await admin.offsets_at(dict.fromkeys(partitions, EARLIEST), timeout=deadline.remaining)
    end = await admin.offsets_at(
        dict.fromkeys(partitions, LATEST), only_committed=only_committed, timeout=deadline.remaining
    )

    async def offsets(bound: Bound) -> dict[TopicPartition, int]:
        if bound.origin is From.START:
            return {p: first[p].offset + bound.value for p in partitions}
        if bound.origin is From.END:
            return {p: end[p].offset + bound.value for p in partitions}
        if bound.origin is From.OFFSET:
            return dict.fromkeys(partitions, bound.value)
        found = await admin.offsets_at(dict.fromkeys(partitions, bound.value), timeout=deadline.remaining)
        return {p: end[p].offset if found[p].offset < 0 else found[p].offset for p in partitions}

    starts = await offsets(wanted.start)
    stops = await offsets(wanted.stop) if wanted.stop is not None else None
    return {
        p: Span(
            first[p].offset,
            end[p].offset,
            min(max(starts[p], first[p].offset), end[p].offset),
            None if stops is None else stops[p],
        )
        for p in partitions
    }
