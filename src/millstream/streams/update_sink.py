"""The sink of a query of which rows replace earlier ones: docs/decisions/009-changing-rows-by-function.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from millstream.streams.feeds import FORMAT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OUTPUT = "update"
"""The name of the only write of each batch, by which the sink recognises one that comes again."""


class MicroBatches:
    """What Spark calls with each micro-batch: it writes it once, under one decision."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = {**options, "outputName": OUTPUT}

    def __call__(self, batch: DataFrame, number: int) -> None:
        batch.write.format(FORMAT).options(**self._options).mode("append").save()


def sink_query(query: str, mode: str) -> str:
    """What the sink calls the query with this id."""
    return query if mode == "append" else f"{query}-{OUTPUT}"
