"""`millstream serve`: run a broker until it is told to stop."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
from typing import TYPE_CHECKING

import click

from millstream.cli.options import key_values
from millstream.errors import MillstreamError

if TYPE_CHECKING:
    from millstream.config.broker import BrokerConfig

LOG_LEVELS = ["debug", "info", "warning", "error"]


@click.command()
@click.option("--listen", metavar="HOST:PORT", help="Where to listen; localhost:9092 unless configured.")
@click.option(
    "--data",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="The folder for records and topics; millstream-data unless configured.",
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="A Kafka .properties file.",
)
@click.option(
    "-o",
    "--option",
    "options",
    multiple=True,
    callback=key_values,
    metavar="KEY=VALUE",
    help="One configuration key by Kafka's name, such as num.partitions=4; wins over the file.",
)
@click.option(
    "--log-level",
    type=click.Choice(LOG_LEVELS),
    default="warning",
    show_default=True,
    help="What the broker writes to stderr.",
)
def serve(
    listen: str | None, data: str | None, config_file: str | None, options: dict[str, str], log_level: str
) -> int:
    """Run a broker.

    It says one line when it is ready and stops cleanly on Ctrl-C or SIGTERM.

    \b
    Examples:
      millstream serve
      millstream serve --listen 0.0.0.0:9092 --data /var/lib/millstream
      millstream serve --config server.properties -o num.partitions=4
    """
    import logging

    logging.basicConfig(
        level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    config = broker_config(listen, data, config_file, options)
    return run_broker(config)


def broker_config(
    listen: str | None, data: str | None, config_file: str | None, options: dict[str, str]
) -> BrokerConfig:
    """What the options say, over what the file says, over Kafka's defaults."""
    from millstream.config.broker import BrokerConfig

    values = dict(options)
    if listen is not None:
        values["listeners"] = f"PLAINTEXT://{_address(listen)}"
        values.setdefault("advertised.listeners", "")
    if data is not None:
        values["log.dirs"] = data
    if config_file is not None:
        return BrokerConfig.load_properties(config_file, values)
    return BrokerConfig(values)


def _address(listen: str) -> str:
    host, colon, port = listen.rpartition(":")
    if not colon:
        host, port = (listen, "9092") if not listen.isdecimal() else ("localhost", listen)
    if not port.isdecimal() or int(port) > 65535:
        raise click.UsageError(f"--listen {listen}: write HOST:PORT, such as localhost:9092")
    return f"{host}:{port}"


def run_broker(config: BrokerConfig) -> int:
    """Run a broker on an event loop of its own until a signal ends it; gives the exit code."""
    from millstream.cli.session import loop_factory

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_serve(config))


async def _serve(config: BrokerConfig) -> int:
    from millstream.broker.server import Broker
    from millstream.storage.log_dir import LogDirInUse

    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    signals = (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, stop.set)
    try:
        for folder in config.log_dirs:
            os.makedirs(folder, exist_ok=True)
        broker = Broker(config)
        await broker.start()
    except OSError as error:
        raise MillstreamError(_start_failure(error, config)) from error
    except LogDirInUse as error:
        raise MillstreamError(f"{error}, with --data DIR") from error
    try:
        addresses = ", ".join(f"{endpoint.host}:{endpoint.port}" for endpoint in broker.endpoints)
        click.echo(f"Millstream is ready on {addresses}, with its data in {', '.join(config.log_dirs)}")
        await stop.wait()
    finally:
        # From here on a second signal does what it does to any program.
        for number in signals:
            loop.remove_signal_handler(number)
        await broker.stop()
    return 0


def _start_failure(error: OSError, config: BrokerConfig) -> str:
    addresses = ", ".join(str(listener).partition("://")[2] for listener in config.listeners)
    if error.errno == errno.EADDRINUSE:
        return (
            f"{addresses} is in use by another program, perhaps another broker. "
            "Stop that one, or choose another port with --listen HOST:PORT"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{addresses} is not an address of this machine. Choose another with --listen HOST:PORT"
    if error.errno == errno.EACCES and error.filename is None:
        return f"this user may not listen on {addresses}. Choose a port above 1023 with --listen HOST:PORT"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
        return f"cannot write to {error.filename}: {error.strerror}. Choose another folder with --data DIR"
    if error.errno == errno.ENOSPC:
        folder = error.filename or ", ".join(config.log_dirs)
        return f"the disk of {folder} is full. Make room, or choose another with --data DIR"
    where = f": {error.filename}" if error.filename else ""
    return f"the broker cannot start: {error.strerror or error}{where}"
