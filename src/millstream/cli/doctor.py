"""`millstream doctor`: what on this machine helps or hinders a broker, and what to do about it."""

from __future__ import annotations

import sys

import click

from millstream.cli.checks import Check, State, machine_checks
from millstream.cli.cluster_checks import broker_checks
from millstream.cli.options import bootstrap_option, json_option
from millstream.cli.output import print_json

MARKS = {State.GOOD: ("ok", "green"), State.NOTE: ("note", "yellow"), State.BAD: ("bad", "red")}


@click.command()
@click.option(
    "--data",
    type=click.Path(file_okay=False),
    default="millstream-data",
    show_default=True,
    metavar="DIR",
    help="The folder that a broker would use.",
)
@click.option(
    "--listen",
    default="localhost:9092",
    show_default=True,
    metavar="HOST:PORT",
    help="Where it would listen.",
)
@bootstrap_option
@json_option
def doctor(data: str, listen: str, bootstrap: str, as_json: bool) -> int:
    """Check this machine and, if one runs, the broker.

    The exit code is 1 if something would keep a broker from working.

    \b
    Examples:
      millstream doctor
      millstream doctor --data /var/lib/millstream --listen 0.0.0.0:9092 --json
    """
    broker = broker_checks(bootstrap)
    is_running = any(check.name == "broker" and check.state is State.GOOD for check in broker)
    checks = [*machine_checks(data, listen, broker_is_running=is_running), *broker]
    if as_json:
        print_json(
            [{"check": c.name, "state": c.state.value, "found": c.found, "advice": c.advice} for c in checks]
        )
    else:
        _print(checks)
    return 1 if any(check.state is State.BAD for check in checks) else 0


def _print(checks: list[Check]) -> None:
    width = max(len(check.name) for check in checks)
    for check in checks:
        word, colour = MARKS[check.state]
        mark = click.style(word.rjust(4), fg=colour) if sys.stdout.isatty() else word.rjust(4)
        click.echo(f"{mark}  {check.name.ljust(width)}  {check.found}")
        if check.advice:
            click.echo(f"{'':4}  {'':{width}}  -> {check.advice}")
