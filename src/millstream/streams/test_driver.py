"""TestDriver: pipes made-up rows through an app and reads what comes out, without a broker.

    with app.test() as test:
        test.pipe("orders", {"city": "Oslo", "cents": 250}, {"city": "Lima", "cents": 120})
        assert test.rows("sales") == [{"city": "Oslo", "sum(cents)": 250}, ...]

The app runs as it does on a broker: as a streaming query, with state and watermarks. Each call of `pipe` is
one micro-batch, in the order of the calls; several calls within `with test.together():` are one. So what a
watermark does depends on the rows alone. Timestamps, if none are given, go up by a second from `EPOCH`.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pyspark.errors import StreamingQueryException

from millstream.streams.columns import RAW
from millstream.streams.failures import TRIES, explained, passes
from millstream.streams.outputs import Mode
from millstream.streams.problems import StreamsError
from millstream.streams.queries import queries, records_of
from millstream.streams.state_folder import spark_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from millstream.streams.app import App
    from millstream.streams.subscription import Subscription

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Written:
    """A record that the app wrote."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes | None]

    @property
    def row(self) -> Any:
        """The value as JSON, or as text where it is none; None for a deletion."""
        if self.value is None:
            return None
        try:
            return json.loads(self.value)
        except ValueError:
            return self.value.decode(errors="replace")


