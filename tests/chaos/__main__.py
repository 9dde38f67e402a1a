"""`python -m tests.chaos`: seeds one after the other, on SQLite and on ZooKeeper."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import click

from tests.chaos.story import run


@click.command()
@click.option("--seed", default=1, show_default=True, help="The first seed.")
@click.option("--seeds", default=1, show_default=True, help="How many.")
@click.option("--seconds", default=60.0, show_default=True, help="How long faults go on in each run.")
@click.option(
    "--on",
    "subjects",
    multiple=True,
    type=click.Choice(["sqlite", "zookeeper", "kafka"]),
    default=("sqlite", "zookeeper"),
    show_default=True,
    help="Millstream on a registry, or Apache Kafka, to see that the checks are fair.",
)
@click.option("--keep", is_flag=True, help="Keep the folder of a run that failed.")
def main(seed: int, seeds: int, seconds: float, subjects: tuple[str, ...], keep: bool) -> None:
    """Kill, stop and cut off real brokers, and check that nothing acknowledged is lost."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        sys.exit("network namespaces need root and the program `ip` (package iproute2)")
    for number in range(seed, seed + seeds):
        for subject in subjects:
            folder = Path(tempfile.mkdtemp(prefix="millstream-chaos-"))
            print(f"seed {number} on {subject}, in {folder}", flush=True)
            try:
                run(folder, number, seconds, subject)
            except BaseException:
                print(f"seed {number} on {subject} failed", flush=True)
                if not keep:
                    shutil.rmtree(folder, ignore_errors=True)
                raise
            shutil.rmtree(folder, ignore_errors=True)
    print(f"{seeds * len(subjects)} passed, 0 failed")


if __name__ == "__main__":
    main()
