"""A stateful app for tests that kill it: counts keys and writes all counts with each batch, to the end.

python -m tests.streams.counting_app MASTER BOOTSTRAP FROM TO CHECKPOINT OFFSETS_PER_BATCH
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import count, lit

from millstream.streams import sink_failpoints

CONFIG = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "600m",
    "spark.executor.memory": "512m",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.quantile": "0.5",
    "spark.task.maxFailures": "4",
}


def main(master: str, bootstrap: str, source: str, target: str, checkpoint: str, per_batch: str) -> None:
    builder = SparkSession.builder.master(master).appName("counting")
    for key, value in CONFIG.items():
        builder = builder.config(key, value)
    for name in (sink_failpoints.FOLDER, sink_failpoints.WITHOUT_DECISION):
        builder = builder.config(f"spark.executorEnv.{name}", os.environ.get(name, ""))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    records = (
        spark.readStream.format("millstream")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", per_batch)
        .load()
    )
    counts = records.selectExpr("CAST(key AS STRING) AS key").groupBy("key").agg(count(lit(1)).alias("value"))
    writer = counts.selectExpr("key", "CAST(value AS STRING) AS value").writeStream.outputMode("complete")
    options = {"kafka.bootstrap.servers": bootstrap, "topic": target}
    writer = writer.format("millstream").options(**options)
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
