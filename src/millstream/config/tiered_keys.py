"""Broker keys of Kafka's remote (tiered) storage, which does not exist here: listed, without effect."""

from __future__ import annotations

from millstream.config.checks import Check, Value, at_least
from millstream.config.keys import MAX_LONG, ConfigKey, Kind, Scope
from millstream.config.topic import NO_TIERS


def _key(
    name: str, kind: Kind, default: Value, doc: str, check: Check | None = None, scope: Scope = "read-only"
) -> ConfigKey:
    return ConfigKey(name, kind, default, doc, check, scope, idle=NO_TIERS)


_METADATA = "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager"

TIERED_KEYS = (
    _key(
        "follower.fetch.last.tiered.offset.enable",
        "boolean",
        False,
        "Let an empty follower start after what is already in remote storage.",
        None,
        "cluster-wide",
    ),
    _key(
        "remote.fetch.max.wait.ms",
        "int",
        500,
        "How long a fetch waits for remote storage.",
        at_least(1),
        "cluster-wide",
    ),
    _key(
        "remote.list.offsets.request.timeout.ms",
        "long",
        30_000,
        "How long ListOffsets waits for remote storage.",
        at_least(1),
        "cluster-wide",
    ),
    _key(
        "remote.log.index.file.cache.total.size.bytes",
        "long",
        1024 * 1024 * 1024,
        "The disk space for index files of remote segments.",
        at_least(1),
        "cluster-wide",
    ),
    _key(
        "remote.log.manager.copier.thread.pool.size",
        "int",
        10,
        "How many threads copy segments to remote storage.",
        at_least(1),
        "cluster-wide",
    ),
    _key(
        "remote.log.manager.copy.max.bytes.per.second",
        "long",
        MAX_LONG,
        "How many bytes a second are copied to remote storage.",
        at_least(1),
        "cluster-wide",
    ),
    _key(
        "remote.log.manager.copy.quota.window.num",
        "int",
        11,
        "How many samples the copying is measured over.",
        at_least(1),
    ),
    _key(
        "remote.log.manager.copy.quota.window.size.seconds",
        "int",
        1,
        "The length of one sample of the copying.",
        at_least(1),
    ),
    _key(
        "remote.log.manager.expiration.thread.pool.size",
        "int",
        10,
        "How many threads delete remote segments.",
        at_least(1),
        "cluster-wide",
    ),
    _key(
        "remote.log.manager.fetch.max.bytes.per.second",
        "long",
        MAX_LONG,
        "How many bytes a second are read from remote storage.",
        at_least(1),
        "cluster-wide",
    ),
    _key(
        "remote.log.manager.fetch.quota.window.num",
        "int",
        11,
        "How many samples the reading is measured over.",
        at_least(1),
    ),
    _key(
        "remote.log.manager.fetch.quota.window.size.seconds",
        "int",
        1,
        "The length of one sample of the reading.",
        at_least(1),
    ),
    _key(
        "remote.log.manager.follower.thread.pool.size",
        "int",
        2,
        "How many threads follow remote segments on followers.",
        at_least(1),
        "cluster-wide",
    ),
    _key(
        "remote.log.manager.task.interval.ms",
        "long",
        30_000,
        "How often segments to copy are looked for.",
        at_least(1),
    ),
    _key(
        "remote.log.manager.thread.pool.size",
        "int",
        2,
        "How many threads do the rest of the work for remote storage.",
        at_least(1),
    ),
    _key(
        "remote.log.metadata.custom.metadata.max.bytes",
        "int",
        128,
        "The size of the notes that a storage plug-in may keep per segment.",
        at_least(0),
    ),
    _key(
        "remote.log.metadata.manager.class.name",
        "string",
        _METADATA,
        "The class that knows which segments are in remote storage.",
    ),
    _key("remote.log.metadata.manager.class.path", "string", None, "Where that class is loaded from."),
    _key(
        "remote.log.metadata.manager.impl.prefix",
        "string",
        "rlmm.config.",
        "The prefix of that class's own keys.",
    ),
    _key("remote.log.metadata.manager.listener.name", "string", None, "The listener that class connects to."),
    _key(
        "remote.log.reader.max.pending.tasks",
        "int",
        100,
        "How many reads of remote storage may wait.",
        at_least(1),
    ),
    _key(
        "remote.log.reader.threads",
        "int",
        10,
        "How many threads read remote storage.",
        at_least(1),
        "cluster-wide",
    ),
    _key(
        "remote.log.storage.manager.class.name",
        "string",
        None,
        "The class that reads and writes remote storage.",
    ),
    _key("remote.log.storage.manager.class.path", "string", None, "Where that class is loaded from."),
    _key(
        "remote.log.storage.manager.impl.prefix",
        "string",
        "rsm.config.",
        "The prefix of that class's own keys.",
    ),
    _key("remote.log.storage.system.enable", "boolean", False, "Switch remote storage on."),
)
