"""Where reading begins and ends, as the options say it: by name, by offset or by time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from millstream.client.offsets import EARLIEST, LATEST
from millstream.model import TopicPartition
from millstream.streams.offsets import Offsets, from_json, to_json
from millstream.streams.options import BadOption, get, number, text

Kind: TypeAlias = Literal["earliest", "latest", "offsets", "times", "time"]

_NAMES = {EARLIEST: "earliest", LATEST: "latest"}


@dataclass(frozen=True)
class Place:
    """One end of what is read. `each` holds offsets or times (ms), by partition; `time_ms` one for all.

    An offset may also be EARLIEST or LATEST.
    """

    kind: Kind
    option: str
    each: Offsets = field(default_factory=dict)
    time_ms: int = 0
    is_latest_if_none: bool = False
    """Whether a time after the last record means the end; else it is an error."""

    @property
    def is_moving(self) -> bool:
        """Whether it may be another place when it is looked up again, with records in between."""
        return self.kind in ("latest", "times", "time") or LATEST in self.each.values()

    def wanted(self, partitions: list[TopicPartition]) -> Offsets:
        """What to ask the brokers for: a time, EARLIEST, LATEST, or an offset, for each partition."""
        if self.kind in ("earliest", "latest"):
            return dict.fromkeys(partitions, EARLIEST if self.kind == "earliest" else LATEST)
        if self.kind == "time":
            return dict.fromkeys(partitions, self.time_ms)
        missing = sorted(set(partitions) - self.each.keys())
        unknown = sorted(self.each.keys() - set(partitions))
        if missing:
            given = "-2 is the earliest, -1 the latest" if self.kind == "offsets" else "a time in ms"
            raise BadOption(f"option {self.option} leaves out {_listed(missing)}: name all ({given})")
        if unknown:
            raise BadOption(f"option {self.option} names {_listed(unknown)}, which the query does not read")
        return {partition: self.each[partition] for partition in partitions}


def starting_place(options: Mapping[str, str], *, is_stream: bool) -> Place:
    """startingTimestamp before startingOffsetsByTimestamp before startingOffsets."""
    strategy = text(options, "startingOffsetsByTimestampStrategy", "error", ("error", "latest"))
    default: Kind = "latest" if is_stream else "earliest"
    place = _place(options, "starting", default, is_latest_if_none=strategy == "latest")
    if not is_stream and (place.kind == "latest" or LATEST in place.each.values()):
        raise BadOption(
            "option startingOffsets cannot be latest in a batch query, which would read nothing: "
            "use earliest or offsets, or spark.readStream"
        )
    return place


def ending_place(options: Mapping[str, str]) -> Place:
    """endingTimestamp before endingOffsetsByTimestamp before endingOffsets."""
    place = _place(options, "ending", "latest", is_latest_if_none=True)
    if place.kind == "earliest" or EARLIEST in place.each.values():
        raise BadOption("option endingOffsets cannot be earliest (-2): use latest (-1) or offsets")
    return place


_ENDING = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")


def has_ending(options: Mapping[str, str]) -> bool:
    """Whether an end is named."""
    return any(get(options, name) is not None for name in _ENDING)


def refuse_ending(options: Mapping[str, str]) -> None:
    """A stream has no end."""
    for name in _ENDING:
        if get(options, name) is not None:
            raise BadOption(f"option {name} is for batch queries (spark.read): a stream has no end")


def _place(options: Mapping[str, str], side: str, default: Kind, *, is_latest_if_none: bool) -> Place:
    option = f"{side}Timestamp"
    time_ms = number(options, option)
    if time_ms is not None:
        return Place("time", option, time_ms=time_ms, is_latest_if_none=is_latest_if_none)
    option = f"{side}OffsetsByTimestamp"
    times = get(options, option)
    if times is not None:
        return Place(
            "times", option, each=_each(option, times, 0, "time"), is_latest_if_none=is_latest_if_none
        )
    option = f"{side}Offsets"
    given = get(options, option)
    if given is None:
        return Place(default, option)
    if given.lower() in ("earliest", "latest"):
        return Place("earliest" if given.lower() == "earliest" else "latest", option)
    return Place("offsets", option, each=_each(option, given, EARLIEST, "offset"))


def _each(option: str, given: str, least: int, what: str) -> Offsets:
    example = json.dumps(to_json({TopicPartition("orders", 0): 23}))
    try:
        each = from_json(given)
    except ValueError as error:
        names = "earliest, latest or " if what == "offset" else ""
        raise BadOption(
            f"option {option} is {names}JSON such as {example}, not {given!r} ({error})"
        ) from None
    for partition, number_ in each.items():
        if number_ < least:
            raise BadOption(f"option {option}: {partition} has no {what} {number_}")
    return each


def _listed(partitions: list[TopicPartition]) -> str:
    shown = ", ".join(str(partition) for partition in partitions[:5])
    return shown if len(partitions) <= 5 else f"{shown} and {len(partitions) - 5} more"
