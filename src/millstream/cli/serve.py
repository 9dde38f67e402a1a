"""`millstream serve`: run a broker until it is told to stop."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from millstream.cli.options import key_values
from millstream.errors import MillstreamError

if TYPE_CHECKING:
    from millstream.config.broker import BrokerConfig

ANY_ADDRESS = ("", "0.0.0.0", "::")
LOG_LEVELS = ["debug", "info", "warning", "error"]
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


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
    "--metrics", metavar="HOST:PORT", help="Serve metrics to Prometheus there, over HTTP at /metrics."
)
@click.option("--registry", metavar="URL", help="sqlite, sqlite:FOLDER or zookeeper://HOST1,HOST2/PATH.")
@click.option(
    "--brokers",
    type=click.IntRange(1, 1000),
    metavar="N",
    help="A cluster of N processes on this machine, on PORT, PORT+1, ..., with their data in DIR/broker-ID.",
)
@click.option(
    "--id",
    "broker_id",
    type=int,
    metavar="ID",
    help="With --brokers, only the broker of this number: the others run, or run elsewhere.",
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
    metrics: str | None,
    registry: str | None,
    brokers: int | None,
    broker_id: int | None,
    log_level: str,
) -> int:
    """Run a broker, or several.

    It says one line when it is ready and stops cleanly on Ctrl-C or SIGTERM.

    \b
    Examples:
      millstream serve
      millstream serve --listen 0.0.0.0:9092 --advertise kafka.example.com --data /var/lib/millstream
      millstream serve --config server.properties -o num.partitions=4
      millstream serve --brokers 3
      millstream serve --metrics localhost:9404
      millstream serve --registry zookeeper://zk1,zk2,zk3/millstream -o node.id=2
    """
    import logging

    logging.basicConfig(level=log_level.upper(), format=LOG_FORMAT, stream=sys.stderr)
    if metrics is not None:
        options = options | {"metrics.listener": metrics}
    if registry is not None:
        options = options | {"registry": registry}
    config = broker_config(listen, advertise, data, config_file, options)
    for key in config.idle_keys():
        click.echo(f"note: {key.name} has no effect here: {key.idle}", err=True)
    if brokers is not None:
        return _serve_cluster(config, config_file, options, brokers, broker_id)
    if broker_id is not None:
        raise click.UsageError("--id goes with --brokers; a broker alone has its number in -o node.id=ID")
    from millstream.cli.broker_process import run_broker

    return run_broker(config)


def _serve_cluster(
    config: BrokerConfig, config_file: str | None, options: dict[str, str], count: int, broker_id: int | None
) -> int:
    from millstream.cli.broker_process import run_broker
    from millstream.cli.cluster_layout import broker_ids, check_folders, check_registry, layout
    from millstream.cli.serve_many import serve_many

    check_folders(config)
    check_registry(config, count)
    ids = broker_ids(config, count)
    if broker_id is not None and broker_id not in ids:
        raise click.UsageError(f"--id {broker_id} is none of the brokers {ids[0]} to {ids[-1]}")
    configs = {
        number: configured(config_file, {**options, **layout(config, count, number)}) for number in ids
    }
    if broker_id is not None:
        _sign_logs(broker_id)
        return run_broker(configs[broker_id], has_pid=True)
    return serve_many(list(configs.values()), _run_member, ", ".join(config.log_dirs))


def _run_member(config: BrokerConfig, ready: Callable[[str], None]) -> int:
    """Run a broker of several, in a process of its own; what it cannot do is said here."""
    from millstream.cli.broker_process import run_broker

    _sign_logs(config.node_id)
    try:
        return run_broker(config, ready, has_pid=True)
    except MillstreamError as error:
        click.echo(f"{click.style('error:', fg='red', bold=True)} broker {config.node_id}: {error}", err=True)
        return 1


def _sign_logs(broker_id: int) -> None:
    """Have each line that this process logs say which of several brokers wrote it."""
    import logging

    signed = logging.Formatter(LOG_FORMAT.replace("%(levelname)s", f"broker {broker_id} %(levelname)s"))
    for handler in logging.getLogger().handlers:
        handler.setFormatter(signed)


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
    values = dict(options)
    if listen is not None:
        values["listeners"] = f"PLAINTEXT://{_address(listen, '--listen')}"
        values.setdefault("advertised.listeners", "")
    if data is not None:
        values["log.dirs"] = data

    config = configured(config_file, values)
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
    return configured(config_file, values)


def configured(config_file: str | None, values: dict[str, str]) -> BrokerConfig:
    """What the file says, and over it these values."""
    from millstream.config.broker import BrokerConfig

    if config_file is not None:
        return BrokerConfig.load_properties(config_file, values)
    return BrokerConfig(values)


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
