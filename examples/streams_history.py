"""One function over what has come, as a batch, and over what comes, as a stream."""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millstream import Producer
from millstream.streams import App

READING = "sensor STRING, celsius DOUBLE"


def hottest(readings: DataFrame) -> DataFrame:
    """Plain PySpark: it does not know whether its rows are all there."""
    return readings.groupBy("sensor").agg(F.max("celsius").alias("celsius"), F.count("*").alias("readings"))


def pipeline(app: App) -> None:
    app.to("hottest", hottest(app.stream("readings", value=READING)), key="sensor")


def main() -> None:
    bootstrap, state = sys.argv[1], sys.argv[2]
    with Producer(bootstrap, serializer="json") as producer:
        for number in range(1000):
            sensor = "roof" if number % 2 else "cellar"
            producer.send("readings", {"sensor": sensor, "celsius": number % 40 / 2}, key=sensor.encode())
    app = App("hottest", bootstrap, state=state)
    app.pipeline(pipeline)
    for row in app.history()["hottest"].orderBy("sensor").collect():
        print("history:", row.sensor, row.celsius, row.readings)
    app.run(once=True)  # leave `once` out, and it goes on with what comes
    again = app.spark.read.format("millstream").option("kafka.bootstrap.servers", bootstrap)
    for row in again.option("subscribe", "hottest").load().orderBy("key").collect():
        print("stream:", row.value.decode())


if __name__ == "__main__":
    main()
