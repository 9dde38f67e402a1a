"""The `millstream` command: the table of its commands, and how errors leave it.

Exit codes: 0 done, 1 failed, 2 called in a way that makes no sense. An error is one sentence on
stderr that says what to do; with `--json` it is an object on stderr.
"""

from __future__ import annotations

import sys
from typing import Any

import click

from millstream.cli.lazy import LazyGroup

COMMANDS = {
    "serve": ("millstream.cli.serve:serve", "Run a broker."),
    "topic": ("millstream.cli.topic:topic", "Create, list, describe, alter and delete topics."),
    "produce": ("millstream.cli.produce:produce", "Write records from standard input or files."),
    "consume": (
        "millstream.cli.consume:consume",
        "Read records from any offset or time, or follow new ones.",
    ),
    "offsets": ("millstream.cli.offsets:offsets", "Show the offsets of topics, also at a time."),
    "group": ("millstream.cli.group:group", "List, describe, move and delete groups of consumers."),
    "txn": ("millstream.cli.txn:txn", "List, describe and abort transactions."),
    "cluster": ("millstream.cli.cluster:cluster", "Show the brokers, and what the cluster lacks."),
    "reassign": ("millstream.cli.reassign:reassign", "Move partitions between brokers, evenly."),
    "elect": ("millstream.cli.elect:elect", "Have partitions led by their preferred replica."),
    "perf": ("millstream.cli.perf:perf", "Measure how fast records are written and read."),
    "streams": ("millstream.cli.streams:streams", "Run apps of the Streams API on Spark."),
    "log": ("millstream.cli.log:log", "Look into a broker's files without the broker."),
    "doctor": ("millstream.cli.doctor:doctor", "Check this machine and, if there is one, the broker."),
}


def _print_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from millstream.client.connection import SOFTWARE_VERSION

        click.echo(f"millstream {SOFTWARE_VERSION}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    commands_by_name=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version.",
)
def millstream() -> None:
    """A distributed streaming platform that speaks the Kafka protocol.

    \b
    Start here:
      millstream serve                         a broker on localhost:9092
      millstream topic create events -p 4
      echo hello | millstream produce events
      millstream consume events -o start
    """


def main(arguments: list[str] | None = None) -> None:
    """Run the command and leave with its exit code."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: list[str]) -> int:
    """Run the command; gives the exit code and never raises."""
    from millstream.errors import MillstreamError

    try:
        result: Any = millstream.main(arguments, prog_name="millstream", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as error:
        return error.exit_code
    except SystemExit as error:  # click's shell completion, and what reads our output having left
        return error.code if isinstance(error.code, int) else 1
    except (click.Abort, KeyboardInterrupt):
        return 130
    except click.UsageError as error:
        if "--json" in arguments:
            _failed(error.format_message(), "UsageError", arguments)
        else:
            error.show()
        return 2
    except click.ClickException as error:
        return _failed(error.format_message(), type(error).__name__, arguments)
    except MillstreamError as error:
        from millstream.cli.advice import advice_for

        return _failed(advice_for(error), type(error).__name__, arguments)
    except OSError as error:
        return _failed(
            f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}",
            type(error).__name__,
            arguments,
        )
    return result if isinstance(result, int) else 0


def _failed(message: str, kind: str, arguments: list[str]) -> int:
    if "--json" in arguments:
        import json

        click.echo(json.dumps({"error": kind, "message": message}), err=True)
    else:
        click.echo(f"{click.style('error:', fg='red', bold=True)} {message}", err=True)
    return 1


if __name__ == "__main__":
    main()
