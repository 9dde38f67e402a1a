"""When a log goes on in a new segment."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

from millstream.storage.segment import MAX_RELATIVE_OFFSET, Segment

if TYPE_CHECKING:
    from millstream.clock import Clock
    from millstream.config.log import LogConfig

_NO_LIMIT: Final = 1 << 63
_LARGEST_ENTRY: Final = 12


class Rolling:
    """The limits of a log's active segment: size, age by its first batch, index entries, relative offsets."""

    __slots__ = (
        "_age_limit_ms",
        "_clock",
        "_config",
        "_max_bytes",
        "_max_entries",
        "_of",
        "_random",
        "_time_limit_ms",
    )

    def __init__(self, config: LogConfig, random: Random, clock: Clock) -> None:
        self._clock = clock
        self._config = config
        self._random = random
        self._max_bytes = config.segment_bytes
        self._max_entries = max(1, config.segment_index_bytes // _LARGEST_ENTRY - 1)
        self._of: Segment | None = None
        self._age_limit_ms = _NO_LIMIT
        self._time_limit_ms = _NO_LIMIT

    def is_due(self, segment: Segment, size: int, last_offset: int, max_timestamp: int) -> bool:
        """Whether a batch must not go to this segment."""
        if self._of is not segment:
            self._begin(segment)
        return (
            segment.size + size > self._max_bytes
            or max_timestamp > self._age_limit_ms
            or (self._time_limit_ms != _NO_LIMIT and self._clock.now_ms() > self._time_limit_ms)
            or last_offset - segment.base_offset > MAX_RELATIVE_OFFSET
            or segment.entry_count >= self._max_entries
        )

    def _begin(self, segment: Segment) -> None:
        """Work out when the segment will be too old, as soon as it has a first batch.

        That is when a batch comes that is `segment.ms` later than the first, less a jitter, so that
        not all logs roll at once. If the first has no timestamp, the clock counts, as for Kafka.
        """
        self._age_limit_ms = self._time_limit_ms = _NO_LIMIT
        if segment.size == 0:
            return
        try:
            first = segment.first_timestamp
        except OSError:  # it cannot be read now, and is asked for again with the next batch
            return
        config = self._config
        segment_ms = config.segment_ms
        if config.is_compacted:  # only a segment that is not active can be compacted (KIP-354)
            segment_ms = min(segment_ms, config.max_compaction_lag_ms)
        max_jitter_ms = min(config.segment_jitter_ms, segment_ms)
        jitter_ms = self._random.randrange(max_jitter_ms) if max_jitter_ms > 0 else 0
        if first >= 0:
            self._age_limit_ms = first + segment_ms - jitter_ms
        else:
            self._time_limit_ms = segment.created_ms + segment_ms - jitter_ms
        self._of = segment
