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
    "--registry",
    "registries",
    multiple=True,
    type=click.Choice(["sqlite", "zookeeper"]),
    default=("sqlite", "zookeeper"),
    show_default=True,
)
@click.option("--keep", is_flag=True, help="Keep the folder of a run that failed.")
def main(seed: int, seeds: int, seconds: float, registries: tuple[str, ...], keep: bool) -> None:
    """Kill, stop and cut off real brokers, and check that nothing acknowledged is lost."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        sys.exit("network namespaces need root and the program `ip` (package iproute2)")
    for number in range(seed, seed + seeds):
        for registry in registries:
            folder = Path(tempfile.mkdtemp(prefix="millstream-chaos-"))
            print(f"seed {number} on {registry}, in {folder}", flush=True)
            try:
                run(folder, number, seconds, zookeeper=registry == "zookeeper")
            except BaseException:
                print(f"seed {number} on {registry} failed", flush=True)
                if not keep:
                    shutil.rmtree(folder, ignore_errors=True)
                raise
            shutil.rmtree(folder, ignore_errors=True)
    print(f"{seeds * len(registries)} passed, 0 failed")


if __name__ == "__main__":
    main()
