"""Several brokers of one machine: what `serve --brokers N` gives each of them.

In DIR lie the registry that they share (unless another place is named) and a folder `broker-ID` each, with
the broker's records and, while it runs, the number of its process in `broker-ID/pid`. The first has the
number `node.id` and the port that was asked for; each of the others the next number and the next port.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from millstream.errors import MillstreamError

if TYPE_CHECKING:
    from millstream.config.broker import BrokerConfig
    from millstream.config.listeners import Listener

PID_FILE = "pid"
META_FILE = "meta.properties"


def broker_ids(config: BrokerConfig, count: int) -> range:
    return range(config.node_id, config.node_id + count)


def layout(config: BrokerConfig, count: int, broker_id: int) -> dict[str, str]:
    """The keys of one broker of `count` that differ from what is configured for all.

    Internal topics are replicated by the number of brokers there are to be, not by those alive when
    somebody first asks for one: min(3, N) times, and with N of 3 or more, two must have a record.
    """
    step = broker_id - config.node_id
    values = {
        "node.id": str(broker_id),
        "listeners": ",".join(_shifted(config.listeners, step)),
        "advertised.listeners": ",".join(_shifted(config.advertised_listeners, step)),
        "log.dirs": ",".join(os.path.join(folder, f"broker-{broker_id}") for folder in config.log_dirs),
        "metrics.listener": _shifted_address(config["metrics.listener"], step),
    }
    if config["registry"] == "sqlite":  # beside the logs of each: they would be so many clusters
        values["registry"] = f"sqlite:{config.log_dirs[0]}"
    given = config.layers[-1].texts
    factor = str(min(3, count))
    defaults = {
        "offsets.topic.replication.factor": factor,
        "transaction.state.log.replication.factor": factor,
        "transaction.state.log.min.isr": "2" if count >= 3 else "1",
    }
    return values | {key: value for key, value in defaults.items() if key not in given}


def check_registry(config: BrokerConfig, count: int) -> None:
    """Refuse a registry that processes cannot share."""
    if config["registry"] == "memory" and count > 1:
        raise MillstreamError(
            f"registry=memory is one process's own: {count} brokers need one that they share,"
            " such as sqlite, which is there if nothing is said"
        )


def check_folders(config: BrokerConfig) -> None:
    """Refuse a folder that holds the records of a broker alone."""
    for folder in config.log_dirs:
        if os.path.exists(os.path.join(folder, META_FILE)):
            raise MillstreamError(
                f"{folder} holds the records of a single broker, started without --brokers. "
                "Choose another folder with --data DIR"
            )


def _shifted(listeners: list[Listener], step: int) -> Iterator[str]:
    for listener in listeners:
        yield str(replace(listener, port=listener.port + step) if listener.port else listener)


def _shifted_address(address: str, step: int) -> str:
    host, colon, port = address.rpartition(":")
    return f"{host}:{int(port) + step}" if colon and int(port) else address
