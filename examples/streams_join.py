"""A stream joined with a table, a dead-letter topic, and several outputs that one decision commits.

    millstream streams run examples/streams_join.py

Its test, which needs no broker, is examples/test_streams_join.py.
"""

from __future__ import annotations

from pyspark.sql import functions as F

from millstream.streams import App, join_table

app = App("join-example")


@app.pipeline
def ship(app: App) -> None:
    orders = app.stream("orders", value="id INT, customer STRING, cents INT", bad="orders.bad")
    customers = app.table("customers", key="customer", value="customer STRING, city STRING")
    known = join_table(orders, customers, on="customer")
    app.to("shipments", known.select("id", "city", "_key"))
    app.to("revenue", known.groupBy("city").agg(F.sum("cents").alias("cents")), key="city")


if __name__ == "__main__":
    app.run()
