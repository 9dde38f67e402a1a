"""The command line of the Spark benchmarks."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import bench.spark
from bench.spark.latency import latency
from bench.spark.memory import memory
from bench.spark.pipeline import pipeline
from bench.spark.reading import read
from bench.spark.writing import write
from bench.subjects import APACHE_KAFKA, MILLSTREAM, Subject

TABLES = {"read": read, "write": write, "pipeline": pipeline}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.spark",
        description=bench.spark.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=[*TABLES, "latency", "memory"])
    parser.add_argument("--broker", choices=[MILLSTREAM, APACHE_KAFKA], default=MILLSTREAM)
    parser.add_argument("--rows", type=int, default=4_000_000, help="of 100 B; of larger ones a quarter")
    parser.add_argument("--records", type=int, default=200, help="of a round of latency")
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        broker = Subject(arguments.broker, arguments.broker, folder).make()
        broker.start()
        try:
            if arguments.what == "memory":
                memory(broker, folder, arguments.rows)
            elif arguments.what == "latency":
                latency(broker, folder, arguments.records, arguments.rounds)
            else:
                table = TABLES[arguments.what]
                table(broker, folder, arguments.rows, arguments.sizes, arguments.rounds)
        finally:
            broker.stop()
    print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
