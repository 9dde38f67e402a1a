"""Broker keys of the network: where it listens, and the limits of connections and requests."""

from __future__ import annotations

import re

from millstream.config.checks import Matches, Range, at_least
from millstream.config.keys import MAX_INT, ConfigKey
from millstream.config.listeners import LISTENER_LIST, PROTOCOL_MAP

SHORT = (
    "controller.socket.timeout.ms and replica.socket.timeout.ms say it; what the controller must hear soon"
    " has shorter limits of its own"
)
ONE_LOOP = "a broker is one event loop; run several brokers to use more cores"

NETWORK_KEYS = (
    ConfigKey(
        "advertised.listeners",
        "list",
        None,
        "The addresses that clients are told to connect to, in the form of listeners, when they differ from"
        " it: behind a proxy, a container or another network name.",
        LISTENER_LIST,
    ),
    ConfigKey(
        "connection.failed.authentication.delay.ms",
        "int",
        100,
        "How long the answer to a failed authentication is held back.",
        at_least(0),
        idle="clients are not authenticated yet",
    ),
    ConfigKey(
        "connections.max.idle.ms",
        "long",
        600_000,
        "A connection on which nothing was asked for this long is closed. A value below 0 never closes.",
    ),
    ConfigKey(
        "early.start.listeners",
        "list",
        None,
        "Listeners that open before the broker is ready to authorise.",
        idle="all listeners open when the broker is ready",
    ),
    ConfigKey(
        "fetch.max.bytes",
        "int",
        55 * 1024 * 1024,
        "The most bytes of records that one fetch answers with, whatever the client asks for; a first batch"
        " that is larger is still returned.",
        at_least(1024),
    ),
    ConfigKey(
        "inter.broker.listener.name",
        "string",
        None,
        "The listener that brokers use among themselves; if not set, one more is opened for them, on a free"
        " port: of this machine alone (127.0.0.1, or ::1) unless the registry is ZooKeeper, else on the host"
        " of the first.",
    ),
    ConfigKey(
        "listener.security.protocol.map",
        "string",
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "Which security protocol each listener speaks, as NAME:PROTOCOL pairs divided by commas.",
        PROTOCOL_MAP,
    ),
    ConfigKey(
        "listeners",
        "list",
        ("PLAINTEXT://localhost:9092",),
        "The addresses to listen on, as NAME://HOST:PORT divided by commas. An empty host means all"
        " interfaces, port 0 a free port. Kafka can change them while a broker runs; here it must be"
        " restarted.",
        LISTENER_LIST,
    ),
    ConfigKey(
        "max.connection.creation.rate",
        "int",
        MAX_INT,
        "How many connections a second are taken in; others wait.",
        at_least(0),
        "cluster-wide",
        idle="the rate of new connections is not limited",
    ),
    ConfigKey(
        "max.connections",
        "int",
        MAX_INT,
        "How many connections the broker holds at a time, over all listeners; further ones are closed at"
        " once. listener.name.plaintext.max.connections limits those of the listener PLAINTEXT. Other brokers"
        " always find a place, if they have a listener of their own. The broker takes fewer if the process"
        " may not open as many files (ulimit -n), of which max.open.files are its logs', and up to 1024, a"
        " quarter of the others where they are few (but 48 if that is no more than half), are kept for"
        " brokers.",
        at_least(0),
        "cluster-wide",
    ),
    ConfigKey(
        "max.connections.per.ip",
        "int",
        MAX_INT,
        "How many connections of one client address the broker holds at a time, over all listeners; further"
        " ones are closed at once.",
        at_least(0),
        "cluster-wide",
    ),
    ConfigKey(
        "max.connections.per.ip.overrides",
        "string",
        "",
        "Other limits than max.connections.per.ip for single addresses, as ADDRESS:NUMBER divided by commas."
        " A host's name is looked up when it is set.",
        Matches(
            re.compile(r"(?:\S+:[0-9]+(?:,\s*\S+:[0-9]+)*)?"), "a list such as localhost:100,10.0.0.7:20"
        ),
        "cluster-wide",
    ),
    ConfigKey(
        "max.incremental.fetch.session.cache.slots",
        "int",
        1000,
        "How many fetch sessions (KIP-227) the broker remembers; a client without one sends its whole list"
        " of partitions each time.",
        at_least(0),
    ),
    ConfigKey(
        "max.request.partition.size.limit",
        "int",
        2000,
        "How many partitions one answer of DescribeTopicPartitions holds at most.",
        at_least(1),
    ),
    ConfigKey(
        "num.io.threads",
        "int",
        8,
        "How many threads work on requests.",
        at_least(1),
        "cluster-wide",
        idle=ONE_LOOP,
    ),
    ConfigKey(
        "num.network.threads",
        "int",
        3,
        "How many threads read and write connections.",
        at_least(1),
        "cluster-wide",
        idle=ONE_LOOP,
    ),
    ConfigKey(
        "queued.max.request.bytes",
        "long",
        1 << 30,
        "How many bytes of half-received requests the connections of a listener may hold together before the"
        " broker stops reading large ones, but for one at a time. While others wait, a client that leaves off"
        " in the midst of one is closed after 5 s, and one that takes 60 s for its turn. -1 sets no limit.",
    ),
    ConfigKey(
        "queued.max.requests",
        "int",
        500,
        "How many requests may wait before the broker stops reading from connections.",
        at_least(1),
        idle="requests wait in their connections, which are bounded one by one",
    ),
    ConfigKey(
        "request.timeout.ms",
        "int",
        30_000,
        "How long the broker waits for the answer to a request of its own to another broker.",
        idle=SHORT,
    ),
    ConfigKey(
        "socket.connection.setup.timeout.max.ms",
        "long",
        30_000,
        "The longest time the broker waits for a connection of its own, after repeated failures.",
        idle="the time does not grow",
    ),
    ConfigKey(
        "socket.connection.setup.timeout.ms",
        "long",
        10_000,
        "How long the broker waits for a connection of its own to another broker to be made; never longer"
        " than 3 s, after which it tries again.",
    ),
    ConfigKey(
        "socket.listen.backlog.size",
        "int",
        50,
        "How many connections the operating system holds until the broker accepts them.",
        at_least(1),
    ),
    ConfigKey(
        "socket.receive.buffer.bytes",
        "int",
        -1,
        "The size of a connection's receive buffer in the operating system; -1 leaves it to the system.",
        Range(1, also=-1),
    ),
    ConfigKey(
        "socket.request.max.bytes",
        "int",
        100 * 1024 * 1024,
        "The largest request that is read; a connection that announces a larger one is closed.",
        at_least(1),
    ),
    ConfigKey(
        "socket.send.buffer.bytes",
        "int",
        -1,
        "The size of a connection's send buffer in the operating system; -1 leaves it to the system.",
        Range(1, also=-1),
    ),
)
