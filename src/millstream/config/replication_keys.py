"""Broker keys of replication between brokers, and of moves between log folders."""

from __future__ import annotations

from millstream.config.checks import at_least, one_of
from millstream.config.keys import MAX_LONG, ConfigKey

NO_MOVES = "replicas are not moved between log folders"
NO_WINDOWS = "the rate is not measured in windows of this size"
RACK_AWARE = "RackAwareReplicaSelector"

REPLICATION_KEYS = (
    ConfigKey(
        "alter.log.dirs.replication.quota.window.num",
        "int",
        11,
        "How many samples the rate of moves between log folders is measured over.",
        at_least(1),
        idle=NO_WINDOWS,
    ),
    ConfigKey(
        "alter.log.dirs.replication.quota.window.size.seconds",
        "int",
        1,
        "The length of one sample of the rate of moves between log folders.",
        at_least(1),
        idle=NO_WINDOWS,
    ),
    ConfigKey(
        "auto.leader.rebalance.enable",
        "boolean",
        True,
        "Give leadership back to the first replica of each partition's list when it is in sync again.",
    ),
    ConfigKey(
        "follower.replication.throttled.rate",
        "long",
        MAX_LONG,
        "How many bytes a second throttled replicas read from their leaders.",
        at_least(0),
        "cluster-wide",
    ),
    ConfigKey(
        "leader.imbalance.check.interval.seconds",
        "long",
        300,
        "How often the controller looks for leaders that are not the first of their list.",
        at_least(1),
    ),
    ConfigKey(
        "leader.replication.throttled.rate",
        "long",
        MAX_LONG,
        "How many bytes a second leaders give to throttled replicas.",
        at_least(0),
        "cluster-wide",
    ),
    ConfigKey(
        "num.replica.alter.log.dirs.threads",
        "int",
        None,
        "How many threads move replicas between log folders; by default one per folder.",
        idle=NO_MOVES,
    ),
    ConfigKey(
        "num.replica.fetchers",
        "int",
        1,
        "How many connections a broker copies from each other broker with.",
        at_least(1),
        "cluster-wide",
        idle="one connection to each other broker copies everything",
    ),
    ConfigKey(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        "long",
        MAX_LONG,
        "How many bytes a second moves between log folders copy.",
        at_least(0),
        "cluster-wide",
        idle=NO_MOVES,
    ),
    ConfigKey(
        "replica.fetch.backoff.ms",
        "int",
        1000,
        "How long a follower waits after a failed fetch before it tries again.",
        at_least(0),
    ),
    ConfigKey(
        "replica.fetch.max.bytes",
        "int",
        1024 * 1024,
        "How many bytes of one partition a follower asks for at a time; a larger batch is still copied.",
        at_least(0),
    ),
    ConfigKey(
        "replica.fetch.min.bytes",
        "int",
        1,
        "How many bytes must be there before a follower's fetch is answered.",
        idle="a follower is told at once of whatever there is",
    ),
    ConfigKey(
        "replica.fetch.response.max.bytes",
        "int",
        10 * 1024 * 1024,
        "How many bytes a follower asks for at a time over all partitions.",
        at_least(0),
    ),
    ConfigKey(
        "replica.fetch.wait.max.ms",
        "int",
        500,
        "How long a follower's fetch waits for new records.",
    ),
    ConfigKey(
        "replica.high.watermark.checkpoint.interval.ms",
        "long",
        5000,
        "How often the high watermarks are saved to disk.",
    ),
    ConfigKey(
        "replica.lag.time.max.ms",
        "long",
        30_000,
        "A follower that has not caught up with the end of the log for this long leaves the in-sync"
        " replicas.",
    ),
    ConfigKey(
        "replica.selector.class",
        "string",
        None,
        "The rule by which consumers are sent to a follower near them: RackAwareReplicaSelector, or none;"
        " then they read from the leader.",
        one_of(RACK_AWARE, f"org.apache.kafka.common.replica.{RACK_AWARE}"),
    ),
    ConfigKey(
        "replica.socket.receive.buffer.bytes",
        "int",
        64 * 1024,
        "The receive buffer of a follower's connection in the operating system.",
        idle="the operating system chooses",
    ),
    ConfigKey(
        "replica.socket.timeout.ms",
        "int",
        30_000,
        "How long a follower waits for an answer beyond replica.fetch.wait.max.ms.",
    ),
    ConfigKey(
        "replication.quota.window.num",
        "int",
        11,
        "How many samples the rate of replication is measured over.",
        at_least(1),
        idle=NO_WINDOWS,
    ),
    ConfigKey(
        "replication.quota.window.size.seconds",
        "int",
        1,
        "The length of one sample of the rate of replication.",
        at_least(1),
        idle=NO_WINDOWS,
    ),
)
