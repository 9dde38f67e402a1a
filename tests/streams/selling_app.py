"""An app for tests that kill it: what is sold, with the region that a table gives, row by row and in all.

python -m tests.streams.selling_app BOOTSTRAP STATE ROWS_PER_BATCH
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from millstream.streams import App, join_table
from tests.streams.counting_app import CONFIG

NAME = "selling"
ORDERS, CITIES = f"{NAME}-orders", f"{NAME}-cities"
SOLD, TOTALS = f"{NAME}-sold", f"{NAME}-totals"


def selling(bootstrap: str, state: str | Path, per_batch: str) -> App:
    app = App(NAME, bootstrap, state=state)

    @app.pipeline
    def pipeline(app: App) -> None:
        many, few = {"maxOffsetsPerTrigger": per_batch}, {"maxOffsetsPerTrigger": "5"}
        orders = app.stream(ORDERS, value="id INT, city STRING", options=many)
        cities = app.table(CITIES, key="city", value="city STRING, region STRING", options=few)
        sold = join_table(orders, cities, on="city")
        app.to(SOLD, sold.select("id", "region"), key="id")
        app.to(TOTALS, sold.groupBy("region").agg(F.count("id").alias("sold")), key="region")

    return app


def main(bootstrap: str, state: str, per_batch: str) -> None:
    builder = SparkSession.builder.master("local[2]").appName(NAME)
    for key, value in CONFIG.items():
        builder = builder.config(key, value)
    builder.getOrCreate().sparkContext.setLogLevel("ERROR")
    selling(bootstrap, state, per_batch).run(once=True, quiet=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
