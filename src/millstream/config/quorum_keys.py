"""Broker keys of Kafka's controller quorum (KRaft), which does not exist here: listed, without effect."""

from __future__ import annotations

from millstream.config.checks import at_least
from millstream.config.keys import ConfigKey

NO_QUORUM = "the cluster's state is kept in the registry, not in a controller quorum"

QUORUM_KEYS = (
    ConfigKey(
        "broker.heartbeat.interval.ms",
        "int",
        2000,
        "How often a broker tells the controller quorum that it lives.",
        idle=NO_QUORUM,
    ),
    ConfigKey(
        "broker.session.timeout.ms",
        "int",
        9000,
        "How long the controller quorum waits for a silent broker; registry.session.timeout.ms does this"
        " here.",
        idle=NO_QUORUM,
    ),
    ConfigKey(
        "controller.listener.names", "list", (), "The listeners of the controller quorum.", idle=NO_QUORUM
    ),
    ConfigKey(
        "controller.quorum.append.linger.ms",
        "int",
        25,
        "How long the quorum collects writes before it stores them.",
        at_least(0),
        idle=NO_QUORUM,
    ),
    ConfigKey(
        "controller.quorum.auto.join.enable",
        "boolean",
        False,
        "Let a controller join the quorum by itself.",
        idle=NO_QUORUM,
    ),
    ConfigKey(
        "controller.quorum.bootstrap.servers",
        "list",
        (),
        "Addresses through which the quorum is found.",
        idle=NO_QUORUM,
    ),
    ConfigKey(
        "controller.quorum.election.backoff.max.ms",
        "int",
        1000,
        "The longest pause between elections in the quorum.",
        at_least(0),
        idle=NO_QUORUM,
    ),
    ConfigKey(
        "controller.quorum.election.timeout.ms",
        "int",
        1000,
        "How long an election in the quorum may take.",
        at_least(0),
        idle=NO_QUORUM,
    ),
    ConfigKey(
        "controller.quorum.fetch.max.bytes",
        "int",
        1024 * 1024,
        "The most bytes one fetch within the quorum answers with.",
        at_least(1),
        idle=NO_QUORUM,
    ),
    ConfigKey(
        "controller.quorum.fetch.snapshot.max.bytes",
        "int",
        1024 * 1024,
        "The most bytes of a snapshot in one fetch within the quorum.",
        at_least(1),
        idle=NO_QUORUM,
    ),
    ConfigKey(
        "controller.quorum.fetch.timeout.ms",
        "int",
        2000,
        "How long a quorum member waits for its leader.",
        at_least(0),
        idle=NO_QUORUM,
    ),
    ConfigKey(
        "controller.quorum.request.timeout.ms",
        "int",
        2000,
        "How long a request within the quorum may take.",
        at_least(0),
        idle=NO_QUORUM,
    ),
    ConfigKey(
        "controller.quorum.retry.backoff.ms",
        "int",
        20,
        "The pause before a request within the quorum is repeated.",
        at_least(0),
        idle=NO_QUORUM,
    ),
    ConfigKey(
        "controller.quorum.voters", "list", (), "The members of the quorum, as ID@HOST:PORT.", idle=NO_QUORUM
    ),
    ConfigKey(
        "initial.broker.registration.timeout.ms",
        "int",
        60_000,
        "How long a starting broker waits to be registered by the quorum.",
        idle=NO_QUORUM,
    ),
    ConfigKey("metadata.log.dir", "string", None, "The folder of the quorum's log.", idle=NO_QUORUM),
    ConfigKey(
        "metadata.log.max.record.bytes.between.snapshots",
        "long",
        20 * 1024 * 1024,
        "How much the quorum's log grows between snapshots.",
        at_least(1),
        idle=NO_QUORUM,
    ),
    ConfigKey(
        "metadata.log.max.snapshot.interval.ms",
        "long",
        3_600_000,
        "The longest time between snapshots of the quorum's log.",
        at_least(0),
        idle=NO_QUORUM,
    ),
    ConfigKey(
        "metadata.log.segment.bytes",
        "int",
        1024 * 1024 * 1024,
        "The size of a segment of the quorum's log.",
        at_least(8 * 1024 * 1024),
        idle=NO_QUORUM,
    ),
    ConfigKey(
        "metadata.log.segment.ms",
        "long",
        604_800_000,
        "The age at which a segment of the quorum's log is closed.",
        idle=NO_QUORUM,
    ),
    ConfigKey(
        "metadata.max.idle.interval.ms",
        "int",
        500,
        "How often an idle quorum writes an empty record.",
        at_least(0),
        idle=NO_QUORUM,
    ),
    ConfigKey(
        "metadata.max.retention.bytes",
        "long",
        100 * 1024 * 1024,
        "The size of the quorum's log and snapshots before old ones are deleted.",
        idle=NO_QUORUM,
    ),
    ConfigKey(
        "metadata.max.retention.ms",
        "long",
        604_800_000,
        "The age at which the quorum's log and snapshots are deleted.",
        idle=NO_QUORUM,
    ),
)
