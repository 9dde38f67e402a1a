"""Outputs: frames that go to topics, as the records that they become.

Mode `append` writes a row when it is final, `update` each time it changes; an output whose mode is not given
is appended wherever Spark can tell that its rows are final.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Literal, get_args

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import BinaryType

from millstream.streams.changes import JSON
from millstream.streams.columns import DELETED, HEADERS, KEY, column
from millstream.streams.failures import explain
from millstream.streams.problems import StreamsError
from millstream.streams.values import Format, format_for, format_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Mode = Literal["append", "update"]
HEADERS_TYPE = "array<struct<key:string,value:binary>>"


@dataclass(frozen=True)
class Output:
    """A frame as it was given, and as the records it becomes."""

    topic: str
    frame: DataFrame
    records: DataFrame
    mode: Mode
    detail: str
    """What tells it from others to the same topic, as far as that can be told."""


def output(
    topic: str | Column,
    frame: DataFrame,
    *,
    key: str | Iterable[str] | Column | None,
    value: object | None,
    mode: Mode | None,
    detail: str | None = None,
) -> Output:
    """The output that `to` was asked for. `detail` None: its columns are."""
    form = format_for(frame) if value is None else format_of(value)
    records = frame.select(
        _key(frame, key).alias("key"),
        _value(frame, form).alias("value"),
        (topic if isinstance(topic, Column) else F.lit(topic)).alias("topic"),
        _headers(frame).alias("headers"),
    )
    name = topic if isinstance(topic, str) else "by column"
    mode = _mode(frame, mode, name) if frame.isStreaming else "append"
    return Output(name, frame, records, mode, ", ".join(frame.columns) if detail is None else detail)


def _key(frame: DataFrame, key: str | Iterable[str] | Column | None) -> Column:
    if isinstance(key, Column):
        return key.cast("string").cast("binary")
    if key is None:
        if KEY not in frame.columns:
            return F.lit(None).cast("binary")
        key = KEY
    columns = [key] if isinstance(key, str) else list(key)
    for name in columns:
        if name not in frame.columns:
            raise StreamsError(f"key={name}: there is no such column among {', '.join(frame.columns)}")
    if len(columns) > 1:
        return F.to_json(F.struct(*map(column, columns)), JSON).cast("binary")
    one = column(columns[0])
    if isinstance(frame.schema[columns[0]].dataType, BinaryType):
        return one
    return one.cast("string").cast("binary")


def _value(frame: DataFrame, form: Format) -> Column:
    value = form.write(frame)
    return F.when(~F.coalesce(F.col(DELETED), F.lit(False)), value) if DELETED in frame.columns else value


def _headers(frame: DataFrame) -> Column:
    if HEADERS in frame.columns:
        return F.col(HEADERS).cast(HEADERS_TYPE)
    return F.lit(None).cast(HEADERS_TYPE)


def _mode(frame: DataFrame, mode: Mode | None, topic: str) -> Mode:
    """The mode that was asked for, or else the first one that Spark can run this frame in."""
    if mode not in (None, *get_args(Mode)):
        raise StreamsError(f"mode={mode}: an output's mode is {' or '.join(get_args(Mode))}")
    reasons: list[str] = []
    wanted: Sequence[Mode] = ("append", "update") if mode is None else (mode,)
    for each in wanted:
        reason = refusal(frame, each)
        if reason is None:
            return each
        reasons.append(reason)
    raise StreamsError(f"the output to {topic} cannot run as a stream: {reasons[0]}")


def refusal(frame: DataFrame, mode: Mode) -> str | None:
    """Why Spark does not run a frame in this mode; None if it does."""
    spark: SparkSession = frame.sparkSession
    jvm: Any = spark._jvm
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    plan = frame._jdf.queryExecution().analyzed()
    try:
        checker.checkForStreaming(plan, modes.Append() if mode == "append" else modes.Update())
    except Exception as error:
        return explain(str(error))
    return None


def by_topic(outputs: Iterable[Output]) -> dict[str, DataFrame]:
    """The frames as they were given, by topic; those of one topic together, with nulls for what one lacks."""
    found: dict[str, list[DataFrame]] = {}
    for each in outputs:
        found.setdefault(each.topic, []).append(each.frame)
    together = partial(DataFrame.unionByName, allowMissingColumns=True)
    return {topic: reduce(together, frames) for topic, frames in found.items()}
