"""What Spark's workers keep from task to task."""

from __future__ import annotations

import gc

from pyspark.sql.types import StringType, StructField, StructType

from millstream.streams import loaded
from millstream.streams.sink import BatchWriter, StreamWriter

OPTIONS = {"kafka.bootstrap.servers": "localhost:9092", "topic": "out"}
SCHEMA = StructType([StructField("value", StringType())])


def test_a_sink_has_its_process_keep_what_is_loaded_and_what_the_first_tasks_load() -> None:
    try:
        loaded._kept.clear()
        for _ in range(loaded.TIMES):
            gc.unfreeze()
            BatchWriter(OPTIONS, SCHEMA)
            assert gc.get_freeze_count() > 10_000, "nothing of that is looked through after each task"
        gc.unfreeze()
        StreamWriter(OPTIONS, SCHEMA)
        assert gc.get_freeze_count() == 0, "what comes with data is garbage some day"
    finally:
        gc.unfreeze()
