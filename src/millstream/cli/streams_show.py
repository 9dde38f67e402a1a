"""`millstream streams describe|state`: what apps do, where they stand, and what they hold."""

from __future__ import annotations

import json
from typing import Any

import click

from millstream.cli.options import json_option
from millstream.cli.output import Cell, print_json, print_table
from millstream.cli.streams_file import file_options, load_apps


@click.command()
@file_options
@json_option
def describe(file: str, bootstrap: str | None, state: str | None, as_json: bool) -> None:
    """Show what the apps of FILE read and write, and how far they have come.

    \b
    Examples:
      millstream streams describe app.py
      millstream streams describe app.py --json
    """
    described = [app.describe() for app in load_apps(file, bootstrap, state)]
    if as_json:
        print_json(described)
        return
    for number, each in enumerate(described):
        if number:
            click.echo()
        _print(each)


def _print(described: dict[str, Any]) -> None:
    click.echo(f"{described['app']}  (broker {described['bootstrap']}, state in {described['state']})")
    reads: list[list[Cell]] = [
        [each["topics"], each["start"], each["isolation"]] for each in described["reads"]
    ]
    print_table(["reads", "from", "isolation"], reads)
    writes: list[list[Cell]] = [
        [each["topic"], each["mode"], each["checkpoint"], ", ".join(each["columns"])]
        for each in described["writes"]
    ]
    print_table(["writes", "mode", "checkpoint", "columns"], writes)
    if not described["progress"]:
        click.echo("It has not run yet.")
    for each in described["progress"]:
        click.echo(f"{each['checkpoint']}: batch {each['batch']}, up to")
        rows: list[list[Cell]] = [
            [topic, int(partition), offset]
            for end in each["ends"]
            for topic, offsets in end.items()
            for partition, offset in offsets.items()
        ]
        print_table(["topic", "partition", "offset"], rows)


@click.command()
@file_options
@click.option("--operator", type=int, help="The number of the operator; without it, all are listed.")
@click.option("--variable", metavar="NAME", help="Which of the operator's states.")
@click.option("--checkpoint", metavar="NAME", help="Which query's operator, where the app has two.")
@click.option("-n", "--limit", type=int, default=20, show_default=True, help="How many keys to show.")
@json_option
def state(
    file: str,
    bootstrap: str | None,
    state: str | None,
    operator: int | None,
    variable: str | None,
    checkpoint: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """Look into the state stores of the apps of FILE, as of their last batch.

    \b
    Examples:
      millstream streams state app.py
      millstream streams state app.py --operator 0
      millstream streams state app.py --operator 1 --variable table --limit 5 --json
    """
    from millstream.streams.state_view import rows, store_of, stores

    if operator is None and (variable is not None or checkpoint is not None):
        raise click.UsageError(
            "--variable and --checkpoint choose among the states of an --operator: name it"
        )
    for app in load_apps(file, bootstrap, state):
        if operator is None:
            _list(
                app.name,
                [(each.operator, each.name, each.part, each.checkpoint.name) for each in stores(app)],
                as_json,
            )
            continue
        found = rows(app, store_of(app, operator, variable, checkpoint), limit)
        if as_json:
            print_json(found)
        else:
            columns = list(dict.fromkeys(name for each in found for name in each))
            print_table(columns, [[_short(each.get(name)) for name in columns] for each in found])


def _list(app: str, listed: list[tuple[int, str, str | None, str]], as_json: bool) -> None:
    columns = ["operator", "name", "variable", "checkpoint"]
    if as_json:
        print_json([{"app": app, **dict(zip(columns, each, strict=True))} for each in listed])
    elif listed:
        print_table(columns, listed)
    else:
        click.echo(f"{app} holds no state: it has not run, or needs none.", err=True)


def _short(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
