"""All keys of a broker, by name."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.config.cluster_keys import CLUSTER_KEYS
from millstream.config.group_keys import GROUP_KEYS
from millstream.config.keys import ConfigKey, by_name
from millstream.config.log_keys import LOG_KEYS
from millstream.config.network_keys import NETWORK_KEYS
from millstream.config.own_keys import OWN_KEYS
from millstream.config.quorum_keys import QUORUM_KEYS
from millstream.config.replication_keys import REPLICATION_KEYS
from millstream.config.sasl_keys import SASL_KEYS
from millstream.config.security_keys import SECURITY_KEYS
from millstream.config.share_keys import SHARE_KEYS
from millstream.config.tiered_keys import TIERED_KEYS
from millstream.config.tls_keys import TLS_KEYS
from millstream.config.transaction_keys import TRANSACTION_KEYS

GROUPS: Mapping[str, tuple[ConfigKey, ...]] = {
    "Millstream's own": OWN_KEYS,
    "network": NETWORK_KEYS,
    "logs": LOG_KEYS,
    "cluster and topics": CLUSTER_KEYS,
    "replication": REPLICATION_KEYS,
    "consumer groups": GROUP_KEYS,
    "producers and transactions": TRANSACTION_KEYS,
    "security": SECURITY_KEYS,
    "TLS": TLS_KEYS,
    "SASL": SASL_KEYS,
    "share and streams groups": SHARE_KEYS,
    "controller quorum": QUORUM_KEYS,
    "remote storage": TIERED_KEYS,
}
"""The keys by what they are about, for the page that lists them."""

BROKER_KEYS: Mapping[str, ConfigKey] = by_name(key for group in GROUPS.values() for key in group)
"""Every key that a broker takes, by name."""

_ZOOKEEPER = "set registry=zookeeper://HOST:PORT to keep the cluster's state in ZooKeeper"
_FORMAT = "records are always stored in format v2"
_LISTENERS = "use listeners and advertised.listeners"

REMOVED: Mapping[str, str] = {
    "advertised.host.name": _LISTENERS,
    "advertised.port": _LISTENERS,
    "broker.id.generation.enable": "set node.id",
    "control.plane.listener.name": "use inter.broker.listener.name",
    "controlled.shutdown.max.retries": "a broker that stops always hands over first",
    "host.name": _LISTENERS,
    "inter.broker.protocol.version": "brokers agree on versions by themselves",
    "log.message.downconversion.enable": _FORMAT,
    "log.message.format.version": _FORMAT,
    "log.message.timestamp.difference.max.ms": "use log.message.timestamp.before.max.ms and"
    " log.message.timestamp.after.max.ms",
    "offsets.commit.required.acks": "commits always wait for all in-sync replicas",
    "port": _LISTENERS,
    "reserved.broker.max.id": "set node.id",
    "zookeeper.connect": _ZOOKEEPER,
    "zookeeper.connection.timeout.ms": _ZOOKEEPER,
    "zookeeper.session.timeout.ms": "use registry.session.timeout.ms",
}
"""Keys that Kafka had before 4.0, with what to do instead."""

LISTENER_PREFIX = "listener.name."
PER_LISTENER = frozenset({"max.connections"})
"""The keys that may be given for one listener alone, and have an effect there."""


def find_key(name: str) -> ConfigKey | None:
    """The key of a name, which may be given for one listener, and for one SASL mechanism of it:
    `listener.name.LISTENER.KEY`, `listener.name.LISTENER.MECHANISM.KEY`.
    """
    key = BROKER_KEYS.get(name)
    if key is not None or not name.startswith(LISTENER_PREFIX):
        return key
    _, _, rest = name[len(LISTENER_PREFIX) :].partition(".")
    of_mechanism = rest.partition(".")[2]
    if of_mechanism.startswith("sasl."):
        return BROKER_KEYS.get(of_mechanism)
    return BROKER_KEYS.get(rest)
