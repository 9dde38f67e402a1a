"""Feeds: where the records of an app come from. An app's functions do not know which one they run on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from millstream.streams.options import BOOTSTRAP, get
from millstream.streams.problems import StreamsError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from millstream.streams.state_folder import StateFolder
    from millstream.streams.subscription import Subscription

FORMAT = "millstream"


class Feed(Protocol):
    """Gives the records of topics as a frame with the source's columns (`columns.RAW`)."""

    def records(self, wanted: Subscription) -> DataFrame: ...


class LiveFeed:
    """What comes: a stream from a broker."""

    def __init__(self, spark: SparkSession, bootstrap: str, folder: StateFolder) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.folder = folder

    def records(self, wanted: Subscription) -> DataFrame:
        options = {**_options(wanted, self.bootstrap), **self._start(wanted), **wanted.options}
        return self.spark.readStream.format(FORMAT).options(**options).load()

    def _start(self, wanted: Subscription) -> dict[str, str]:
        if wanted.start == "latest":
            bootstrap = get(wanted.options, BOOTSTRAP) or self.bootstrap
            return {"startingOffsets": self.folder.latest_once(bootstrap, wanted)}
        if wanted.start == "earliest" or wanted.start.startswith("{"):
            return {"startingOffsets": wanted.start}
        # As Kafka's own tools have it: a partition without a record that young begins at its end.
        return {
            "startingTimestamp": _milliseconds(wanted.start),
            "startingOffsetsByTimestampStrategy": "latest",
        }


class HistoryFeed:
    """What has come: a batch from a broker, from the first record to the last one there is now."""

    def __init__(self, spark: SparkSession, bootstrap: str) -> None:
        self.spark = spark
        self.bootstrap = bootstrap

    def records(self, wanted: Subscription) -> DataFrame:
        options = {**_options(wanted, self.bootstrap), **wanted.options}
        streaming = ("maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay")
        usable = {key: value for key, value in options.items() if key.lower() not in streaming}
        return self.spark.read.format(FORMAT).options(**usable).load()


def _options(wanted: Subscription, bootstrap: str) -> dict[str, str]:
    level = "read_committed" if wanted.is_committed else "read_uncommitted"
    return {
        "kafka.bootstrap.servers": bootstrap,
        "kafka.isolation.level": level,
        "includeHeaders": str(wanted.has_headers).lower(),
        **wanted.choice,
    }


def _milliseconds(when: str) -> str:
    from datetime import UTC, datetime

    try:
        at = datetime.fromisoformat(when)
    except ValueError:
        raise StreamsError(
            f"start={when!r} is no place to start: write earliest, latest, a time such as "
            "2026-01-31T12:00:00Z, or offsets as JSON"
        ) from None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return str(max(0, int(at.timestamp() * 1000)))  # no record has an earlier time
