"""Broker keys that Kafka does not have."""

from __future__ import annotations

import re

from millstream.config.checks import Matches, at_least
from millstream.config.keys import ConfigKey

OWN_KEYS = (
    ConfigKey(
        "batch.check.threads",
        "int",
        4,
        "How many threads check large compressed batches of producers.",
        at_least(1),
    ),
    ConfigKey(
        "fetch.local.bytes",
        "int",
        1_000_000,
        "How many bytes of records an answer to a consumer on the same machine holds before the partitions"
        " after them wait for the next one: answers are faster there while they fit the processor's cache. A"
        " partition still gives what was asked for, and a fetch what it said it wants at least. It is for up"
        " to 64 partitions; where a fetch names more, an answer holds more in proportion.",
        at_least(1024),
    ),
    ConfigKey(
        "log.dir.flush.threads",
        "int",
        8,
        "How many threads of each log folder wait for its disk to make records durable.",
        at_least(1),
    ),
    ConfigKey(
        "log.dir.read.threads",
        "int",
        8,
        "How many threads of each log folder read what is not in memory.",
        at_least(1),
    ),
    ConfigKey(
        "lost.log.dirs",
        "list",
        (),
        "Directory ids of log folders that are gone for good; meta.properties has them. Partitions that were"
        " only there start empty, while those of a folder that is just not there stay offline.",
    ),
    ConfigKey(
        "max.decompressed.bytes",
        "int",
        64 * 1024 * 1024,
        "The most bytes that the records of one compressed batch may unfold to; a batch that holds more is"
        " refused as an invalid record.",
        at_least(1024),
        "cluster-wide",
    ),
    ConfigKey(
        "max.open.files",
        "int",
        4096,
        "How many segment and index files are held open at a time; those not used for longest are closed"
        " first. The broker takes no more than a quarter of what the process may open (ulimit -n).",
        at_least(16),
    ),
    ConfigKey(
        "max.unsent.bytes",
        "long",
        512 * 1024 * 1024,
        "How many bytes of answers may wait in memory for slow readers, over all connections; beyond that a"
        " fetch answers with one batch at a time, and who asks for another answer of more than 1 MB is"
        " disconnected; beyond twice that a fetch answers without records, and slow readers are disconnected"
        " until the limit holds again, first those who read nothing.",
        at_least(1024 * 1024),
        "cluster-wide",
    ),
    ConfigKey(
        "metrics.listener",
        "string",
        "",
        "The HOST:PORT on which /metrics answers Prometheus over HTTP; empty serves no metrics.",
        Matches(re.compile(r"|(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]*):[0-9]{1,5}"), "HOST:PORT, or nothing"),
    ),
    ConfigKey(
        "min.incremental.fetch.session.eviction.ms",
        "long",
        120_000,
        "How long a fetch session must have been idle before another client may take its place in a full"
        " cache.",
        at_least(0),
    ),
    ConfigKey(
        "registry",
        "string",
        "sqlite",
        "Where the cluster's topics, configurations and members are kept: 'sqlite' in a file beside the"
        " logs (in the first log folder, when it is made), shared by the brokers of one machine;"
        " 'sqlite:FOLDER' elsewhere, such as on a disk that is mirrored; 'memory' for tests;"
        " 'zookeeper://HOST:PORT,.../PATH' for several machines. While its disk has failed no topic is made"
        " or changed, and without it no broker starts.",
        Matches(
            re.compile(r"memory|sqlite|sqlite:.+|zookeeper://[^/\s]+(/\S*)?"),
            "sqlite, sqlite:FOLDER, memory, or zookeeper://HOST:PORT",
        ),
    ),
    ConfigKey(
        "registry.session.timeout.ms",
        "int",
        6000,
        "How long a broker may be silent (stopped, cut off) before the others take over what it led. A"
        " broker whose process ended is noticed at once on one machine.",
        at_least(100),
    ),
)
