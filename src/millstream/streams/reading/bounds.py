"""The offsets at which reading begins and ends, looked up for the places that the options name."""

from __future__ import annotations

from millstream.client.offsets import EARLIEST, LATEST
from millstream.model import TopicPartition
from millstream.streams.offsets import Offsets
from millstream.streams.options import BadOption
from millstream.streams.reading.errors import lost, report_loss
from millstream.streams.reading.lookup import Lookup
from millstream.streams.reading.places import Place
from millstream.streams.reading.settings import SourceSettings


def bounds(settings: SourceSettings, lookup: Lookup) -> tuple[Offsets, Offsets]:
    """Where a batch query begins and ends in each of its partitions."""
    partitions = lookup.partitions()
    start = starting(settings, lookup, partitions)
    if settings.ending is None:
        raise ValueError("a stream has no end")
    end = _found(settings.ending, lookup, partitions)
    if settings.ending.kind == "offsets":
        latest = lookup.latest(partitions)
        for partition, last in latest.items():
            if end[partition] > last:
                why = f"the partition ends at offset {last}"
                lost(partition, last, end[partition], why, settings.fail_on_data_loss)
                end[partition] = last
    for partition in partitions:
        if end[partition] < start[partition] and settings.ending.kind == settings.starting.kind:
            raise BadOption(
                f"{partition}: {settings.ending.option} ({end[partition]}) lies before "
                f"{settings.starting.option} ({start[partition]})"
            )
    return start, end


def starting(settings: SourceSettings, lookup: Lookup, partitions: list[TopicPartition]) -> Offsets:
    """Where a query begins in each of its partitions."""
    start = _found(settings.starting, lookup, partitions)
    if settings.starting.kind != "offsets":
        return start
    first, last = lookup.earliest(partitions), lookup.written(partitions)
    for partition, offset in start.items():
        if offset < first[partition]:
            why = f"the partition begins at offset {first[partition]} now"
            lost(partition, offset, first[partition], why, settings.fail_on_data_loss)
            start[partition] = first[partition]
        elif offset > last[partition]:
            report_loss(
                f"{partition}: startingOffsets={offset} lies behind the partition's end, {last[partition]}",
                settings.fail_on_data_loss,
            )
            start[partition] = last[partition]
    return start


def _found(place: Place, lookup: Lookup, partitions: list[TopicPartition]) -> Offsets:
    wanted = place.wanted(partitions)
    if place.kind != "offsets":
        found = lookup.offsets(wanted)
    else:
        found = wanted | lookup.offsets({p: o for p, o in wanted.items() if o in (EARLIEST, LATEST)})
    late = [partition for partition in partitions if found[partition] < 0]
    if late and not place.is_latest_if_none:
        raise BadOption(
            f"option {place.option}: {late[0]} has no record at or after {wanted[late[0]]} ms; "
            "take an earlier time, or set startingOffsetsByTimestampStrategy=latest to begin at the end"
        )
    return found | lookup.latest(late)
