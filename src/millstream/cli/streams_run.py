"""`millstream streams run|reset`: apps run, or start over."""

from __future__ import annotations

import click

from millstream.cli.streams_file import file_options, load_apps, spark_options


@click.command()
@file_options
@spark_options
@click.option("--once", is_flag=True, help="End when all that is there now has been processed.")
@click.option("--every", metavar="TIME", help="How often a batch begins, such as '10 seconds'.")
@click.option("-q", "--quiet", is_flag=True, help="No progress lines.")
def run(
    file: str,
    bootstrap: str | None,
    state: str | None,
    master: str | None,
    confs: tuple[str, ...],
    has_ui: bool,
    ships: bool,
    once: bool,
    every: str | None,
    quiet: bool,
) -> None:
    """Run the apps that FILE makes, all in one Spark, until Ctrl-C.

    Each goes on where it was when it last ran. A line on stderr tells of each batch.

    \b
    Examples:
      millstream streams run app.py
      millstream streams run app.py --master 'local[4]' --once
      millstream streams run app.py --master spark://host:7077 --conf spark.executor.memory=2g
    """
    apps = load_apps(file, bootstrap, state, master=master, confs=confs, has_ui=has_ui, ships=ships)
    from millstream.streams.running import run as run_apps

    run_apps(*apps, once=once, every=every, quiet=quiet)


@click.command()
@file_options
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def reset(file: str, bootstrap: str | None, state: str | None, yes: bool) -> None:
    """Have the apps of FILE start over from the beginning when they run next.

    It forgets their checkpoints and state, the offsets of their groups, and what the sink has decided and
    left open. What they wrote stays in their topics.

    \b
    Examples:
      millstream streams reset app.py
      millstream streams reset app.py --yes && millstream streams run app.py
    """
    from millstream.streams.resetting import reset as reset_app

    for app in load_apps(file, bootstrap, state):
        if not yes:
            click.confirm(f"Forget where {app.name} is, in {app.folder.path}?", abort=True, err=True)
        for line in reset_app(app):
            click.echo(line)
