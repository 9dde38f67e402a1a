"""StreamReader: the driver's side of a stream: how far there is to read, and who reads what."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from millstream.errors import MillstreamError
from millstream.streams.offsets import IDS, START, Offsets, from_json, ids_of, start_of, to_json
from millstream.streams.reading.admission import available, limited
from millstream.streams.reading.bounds import starting
from millstream.streams.reading.errors import NoTopic, log, report_loss
from millstream.streams.reading.lookup import Lookup
from millstream.streams.reading.settings import settings_of
from millstream.streams.reading.slices import Slice, slices

if TYPE_CHECKING:
    import pyarrow

IDLE_WAIT_MS = 100
"""How long an idle stream lets the brokers wait for records before it tells Spark that there are none."""

METADATA_TTL_MS = 1000
"""How old the list of partitions may be, unless partition.metadata.cache.ttl.ms says otherwise."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One lives on the driver for as long as the query runs; copies of it, never used there, read in tasks.

    `latestOffset` never goes back, but where a topic was made anew. `partitions` is a function of its
    arguments: a batch that Spark does again has the same slices.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._settings = settings_of(options, is_stream=True)
        self._lookup: Lookup | None = None
        self._initial: Offsets | None = None
        self._has_begun = False
        self._known: tuple[float, list[Any]] | None = None
        self._ids_now: dict[str, str] = {}
        self._ids_read: dict[str, str] = {}
        self._latest: Offsets | None = None
        self._target: Offsets | None = None
        self._last_trigger_at: float | None = None

    def _asked(self) -> Lookup:
        if self._lookup is None:
            self._lookup = Lookup(self._settings)
        return self._lookup

    # ---------------------------------------------------------------- what Spark calls on the driver

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        if self._initial is None:
            lookup = self._asked()
            partitions = lookup.partitions()
            self._ids_read = lookup.ids(partitions)
            self._initial = starting(self._settings, lookup, partitions)
        return to_json(self._initial)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._target = self._asked().latest(self._partitions(is_fresh=True))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        settings = self._settings
        if settings.max_offsets is not None:
            return ReadMaxRows(settings.max_offsets)
        return ReadMinRows(settings.min_offsets) if settings.min_offsets is not None else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """How far the next batch goes; `start` itself where there is nothing to read (yet)."""
        begun = self._of_same_topics(start)
        # Of the topics that were there when the ids were asked for. One that is made anew from here on has
        # offsets and a new id, which must not go together: what the ends are of is told by the tasks.
        ids = dict(self._ids_now)
        is_anew = begun != from_json(start)
        is_first = self._is_first(start)
        end = self._end(begun)
        if end == begun and not is_first and self._target is None:
            if not self._asked().watch(end, IDLE_WAIT_MS):
                return start
            end = self._end(begun)
        if end == begun and not is_first:
            return start
        # What is new begins at its first record, for the limits as for the reading.
        fresh = self._asked().earliest(end.keys() - begun.keys())
        floor = begun | fresh
        if not isinstance(limit, ReadAllAvailable):
            if self._should_wait(available(floor, end)) and not is_first:
                self._asked().watch(end, IDLE_WAIT_MS)
                return start
            if self._settings.max_offsets is not None:
                end = limited(floor, end, self._settings.max_offsets)
        self._last_trigger_at = time.monotonic()
        if end == begun and not is_first:
            return start
        document = to_json(end)
        late = {partition: first for partition, first in fresh.items() if first}
        if is_anew or late or (is_first and self._settings.starting.is_moving):
            document[START] = to_json(begun | late)
        ids = self._ids_now | ids
        self._ids_read = {name: ids[name] for name in document if name in ids}
        if self._ids_read:
            document[IDS] = self._ids_read
        return document

    def _of_same_topics(self, start: dict[str, Any]) -> Offsets:
        """Where the query is, without topics that were deleted and made anew: of these it has read nothing.

        A checkpoint may be of a time when ids were not kept; then those count that this reader has met.
        """
        begun = from_json(start)
        self._partitions()
        known = self._ids_read | ids_of(start)
        anew = {name for name, now in self._ids_now.items() if known.get(name, now) != now}
        lost = sorted(partition for partition in begun if partition.topic in anew)
        if lost:
            report_loss(
                f"topic {lost[0].topic} was deleted and made anew, {lost[0]} had been read up to offset "
                f"{begun[lost[0]]} of the old one",
                self._is_fatal,
            )
        self._ids_read = self._ids_now | known
        return {partition: offset for partition, offset in begun.items() if partition not in lost}

    def _is_first(self, start: dict[str, Any]) -> bool:
        """Whether the first batch is asked for. Spark does it at once and logs it, though it be empty."""
        if self._initial is None or start != to_json(self._initial):
            return False
        is_first = not self._has_begun or self._settings.starting.is_moving
        self._has_begun = True
        return is_first

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        return None if self._latest is None else to_json(self._latest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        # After a restart the first batch may have to be done again, and its start, if that was the end of
        # the topics or a time, would not be the same: it stands beside the end. So do the first records of
        # partitions that are new, for what lies before them is nothing to cut into slices.
        begun, kept = from_json(start), None if start == end else start_of(end)
        settings = self._settings
        return slices(
            begun if kept is None else kept,
            from_json(end),
            known=begun,
            ids=ids_of(end),
            min_partitions=settings.min_partitions,
            max_records=settings.max_records,
        )

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        from millstream.streams.reading.task import read_slice  # what the driver does without

        return read_slice(self._settings, partition) if isinstance(partition, Slice) else iter(())

    def commit(self, end: dict[str, Any]) -> None:
        """Show lag tools where the query is. What Spark goes by is its checkpoint, so errors are not its."""
        if self._settings.group is not None:
            try:
                self._asked().commit(self._settings.group, from_json(end))
            except MillstreamError as error:
                log.warning("offsets of group %s were not committed: %s", self._settings.group, error)

    def stop(self) -> None:
        if self._lookup is not None:
            self._lookup.close()
            self._lookup = None

    # ---------------------------------------------------------------- how far there is to read

    def _should_wait(self, count: int) -> bool:
        """Whether there is too little for a batch, and the last one not long enough ago."""
        settings = self._settings
        if settings.min_offsets is None or self._last_trigger_at is None or self._target is not None:
            return False
        waited_ms = (time.monotonic() - self._last_trigger_at) * 1000
        return count < settings.min_offsets and waited_ms < settings.max_trigger_delay_ms

    def _end(self, begun: Offsets) -> Offsets:
        """The end of each partition now, or for AvailableNow as it was when the query started."""
        partitions = self._partitions()
        try:
            latest = self._asked().latest(partitions)
        except NoTopic:
            partitions = self._partitions(is_fresh=True)
            latest = self._asked().latest(partitions)
        gone = sorted(begun.keys() - set(partitions))
        if gone:
            was_read = f"the query had read up to {begun[gone[0]]}"
            if self._asked().is_wanted(*gone[0]):
                report_loss(f"{gone[0]} is gone, {was_read}", self._is_fatal)
            else:
                report_loss(
                    f"{gone[0]} is not among what is read now, and {was_read} of it: are other topics "
                    "subscribed to, or have the query's sources changed places?",
                    self._is_fatal,
                )
        self._latest = latest = self._not_before(begun, latest)
        if self._target is not None:
            latest = {p: min(o, latest.get(p, o)) for p, o in self._target.items() if p in latest}
            # a checkpoint may be further than the target of a query that begins
            latest |= {p: max(latest.get(p, 0), o) for p, o in begun.items() if p in self._latest}
        for partition in begun.keys() & self._latest.keys():
            if self._latest[partition] < begun[partition]:
                report_loss(
                    f"{partition} ends at offset {self._latest[partition]}, but had been read up to "
                    f"{begun[partition]}: was the topic deleted and made anew?",
                    self._is_fatal,
                )
                latest[partition] = self._latest[partition]
        return latest

    def _not_before(self, begun: Offsets, latest: Offsets) -> Offsets:
        """The ends; but none before where the query is only because a transaction is open there. The query
        has read on without waiting for the outcome, or is to begin behind it.
        """
        behind = [each for each in begun.keys() & latest.keys() if latest[each] < begun[each]]
        if not behind or not self._settings.isolation:
            return latest
        written = self._asked().written(behind)
        return latest | {each: begun[each] for each in behind if written[each] >= begun[each]}

    @property
    def _is_fatal(self) -> bool:
        return self._settings.fail_on_data_loss

    def _partitions(self, *, is_fresh: bool = False) -> list[Any]:
        ttl_ms = self._settings.metadata_ttl_ms
        ttl_ms = METADATA_TTL_MS if ttl_ms is None else ttl_ms
        now = time.monotonic()
        if is_fresh or self._known is None or (now - self._known[0]) * 1000 >= ttl_ms:
            self._known = (now, self._asked().present())
            self._ids_now = self._asked().ids(self._known[1])
        return self._known[1]
