"""App: topics in, PySpark between, topics out.

    from millstream.streams import App

    app = App("sales", bootstrap="localhost:9092")

    @app.pipeline
    def sales(app):
        orders = app.stream("orders", value="city STRING, cents INT")
        app.to("sales", orders.groupBy("city").sum("cents"), key="city")

    if __name__ == "__main__":
        app.run()

What is written in a function marked with `pipeline` runs over what comes (`run`), over what has come
(`history`) and over rows that a test makes up (`test`). A short script may call `stream` and `to` outside of
one; it can only be run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.streams.loading import Settings, current
from millstream.streams.options import BOOTSTRAP, get
from millstream.streams.problems import StreamsError
from millstream.streams.state_folder import StateFolder

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from millstream.streams.feeds import Feed
    from millstream.streams.outputs import Mode, Output
    from millstream.streams.subscription import Subscription, Topics
    from millstream.streams.test_driver import TestDriver

BOOTSTRAP_VARIABLE = "MILLSTREAM_BOOTSTRAP"
DEFAULT_BOOTSTRAP = "localhost:9092"

Pipeline = Callable[["App"], object]


class App:
    """A streaming app: a name, under which it goes on where it was, and what it does."""

    def __init__(
        self,
        name: str,
        bootstrap: str | None = None,
        *,
        state: str | Path | None = None,
        spark: SparkSession | None = None,
        master: str | None = None,
        conf: Mapping[str, str] | None = None,
        sink: Mapping[str, str] | None = None,
        ui: bool = False,
        ship: bool = False,
    ) -> None:
        """`state` is the folder under which it keeps where it was (`millstream-state`); `master` a Spark
        master, by default this machine; `conf` goes to Spark, `sink` are options of the sink. With `ship` the
        executors of a cluster get this package from here."""
        if not re.fullmatch(r"[A-Za-z0-9._-]+", name) or name in (".", ".."):
            raise StreamsError(f"an app's name is made of letters, digits, '.', '_' and '-', not {name!r}")
        for option in ("topic", "outputName"):
            if get(sink or {}, option) is not None:
                raise StreamsError(f"sink has an option {option}: leave it out, to() says where rows go")
        self.name = name
        self.bootstrap = bootstrap or os.environ.get(BOOTSTRAP_VARIABLE) or DEFAULT_BOOTSTRAP
        self.folder = StateFolder(state, name)
        self.last_read: list[Subscription] = []
        """What was subscribed to when `outputs` was last asked for."""
        self._subscriptions: list[Subscription] = []
        self.sink = dict(sink or {})
        self._spark = spark
        self._master = master
        self._conf = dict(conf or {})
        self._ui = ui
        self._ships = ship
        self._pipelines: list[Pipeline] = []
        self._outputs: list[Output] = []
        self._feed: Feed | None = None
        if (loading := current()) is not None:
            loading.apps.append(self)
            self._obey(loading.settings)

    def _obey(self, said: Settings) -> None:
        self.bootstrap = said.bootstrap or self.bootstrap
        if said.state is not None:
            self.folder = StateFolder(said.state, self.name)
        self._master = said.master or self._master
        self._conf |= said.conf
        self._ui = self._ui or said.has_ui
        self._ships = self._ships or said.ships

    @property
    def sink_bootstrap(self) -> str:
        """The brokers that it writes to, which the options of its sink may name."""
        return get(self.sink, BOOTSTRAP) or self.bootstrap

    @property
    def spark(self) -> SparkSession:
        """The app's own Spark session; Spark starts when it is first asked for."""
        if self._spark is None:
            from millstream.streams.session import session_for

            self._spark = session_for(
                self.name,
                master=self._master,
                conf=self._conf,
                log=self.folder.log,
                has_ui=self._ui,
                ship_from=self.folder.path if self._ships else None,
            )
        return self._spark

    def close(self) -> None:
        """Stop the Spark that the app runs in, with whatever else runs there. A program's end does it too."""
        if self._spark is not None:
            self._spark.stop()
            self._spark = None

    # ---------------------------------------------------------------- what it does

    def pipeline(self, function: Pipeline) -> Pipeline:
        """Mark a function that takes the app and says what it does."""
        self._pipelines.append(function)
        return function

    def stream(
        self,
        topics: Topics,
        value: object = "string",
        *,
        key: str = "string",
        start: str = "earliest",
        time: str | None = None,
        late: str | None = None,
        bad: str = "fail",
        headers: bool = False,
        committed: bool = True,
        options: Mapping[str, str] | None = None,
    ) -> DataFrame:
        """The records of one topic, several, or those that match a compiled pattern, as rows.

        `value` is a schema for JSON (text, StructType, dataclass, TypedDict), "string", "bytes" or an Avro.
        Columns are the value's fields, then `_key` (text, or bytes with `key="bytes"`), `_timestamp`,
        `_topic`, `_partition`, `_offset`, and with `headers=True` `_headers`.

        `start` counts when the app first runs: "earliest", "latest", a time (where no record is so young, the
        end), or offsets as JSON. With `late` ("10 minutes") rows may come that much out of the order of the
        column `time` (`_timestamp` if none is named); windows close behind it. `bad` says what becomes of a
        record that cannot be read: "fail", "drop", or the topic that takes it. `options` go to the source,
        such as maxOffsetsPerTrigger.
        """
        frame = self._rows(topics, value, key, start, bad, headers, committed, options)
        if late is None and time is None:
            return frame
        from millstream.streams.columns import TIMESTAMP
        from millstream.streams.failures import explained

        column = time or TIMESTAMP
        if column not in frame.columns:
            raise StreamsError(f"time={column}: there is no such column among {', '.join(frame.columns)}")
        with explained(self.folder.log):
            return frame.withWatermark(column, late or "0 seconds")

    def table(
        self,
        topics: Topics,
        key: str | Iterable[str],
        value: object = "string",
        *,
        start: str = "earliest",
        bad: str = "fail",
        headers: bool = False,
        committed: bool = True,
        options: Mapping[str, str] | None = None,
    ) -> DataFrame:
        """A topic as the changes of a table: of records with the same key the latest one counts.

        `key` names the columns that hold the record's key: fields of the value, or a new column. A record
        without a value deletes the row: it comes with `_deleted` and its key, which is the record's key, as
        text or in a JSON object; one without that is a bad record. Join it with `join_table` or
        `join_tables`, or see what it holds with `latest`.
        """
        from millstream.streams.changes import names
        from millstream.streams.rows import with_table_key
        from millstream.streams.values import format_of

        self.spark  # noqa: B018 - Spark reads the text of a schema
        form = format_of(value)
        of_table = names(key)
        frame = self._rows(topics, form, "string", start, bad, headers, committed, options, of_table)
        return with_table_key(frame, of_table, form.schema)

    def to(
        self,
        topic: str | Column,
        frame: DataFrame,
        *,
        key: str | Iterable[str] | Column | None = None,
        value: object | None = None,
        mode: Mode | None = None,
    ) -> None:
        """Write a frame's rows to a topic, or each to the topic that a column names.

        `key` is one column (as text), several (as a JSON object), or the record's own `_key` if there is
        one. The value is a JSON object of the columns that are not the record's own, or one text or binary
        column called `value` as it stands. `mode` "append" writes rows that are final, "update" also those
        that will be replaced; by default it is append where that is possible.
        """
        from millstream.streams.failures import explained
        from millstream.streams.outputs import output

        with explained(self.folder.log):
            self._outputs.append(output(topic, frame, key=key, value=value, mode=mode))

    def _rows(
        self,
        topics: Topics,
        value: object,
        key: str,
        start: str,
        bad: str,
        headers: bool,
        committed: bool,
        options: Mapping[str, str] | None,
        of_table: list[str] | None = None,
    ) -> DataFrame:
        """`of_table` are the key columns of a table; a stream has none."""
        from millstream.streams.failures import explained
        from millstream.streams.outputs import output
        from millstream.streams.rows import dead_letters, parsed, rows, with_keyless_deletions
        from millstream.streams.subscription import subscription
        from millstream.streams.values import format_of

        self.spark  # noqa: B018 - Spark reads the text of a schema
        form = format_of(value)
        has_topic = bad not in ("fail", "drop")
        wanted = subscription(
            topics, start, is_committed=committed, has_headers=headers or has_topic, options=options
        )
        if has_topic and wanted.takes(bad):
            raise StreamsError(f"bad={bad}: records that cannot be read would come again and again")
        self._subscriptions.append(wanted)
        with explained(self.folder.log):
            read = parsed(self._current_feed().records(wanted), form)
            if of_table is not None:
                read = with_keyless_deletions(read, of_table, form.schema)
        if has_topic:
            with explained(self.folder.log):
                letters = output(
                    bad, dead_letters(read), key=None, value="bytes", mode=None, detail=f"from {wanted.label}"
                )
            self._outputs.append(letters)
        is_table = of_table is not None
        return rows(read, form, key, fails=bad == "fail", has_headers=headers, is_table=is_table)

    def _current_feed(self) -> Feed:
        if self._feed is None:
            from millstream.streams.feeds import LiveFeed

            return LiveFeed(self.spark, self.bootstrap, self.folder)
        return self._feed

    # ---------------------------------------------------------------- what is done with it

    def outputs(self, feed: Feed | None = None) -> list[Output]:
        """What the app writes, with its records from `feed`, or else as they come from the broker."""
        if self._outputs and feed is not None:
            raise StreamsError(
                f"app {self.name} calls to() outside of a function; put what it does into one marked with "
                "@app.pipeline, so that it can run on other rows"
            )
        before, self._outputs = self._outputs, list(self._outputs)
        subscribed, self._subscriptions = self._subscriptions, list(self._subscriptions)
        self._feed = feed
        try:
            for pipeline in self._pipelines:
                pipeline(self)
            found = self._outputs
            if not found:
                raise StreamsError(f"app {self.name} has no outputs: it says to(topic, frame) nowhere")
            return found
        finally:
            self._feed = None
            self._outputs = before
            self.last_read, self._subscriptions = self._subscriptions, subscribed

    def history(self) -> dict[str, DataFrame]:
        """What the app makes of its topics from their first record to their last one now, as batch frames."""
        from millstream.streams.failures import explained
        from millstream.streams.feeds import HistoryFeed
        from millstream.streams.outputs import by_topic

        with explained(self.folder.log):
            return by_topic(self.outputs(HistoryFeed(self.spark, self.bootstrap)))

    def test(self) -> TestDriver:
        """A driver that pipes made-up rows through the app, without a broker."""
        from millstream.streams.test_driver import TestDriver

        return TestDriver(self)

    def reset(self) -> list[str]:
        """Start over from the beginning on the next run; see `millstream.streams.resetting`."""
        from millstream.streams.resetting import reset

        return reset(self)

    def describe(self) -> dict[str, Any]:
        """What the app reads and writes, and where it stands."""
        from millstream.streams.describing import describe

        return describe(self)

    def run(self, *, once: bool = False, every: str | None = None, quiet: bool = False) -> None:
        """Run until Ctrl-C, going on where the app was when it last ran under its name.

        `once` ends when all that is there now has been processed. `every` ("10 seconds") sets how often a
        batch begins; by default, when the last one is done. `quiet` leaves the progress lines out.
        """
        if current() is not None:
            return  # whoever loads the file will run it
        from millstream.streams.running import run

        try:
            run(self, once=once, every=every, quiet=quiet)
        except StreamsError as error:
            raise error.with_traceback(None) from None
