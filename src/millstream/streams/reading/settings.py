"""SourceSettings: the options of a source, read and checked once; tasks get them by pickling."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from millstream.client.offsets import READ_COMMITTED, READ_UNCOMMITTED
from millstream.model import TopicPartition
from millstream.streams.options import (
    BadOption,
    Setting,
    bootstrap_of,
    check_names,
    client_settings,
    flag,
    get,
    number,
)
from millstream.streams.reading.places import Place, ending_place, has_ending, refuse_ending, starting_place
from millstream.streams.reading.schema import columns_of

OPTIONS = (
    "assign",
    "columns",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "failOnDataLoss",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "groupIdPrefix",
    "includeHeaders",
    "kafkaConsumer.pollTimeoutMs",
    "maxOffsetsPerTrigger",
    "maxRecordsPerPartition",
    "maxTriggerDelay",
    "minOffsetsPerTrigger",
    "minPartitions",
    "partition.metadata.cache.ttl.ms",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "startingTimestamp",
    "subscribe",
    "subscribePattern",
)

MAX_FETCH_BYTES = 4 * 1024 * 1024
"""What one Fetch brings by default: a few of them are all that a worker holds."""


ISOLATION_LEVELS = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}


def _isolation(word: str) -> int:
    if word.lower() not in ISOLATION_LEVELS:
        raise ValueError(f"it is one of {', '.join(sorted(ISOLATION_LEVELS))}")
    return ISOLATION_LEVELS[word.lower()]


def _positive(word: str) -> int:
    value = int(word) if word.isdecimal() else 0
    if value <= 0:
        raise ValueError("it is a whole number above 0")
    return value


def _is_true(word: str) -> bool:
    if word.lower() not in ("true", "false"):
        raise ValueError("it is true or false")
    return word.lower() == "true"


KAFKA_SETTINGS = {
    "check.crcs": Setting("checks_crcs", _is_true),
    "client.id": Setting("client_id", str),
    "default.api.timeout.ms": Setting("api_timeout_ms", _positive),
    "fetch.max.wait.ms": Setting("max_wait_ms", _positive),
    "group.id": Setting("group", str),
    "isolation.level": Setting("isolation", _isolation),
    "max.partition.fetch.bytes": Setting("max_fetch_bytes", _positive),
    "request.timeout.ms": Setting("request_timeout_ms", _positive),
}
FORBIDDEN = {
    "auto.offset.reset": "startingOffsets says where to begin",
    "key.deserializer": "keys are binary; cast them in Spark",
    "value.deserializer": "values are binary; cast them in Spark",
    "enable.auto.commit": "Spark's checkpoint keeps the offsets; with kafka.group.id they are committed, too",
    "interceptor.classes": "there is no Java consumer here",
}


@dataclass(frozen=True)
class SourceSettings:
    """What to read, from where to where, and how. One of `topics`, `pattern` and `partitions` is given."""

    bootstrap: str
    columns: tuple[str, ...]
    topics: tuple[str, ...]
    pattern: str | None
    partitions: tuple[TopicPartition, ...]
    starting: Place
    ending: Place | None
    fail_on_data_loss: bool
    poll_timeout_ms: int
    metadata_ttl_ms: int | None
    max_offsets: int | None
    min_offsets: int | None
    max_trigger_delay_ms: int
    min_partitions: int
    max_records: int | None
    group: str | None = None
    isolation: int = 0
    checks_crcs: bool = True
    client_id: str = "millstream-spark"
    api_timeout_ms: int = 60_000
    request_timeout_ms: int = 30_000
    max_wait_ms: int = 500
    max_fetch_bytes: int = MAX_FETCH_BYTES


def check_options(options: Mapping[str, str]) -> None:
    """BadOption for an option that neither a batch nor a stream can use; which of both this is, is not known.

    What is wrong with both is told, not that one of them cannot be at all: only a batch has an end.
    """
    try:
        settings_of(options, is_stream=False)
    except BadOption as of_batch:
        try:
            settings_of(options, is_stream=True)
        except BadOption as of_stream:
            raise (of_batch if has_ending(options) else of_stream) from None


def settings_of(options: Mapping[str, str], *, is_stream: bool) -> SourceSettings:
    """Read the options of a source; BadOption for the first that cannot be used."""
    check_names(options, OPTIONS, "source")
    topics, pattern, partitions = _subscription(options)
    if is_stream:
        refuse_ending(options)
    number(options, "fetchOffset.numRetries")
    number(options, "fetchOffset.retryIntervalMs")
    ttl_ms = number(options, "partition.metadata.cache.ttl.ms", None, least=-1)
    max_offsets = number(options, "maxOffsetsPerTrigger", None, least=1)
    min_offsets = number(options, "minOffsetsPerTrigger", None, least=1)
    if max_offsets is not None and min_offsets is not None and min_offsets > max_offsets:
        raise BadOption(
            f"option minOffsetsPerTrigger={min_offsets} is more than maxOffsetsPerTrigger={max_offsets}"
        )
    return SourceSettings(
        bootstrap=bootstrap_of(options),
        columns=columns_of(options),
        topics=topics,
        pattern=pattern,
        partitions=partitions,
        starting=starting_place(options, is_stream=is_stream),
        ending=None if is_stream else ending_place(options),
        fail_on_data_loss=flag(options, "failOnDataLoss", True),
        poll_timeout_ms=number(options, "kafkaConsumer.pollTimeoutMs", 120_000, least=1) or 0,
        metadata_ttl_ms=ttl_ms,
        max_offsets=max_offsets,
        min_offsets=min_offsets,
        max_trigger_delay_ms=_duration_ms(options, "maxTriggerDelay", 15 * 60_000),
        min_partitions=number(options, "minPartitions", 0, least=1) or 0,
        max_records=number(options, "maxRecordsPerPartition", None, least=1),
        **client_settings(options, KAFKA_SETTINGS, FORBIDDEN, "Millstream source"),
    )


def _subscription(
    options: Mapping[str, str],
) -> tuple[tuple[str, ...], str | None, tuple[TopicPartition, ...]]:
    given = {name: get(options, name) for name in ("subscribe", "subscribePattern", "assign")}
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        what = f"{' and '.join(named)} exclude each other" if named else "nothing says what to read"
        raise BadOption(f"{what}: give one of the options subscribe, subscribePattern and assign")
    if given["subscribe"] is not None:
        topics = tuple(word.strip() for word in given["subscribe"].split(",") if word.strip())
        if not topics:
            raise BadOption("option subscribe names no topic: write them with commas between")
        return tuple(sorted(set(topics))), None, ()
    pattern = given["subscribePattern"]
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise BadOption(
                f"option subscribePattern={pattern!r} is no regular expression: {error}"
            ) from None
        return (), pattern, ()
    return (), None, _assigned(given["assign"] or "")


def _assigned(text: str) -> tuple[TopicPartition, ...]:
    try:
        document = json.loads(text)
        found = {TopicPartition(topic, index) for topic, indexes in document.items() for index in indexes}
        if not found or any(not isinstance(part, int) or part < 0 for _, part in found):
            raise ValueError
    except (ValueError, TypeError, AttributeError):
        raise BadOption(f'option assign is JSON such as {{"orders": [0, 1]}}, not {text!r}') from None
    return tuple(sorted(found))


_UNITS_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def _duration_ms(options: Mapping[str, str], name: str, default: int) -> int:
    given = get(options, name)
    if given is None:
        return default
    match = re.fullmatch(r"(\d+)\s*([a-z]*)", given.lower())
    if match is None or match[2] not in _UNITS_MS:
        raise BadOption(f"option {name} is a time such as 15m, 30s or 500ms, not {given!r}")
    return int(match[1]) * _UNITS_MS[match[2]]
