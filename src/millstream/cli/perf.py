"""`millstream perf`: the table of its commands."""

from __future__ import annotations

import click

from millstream.cli.lazy import LazyGroup

COMMANDS = {
    "produce": ("millstream.cli.perf_produce:produce", "Write records as fast as they are taken."),
    "consume": ("millstream.cli.perf_consume:consume", "Read records as fast as they come."),
    "latency": ("millstream.cli.perf_latency:latency", "Measure how long a record is on its way."),
}


@click.group(cls=LazyGroup, commands_by_name=COMMANDS)
def perf() -> None:
    """Measure what a cluster does: a live line on a terminal, a summary at the end."""