class TestDriver:
    """An app that runs on rows of a test. Leaving the `with` block stops it and removes its files."""

    __test__ = False  # pytest is not to collect it

    def __init__(self, app: App) -> None:
        self.app = app
        self._folder = Path(tempfile.mkdtemp(prefix=f"millstream-test-{app.name}-"))
        self._inbox = self._folder / "inbox"
        self._inbox.mkdir()
        self._queries: list[StreamingQuery] = []
        self._out: list[Written] = []
        self._done: dict[str, int] = {}
        self._staged: list[dict[str, Any]] = []
        self._is_together = False
        self._batches = 0
        self._piped: dict[str, int] = defaultdict(int)
        self._clock = EPOCH
        self._read: dict[str, int] = defaultdict(int)
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the app and remove its files."""
        self._stop_queries()
        shutil.rmtree(self._folder, ignore_errors=True)

    # ---------------------------------------------------------------- rows in

    def pipe(
        self,
        topic: str,
        *rows: Mapping[str, Any] | str | bytes | None,
        key: str | bytes | None = None,
        at: datetime | str | None = None,
        headers: Mapping[str, bytes] | None = None,
    ) -> None:
        """Put rows into a topic: mappings as JSON, text, bytes, or None for a deletion.

        `key` is the field whose value is the record's key, where the row is a mapping that has it, and else
        the key itself. `at` is the timestamp of all these rows.
        """
        if not any(each.takes(topic) for each in self._subscriptions):
            known = ", ".join(each.label for each in self._subscriptions)
            raise StreamsError(f"the app does not read a topic {topic}; it reads {known}")
        for row in rows:
            self._staged.append(
                {
                    "key": _key(row, key),
                    "value": _value(row),
                    "topic": topic,
                    "partition": 0,
                    "offset": self._piped[topic],
                    "timestamp": self._time(at),
                    "timestampType": 0,
                    "headers": [{"key": name, "value": value} for name, value in (headers or {}).items()]
                    or None,
                }
            )
            self._piped[topic] += 1
        if not self._is_together:
            self._post()

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is piped within the block is one micro-batch."""
        self._is_together = True
        try:
            yield
            self._post()
        finally:
            self._is_together = False

    def _time(self, at: datetime | str | None) -> datetime:
        if at is None:
            at, self._clock = self._clock, self._clock + timedelta(seconds=1)
        when = datetime.fromisoformat(at) if isinstance(at, str) else at
        return when if when.tzinfo is not None else when.replace(tzinfo=UTC)

    def _post(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq
        from pyspark.sql.pandas.types import to_arrow_schema

        if not self._staged:
            return
        self._settle()  # what a watermark does must not depend on how fast batches follow each other
        table = pa.Table.from_pylist(self._staged, to_arrow_schema(RAW, timezone="UTC"))
        self._staged = []
        fresh = self._folder / "fresh.parquet"
        pq.write_table(table, fresh)
        # Files are read in the order of their times, one to a micro-batch.
        os.utime(fresh, (EPOCH.timestamp() + self._batches,) * 2)
        fresh.rename(self._inbox / f"{self._batches:06}.parquet")
        self._batches += 1

    # ---------------------------------------------------------------- rows out

    def written(self, topic: str) -> list[Written]:
        """The records that came to a topic since it was last asked about, in the order of the batches."""
        self._settle()
        found = [each for each in self._out if each.topic == topic]
        new = found[self._read[topic] :]
        self._read[topic] = len(found)
        return new

    def rows(self, topic: str) -> list[Any]:
        """The values of `written`: mappings where they are JSON, text where not, None for deletions."""
        return [each.row for each in self.written(topic)]

    @property
    def watermark(self) -> datetime | None:
        """How far event time has come, after all that was piped; None if the app has no watermark."""
        self._settle()
        for query in self._queries:
            for progress in reversed(query.recentProgress):
                if "watermark" in progress["eventTime"]:
                    return datetime.fromisoformat(progress["eventTime"]["watermark"])
        return None

    def _settle(self) -> None:
        """Wait until all that was piped has been processed, and what that closes has been closed."""
        for number, mode in enumerate(self._frames):
            with explained(self.app.folder.log):
                self._settle_one(number, mode)

    def _settle_one(self, number: int, mode: Mode) -> None:
        for tries_left in range(TRIES, -1, -1):
            try:
                self._queries[number].processAllAvailable()
            except StreamingQueryException as error:
                if not passes(error) or not tries_left:
                    raise
                self._queries[number] = self._begin(mode)
            else:
                return

    # ---------------------------------------------------------------- running

    def records(self, wanted: Subscription) -> DataFrame:
        """The rows of topics: all come from one source, so that a batch holds rows of all of them."""
        matches = (
            self._all["topic"].rlike(f"^(?:{wanted.pattern})$")
            if wanted.pattern is not None
            else self._all["topic"].isin(*wanted.topics)
        )
        return self._all.where(matches)

    def restart(self) -> None:
        """Stop the app and start it again from its checkpoint, as after a crash between two batches."""
        self._settle()
        self._stop_queries()
        self._start()

    def _start(self) -> None:
        self._all = (
            self.app.spark.readStream.schema(RAW)
            .option("maxFilesPerTrigger", "1")
            .parquet(spark_path(self._inbox))
        )
        outputs = self.app.outputs(self)
        self._subscriptions = self.app.last_read
        self._frames = {mode: records_of(those) for mode, those in queries(outputs).items()}
        self._queries = [self._begin(mode) for mode in self._frames]

    def _begin(self, mode: Mode) -> StreamingQuery:
        return (
            self._frames[mode]
            .writeStream.foreachBatch(partial(self._take, mode))
            .outputMode(mode)
            .option("checkpointLocation", spark_path(self._folder / f"checkpoint-{mode}"))
            .start()
        )

    def _take(self, mode: str, batch: DataFrame, number: int) -> None:
        if number <= self._done.get(mode, -1):
            return  # the app was stopped before Spark noted that it had this batch
        self._out += [
            Written(row["topic"], _bytes(row["key"]), _bytes(row["value"]), _headers(row["headers"]))
            for row in batch.collect()
        ]
        self._done[mode] = number

    def _stop_queries(self) -> None:
        for query in self._queries:
            query.stop()
        self._queries = []


def _value(row: Mapping[str, Any] | str | bytes | None) -> bytes | None:
    if row is None or isinstance(row, bytes):
        return row
    return row.encode() if isinstance(row, str) else json.dumps(dict(row), default=str).encode()


def _key(row: object, key: str | bytes | None) -> bytes | None:
    if isinstance(key, str) and isinstance(row, Mapping) and key in row:
        key = None if row[key] is None else str(row[key])
    return key.encode() if isinstance(key, str) else key


def _bytes(given: bytes | bytearray | None) -> bytes | None:
    return None if given is None else bytes(given)


def _headers(given: list[Any] | None) -> dict[str, bytes | None]:
    return {each["key"]: _bytes(each["value"]) for each in given or []}
