"""A broker, a live stream of orders and an app on Spark that adds them up; `make demo` runs it.

Orders come from six cities, a few hundred a second. The app joins each with its city's row in a table and
sums up the sales per region in windows of five seconds, exactly once. What it writes is printed as it comes.
It ends by Ctrl-C, or a minute (MILLSTREAM_DEMO_SECONDS) after the first results.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
import threading
import time
from datetime import UTC, datetime

from pyspark.sql import functions as F
from rich.console import Console

from millstream import Consumer, Producer
from millstream.streams import App, StreamsError, join_table
from millstream.streams.running import Running, stop_signals
from millstream.testing import Broker

SECONDS = float(os.environ.get("MILLSTREAM_DEMO_SECONDS", "60"))
CITIES = {
    "Lisbon": "Europe",
    "Tallinn": "Europe",
    "Nairobi": "Africa",
    "Tunis": "Africa",
    "Osaka": "Asia",
    "Quito": "America",
}
ORDERS_PER_SECOND = 300
WINDOW = "5 seconds"


def sales(app: App) -> None:
    """The pipeline: orders with the region of their city, summed up per region and window."""
    orders = app.stream("orders", value="city STRING, cents INT")
    cities = app.table("cities", key="city", value="city STRING, region STRING")
    placed = join_table(orders, cities, on="city").withWatermark("_timestamp", "1 second")
    sums = placed.groupBy(F.window("_timestamp", WINDOW), "region").agg(
        F.count("*").alias("orders"), F.sum("cents").alias("cents")
    )
    app.to("sales", sums.selectExpr("window.start AS start", "region", "orders", "cents"), key="region")


def write_orders(bootstrap: str, stopping: threading.Event) -> None:
    """The live stream: a table of cities, then orders until told to stop."""
    dice = random.Random(7)
    with Producer(bootstrap, serializer="json") as producer:
        for city, region in CITIES.items():
            producer.send("cities", {"city": city, "region": region}, key=city.encode())
        producer.flush()
        while not stopping.wait(0.1):
            for _ in range(ORDERS_PER_SECOND // 10):
                city = dice.choice([*CITIES])
                producer.send("orders", {"city": city, "cents": dice.randint(100, 20_000)}, key=city.encode())


def print_sales(bootstrap: str, console: Console, shown: threading.Event, stopping: threading.Event) -> None:
    """Prints each finished window; any Kafka client could do this."""
    with Consumer(bootstrap, offset_reset="earliest", isolation_level="read_committed") as consumer:
        consumer.assign([("sales", 0)])
        while not stopping.is_set():
            rows = [json.loads(record.value or b"{}") for record in consumer.poll(timeout=0.2)]
            for row in sorted(rows, key=lambda row: (row["start"], row["region"])):
                start = datetime.fromisoformat(row["start"]).astimezone(UTC)
                sold = f"{row['orders']:6,} orders {row['cents'] / 100:14,.2f}"
                console.print(f"{start:%H:%M:%S}  {row['region']:8} {sold}")
                shown.set()


def main() -> None:
    console = Console(highlight=False)
    with Broker() as broker, tempfile.TemporaryDirectory(prefix="millstream-demo-") as state:
        for topic in ("orders", "cities", "sales"):
            broker.create_topic(topic, 2 if topic == "orders" else 1)
        console.print(f"A broker on {broker.bootstrap} takes some {ORDERS_PER_SECOND} orders a second.")
        console.print("Spark starts. Then the sales of each region, every 5 seconds, come here; and by")
        console.print(f"  millstream consume sales -o start -b {broker.bootstrap}")
        shown, stopping = threading.Event(), threading.Event()
        threads = [
            threading.Thread(target=write_orders, args=(broker.bootstrap, stopping)),
            threading.Thread(target=print_sales, args=(broker.bootstrap, console, shown, stopping)),
        ]
        app = App("demo", broker.bootstrap, state=state, master="local[2]")
        app.pipeline(sales)
        try:
            app.spark  # noqa: B018 - it starts, and takes Ctrl-C for itself, before we take it
            with stop_signals() as asked_to_stop, Running(app, quiet=True) as running:
                for thread in threads:
                    thread.start()
                ends_at = None
                while not asked_to_stop.is_set() and (ends_at is None or time.monotonic() < ends_at):
                    running.watch()
                    if shown.is_set() and ends_at is None:
                        ends_at = time.monotonic() + SECONDS
                    asked_to_stop.wait(0.2)
        except KeyboardInterrupt:
            pass
        except StreamsError as error:
            raise SystemExit(f"error: {error}") from None
        finally:
            stopping.set()
            for thread in threads:
                if thread.is_alive():
                    thread.join()
            app.close()
    console.print("All has stopped. Your own app is ten lines: see docs/streams.md.")


if __name__ == "__main__":
    main()
