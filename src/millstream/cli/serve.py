"""`millstream serve`: run a broker until it is told to stop."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import signal
import socket
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from millstream.cli.options import key_values
from millstream.errors import MillstreamError

if TYPE_CHECKING:
    from millstream.broker.server import Broker
    from millstream.config.broker import BrokerConfig

KEPT_BYTES = 64 * 1024 * 1024
LARGE_BYTES = 32 * 1024 * 1024
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's numbers
QUIET_SECONDS = 3.0
COLLECT_EVERY = 10_000
"""Objects made between two looks of the garbage collector at the youngest ones."""

ANY_ADDRESS = ("", "0.0.0.0", "::")
LOG_LEVELS = ["debug", "info", "warning", "error"]


@click.command()
@click.option("--listen", metavar="HOST:PORT", help="Where to listen; localhost:9092 unless configured.")
@click.option(
    "--advertise",
    metavar="HOST[:PORT]",
    help="The address that clients are told, where it is not the one to listen on.",
)
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
    listen: str | None,
    advertise: str | None,
    data: str | None,
    config_file: str | None,
    options: dict[str, str],
    log_level: str,
) -> int:
    """Run a broker.

    It says one line when it is ready and stops cleanly on Ctrl-C or SIGTERM.

    \b
    Examples:
      millstream serve
      millstream serve --listen 0.0.0.0:9092 --advertise kafka.example.com --data /var/lib/millstream
      millstream serve --config server.properties -o num.partitions=4
    """
    import logging

    logging.basicConfig(
        level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    config = broker_config(listen, advertise, data, config_file, options)
    for key in config.idle_keys():
        click.echo(f"note: {key.name} has no effect here: {key.idle}", err=True)
    return run_broker(config)


def broker_config(
    listen: str | None,
    advertise: str | None,
    data: str | None,
    config_file: str | None,
    options: dict[str, str],
) -> BrokerConfig:
    """What the options say, over what the file says, over Kafka's defaults.

    A broker that listens on all addresses (0.0.0.0) cannot tell its clients to connect there: unless
    something else is said, it tells them the machine's name.
    """
    from millstream.config.broker import BrokerConfig

    values = dict(options)
    if listen is not None:
        values["listeners"] = f"PLAINTEXT://{_address(listen, '--listen')}"
        values.setdefault("advertised.listeners", "")
    if data is not None:
        values["log.dirs"] = data

    def made() -> BrokerConfig:
        if config_file is not None:
            return BrokerConfig.load_properties(config_file, values)
        return BrokerConfig(values)

    config = made()
    if advertise is not None:
        first = config.listeners[0]
        address = _address(advertise, "--advertise", default_port=first.port)
        values["advertised.listeners"] = f"{first.name}://{address}"
    elif any(listener.host in ANY_ADDRESS for listener in config.advertised_listeners):
        values["advertised.listeners"] = ",".join(
            f"{listener.name}://{_machine_name()}:{listener.port}"
            if listener.host in ANY_ADDRESS
            else str(listener)
            for listener in config.advertised_listeners
        )
    else:
        return config
    return made()


def _address(text: str, option: str, default_port: int = 9092) -> str:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = (text, str(default_port)) if not text.isdecimal() else ("localhost", text)
    if not port.isdecimal() or int(port) > 65535:
        raise click.UsageError(f"{option} {text}: write HOST:PORT, such as localhost:9092")
    return f"{host}:{port}"


def _machine_name() -> str:
    """This machine's name, if it leads to an address; else clients elsewhere cannot reach it anyway."""
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return "localhost"
    return name


def run_broker(config: BrokerConfig) -> int:
    """Run a broker on an event loop of its own until a signal ends it; gives the exit code."""
    from millstream.cli.session import loop_factory

    _keep_freed_memory()
    _open_many_files()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_serve(config))


def _keep_freed_memory() -> None:
    """Let the C library keep what a fetch's buffers free, up to KEPT_BYTES.

    Otherwise each large buffer is given back to the system, and its pages are cleared again for the
    next one, which costs more than the reading itself.
    """
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return  # not glibc
    mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
    mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)


def _open_many_files() -> None:
    """Let the process open as many files and connections as the system allows it."""
    import resource

    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed != most:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        except (OSError, ValueError):
            return  # some systems refuse what they say is allowed


async def _give_memory_back(broker: Broker) -> None:
    """Once a broker has grown quiet, what was kept for its large reads goes back to the system."""
    import ctypes

    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return  # not glibc
    read_bytes = trimmed_at = 0.0
    while True:
        await asyncio.sleep(QUIET_SECONDS)
        now_bytes = sum(counter.value for _, counter in broker.metrics.bytes_out.members())
        if now_bytes == read_bytes != trimmed_at:
            await asyncio.get_running_loop().run_in_executor(None, trim, 0)
            trimmed_at = now_bytes
        read_bytes = now_bytes


def _quiet_collector() -> None:
    """What a started broker holds stays: the garbage collector need not look at it ever again."""
    gc.freeze()
    gc.set_threshold(COLLECT_EVERY, 20, 50)
    gc.enable()


async def _serve(config: BrokerConfig) -> int:
    from millstream.broker.server import Broker
    from millstream.storage.log_dir import LogDirInUse

    gc.disable()  # until it has started
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
        _quiet_collector()
    except OSError as error:
        raise MillstreamError(_start_failure(error, config)) from error
    except LogDirInUse as error:
        raise MillstreamError(f"{error}, with --data DIR") from error
    try:
        click.echo(f"Millstream is ready on {_where(broker)}, with its data in {', '.join(config.log_dirs)}")
        trimming = loop.create_task(_give_memory_back(broker))
        await stop.wait()
        trimming.cancel()
    finally:
        # From here on a second signal does what it does to any program.
        for number in signals:
            loop.remove_signal_handler(number)
        await broker.stop()
    return 0


def _where(broker: Broker) -> str:
    """The addresses that it listens on, and those that clients are told, where they differ."""
    listening = []
    for listener in broker.config.listeners:
        at = replace(listener, port=broker.listeners[listener.name].port)
        listening.append(str(at).partition("://")[2])
    told = [f"{endpoint.host}:{endpoint.port}" for endpoint in broker.endpoints]
    text = ", ".join(listening)
    return text if told == listening else f"{text} (clients are told {', '.join(told)})"


def _start_failure(error: OSError, config: BrokerConfig) -> str:
    addresses = ", ".join(str(listener).partition("://")[2] for listener in config.listeners)
    if error.errno == errno.EADDRINUSE:
        return (
            f"{addresses} is in use by another program, perhaps another broker. "
            "Stop that one, or choose another port with --listen HOST:PORT"
        )
    if isinstance(error, socket.gaierror):
        return f"{addresses} has a name that nobody knows. Choose another with --listen HOST:PORT"
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
