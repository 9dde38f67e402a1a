"""Pipelines on Spark: topics as DataFrames, DataFrames as topics. See docs/streams.md.

Names are imported when they are first used: Spark's planner imports this package in every worker.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream.streams.app import App as App
    from millstream.streams.avro import Avro as Avro
    from millstream.streams.deduplication import deduplicate as deduplicate
    from millstream.streams.latest_by_key import latest as latest
    from millstream.streams.problems import StreamsError as StreamsError
    from millstream.streams.running import run as run
    from millstream.streams.table_join import join_tables as join_tables
    from millstream.streams.table_lookup import join_table as join_table
    from millstream.streams.values import Json as Json

_MODULES = {
    "App": "app",
    "Avro": "avro",
    "Json": "values",
    "StreamsError": "problems",
    "deduplicate": "deduplication",
    "join_table": "table_lookup",
    "join_tables": "table_join",
    "latest": "latest_by_key",
    "run": "running",
}

__all__ = [*_MODULES]


if not TYPE_CHECKING:  # a type checker is to know every name

    def __getattr__(name: str) -> object:
        module = _MODULES.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in ("pyspark", "pyarrow", "pandas"):
                raise
            from millstream.streams.problems import StreamsError

            raise StreamsError(
                f"the Streams API needs {error.name}: pip install 'millstream[streams]'"
            ) from None
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
