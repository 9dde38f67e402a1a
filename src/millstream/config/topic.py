"""The keys that a topic can set for itself: Kafka's, with Kafka's names, defaults and limits.

A topic's value is the one set on the topic, else the broker's value of the key's synonym, else the
default. Keys whose feature does not exist here are listed, as Kafka's tools expect, and say so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from millstream.config.checks import Check, ListOf, Matches, Range, Value, at_least, between, one_of
from millstream.config.keys import MAX_LONG, BadValue, ConfigKey, Kind, Synonym, by_name, nearest
from millstream.errors import InvalidConfig

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

POLICIES = ListOf(("compact", "delete"))
CODECS = one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
GZIP_LEVELS = Range(1, 9, also=-1)
LZ4_LEVELS = between(1, 17)
ZSTD_LEVELS = between(-131072, 22)
TIMESTAMP_TYPES = one_of("CreateTime", "LogAppendTime")
MIN_SEGMENT_BYTES = 1024 * 1024
THROTTLED = Matches(
    re.compile(r"\*||[0-9]+:[0-9]+(,[0-9]+:[0-9]+)*"),
    "* or a list of partition:broker pairs, such as 0:1,1:2",
)

NO_TIERS = "records stay on the brokers' own disks"


def _key(
    name: str,
    kind: Kind,
    default: Value,
    doc: str,
    check: Check | None = None,
    *synonyms: Synonym,
    idle: str = "",
) -> ConfigKey:
    return ConfigKey(name, kind, default, doc, check, "topic", synonyms, idle)


_KEYS = (
    _key(
        "cleanup.policy",
        "list",
        ("delete",),
        "What happens to old records: 'delete' drops whole segments by age or size, 'compact' keeps the last"
        " record of each key, both together do both. An empty list keeps everything.",
        POLICIES,
        Synonym("log.cleanup.policy"),
    ),
    _key(
        "compression.gzip.level",
        "int",
        -1,
        "How hard the broker tries when compression.type is gzip; -1 is the codec's own default.",
        GZIP_LEVELS,
        Synonym("compression.gzip.level"),
    ),
    _key(
        "compression.lz4.level",
        "int",
        9,
        "How hard the broker tries when compression.type is lz4.",
        LZ4_LEVELS,
        Synonym("compression.lz4.level"),
    ),
    _key(
        "compression.type",
        "string",
        "producer",
        "The codec that batches are stored with. 'producer' stores what producers send, untouched; any other"
        " value makes the broker compress again what comes with another codec.",
        CODECS,
        Synonym("compression.type"),
    ),
    _key(
        "compression.zstd.level",
        "int",
        3,
        "How hard the broker tries when compression.type is zstd.",
        ZSTD_LEVELS,
        Synonym("compression.zstd.level"),
    ),
    _key(
        "delete.retention.ms",
        "long",
        DAY_MS,
        "How long a compacted topic keeps a deletion (a record without a value) after compaction met it, so"
        " that readers who started from the beginning see it.",
        at_least(0),
        Synonym("log.cleaner.delete.retention.ms"),
    ),
    _key(
        "file.delete.delay.ms",
        "long",
        MINUTE_MS,
        "How long a file that is no longer needed stays on disk, renamed, before it is removed.",
        at_least(0),
        Synonym("log.segment.delete.delay.ms"),
    ),
    _key(
        "flush.before.ack",
        "boolean",
        False,
        "Acknowledge records only once they are flushed to the disk (fsync), many producers sharing one"
        " flush. Acknowledged records then outlive a power cut, also with a single replica. A key of"
        " Millstream's own.",
        None,
        Synonym("log.flush.before.ack"),
    ),
    _key(
        "flush.messages",
        "long",
        MAX_LONG,
        "Flush the log to the disk after this many records. By default the operating system chooses the"
        " time.",
        at_least(1),
        Synonym("log.flush.interval.messages"),
    ),
    _key(
        "flush.ms",
        "long",
        MAX_LONG,
        "Flush the log to the disk when the oldest unflushed record is this old. By default the operating"
        " system chooses the time.",
        at_least(0),
        Synonym("log.flush.interval.ms"),
        Synonym("log.flush.scheduler.interval.ms"),
    ),
    _key(
        "follower.replication.throttled.replicas",
        "list",
        (),
        "The replicas whose copying from the leader is held to the throttled rate on the follower's side, as"
        " partition:broker pairs, or * for all.",
        THROTTLED,
    ),
    _key(
        "index.interval.bytes",
        "int",
        4096,
        "How many bytes of records lie between two entries of the offset index. Fewer make reads start"
        " closer to the wanted offset and the index larger.",
        at_least(0),
        Synonym("log.index.interval.bytes"),
    ),
    _key(
        "leader.replication.throttled.replicas",
        "list",
        (),
        "The replicas whose copying is held to the throttled rate on the leader's side, as partition:broker"
        " pairs, or * for all.",
        THROTTLED,
    ),
    _key(
        "local.retention.bytes",
        "long",
        -2,
        "How many bytes of a partition stay on the broker once they are copied to remote storage; -2 takes"
        " retention.bytes.",
        at_least(-2),
        Synonym("log.local.retention.bytes"),
        idle=NO_TIERS,
    ),
    _key(
        "local.retention.ms",
        "long",
        -2,
        "How long records stay on the broker once they are copied to remote storage; -2 takes retention.ms.",
        at_least(-2),
        Synonym("log.local.retention.ms"),
        idle=NO_TIERS,
    ),
    _key(
        "max.compaction.lag.ms",
        "long",
        MAX_LONG,
        "The longest time a record of a compacted topic may stay uncompacted, whatever the dirty ratio says.",
        at_least(1),
        Synonym("log.cleaner.max.compaction.lag.ms"),
    ),
    _key(
        "max.message.bytes",
        "int",
        1048588,
        "The largest record batch that is taken, in bytes, as it arrives (after compression).",
        at_least(0),
        Synonym("message.max.bytes"),
    ),
    _key(
        "message.timestamp.after.max.ms",
        "long",
        HOUR_MS,
        "How far a record's timestamp may lie ahead of the broker's clock; a record further ahead is"
        " refused. Not looked at with LogAppendTime.",
        at_least(0),
        Synonym("log.message.timestamp.after.max.ms"),
    ),
    _key(
        "message.timestamp.before.max.ms",
        "long",
        MAX_LONG,
        "How far a record's timestamp may lie behind the broker's clock; an older record is refused. Not"
        " looked at with LogAppendTime.",
        at_least(0),
        Synonym("log.message.timestamp.before.max.ms"),
    ),
    _key(
        "message.timestamp.type",
        "string",
        "CreateTime",
        "Whose time records carry: the producer's (CreateTime), or the broker's at the moment of the append"
        " (LogAppendTime).",
        TIMESTAMP_TYPES,
        Synonym("log.message.timestamp.type"),
    ),
    _key(
        "min.cleanable.dirty.ratio",
        "double",
        0.5,
        "The share of a compacted log that must be uncompacted before it is compacted again. Lower values"
        " compact more often and keep the log smaller.",
        between(0, 1),
        Synonym("log.cleaner.min.cleanable.ratio"),
    ),
    _key(
        "min.compaction.lag.ms",
        "long",
        0,
        "The shortest time a record of a compacted topic stays uncompacted, by its timestamp, so that readers"
        " who keep up see every record.",
        at_least(0),
        Synonym("log.cleaner.min.compaction.lag.ms"),
    ),
    _key(
        "min.insync.replicas",
        "int",
        1,
        "How many replicas must be in sync for a write with acks=all to be taken; with fewer, producers get"
        " an error that they retry.",
        at_least(1),
        Synonym("min.insync.replicas"),
    ),
    _key(
        "preallocate",
        "boolean",
        False,
        "Reserve the whole size of a segment's file on the disk when the segment is created.",
        None,
        Synonym("log.preallocate"),
        idle="files grow as they are written",
    ),
    _key(
        "remote.log.copy.disable",
        "boolean",
        False,
        "Stop copying segments to remote storage and keep what was copied.",
        idle=NO_TIERS,
    ),
    _key(
        "remote.log.delete.on.disable",
        "boolean",
        False,
        "Delete what lies in remote storage when it is switched off for the topic.",
        idle=NO_TIERS,
    ),
    _key(
        "remote.storage.enable",
        "boolean",
        False,
        "Copy the topic's closed segments to remote storage. Only false is accepted.",
        idle=NO_TIERS,
    ),
    _key(
        "retention.bytes",
        "long",
        -1,
        "The size a partition may reach before its oldest segments are deleted, for topics whose"
        " cleanup.policy has 'delete'. -1 sets no limit.",
        None,
        Synonym("log.retention.bytes"),
    ),
    _key(
        "retention.ms",
        "long",
        7 * DAY_MS,
        "How long records are kept before their segments are deleted, for topics whose cleanup.policy has"
        " 'delete'. -1 keeps them without limit.",
        at_least(-1),
        Synonym("log.retention.ms"),
        Synonym("log.retention.minutes", MINUTE_MS),
        Synonym("log.retention.hours", HOUR_MS),
    ),
    _key(
        "segment.bytes",
        "int",
        1024 * 1024 * 1024,
        "The size at which a segment file is closed and the next one begun. Retention and compaction work on"
        " closed segments.",
        at_least(MIN_SEGMENT_BYTES),
        Synonym("log.segment.bytes"),
    ),
    _key(
        "segment.index.bytes",
        "int",
        10 * 1024 * 1024,
        "The largest size of a segment's offset index; a full index closes the segment.",
        at_least(4),
        Synonym("log.index.size.max.bytes"),
    ),
    _key(
        "segment.jitter.ms",
        "long",
        0,
        "Up to how much earlier than segment.ms a segment is closed, at random, so that not all partitions"
        " begin new files at once.",
        at_least(0),
        Synonym("log.roll.jitter.ms"),
        Synonym("log.roll.jitter.hours", HOUR_MS),
    ),
    _key(
        "segment.ms",
        "long",
        7 * DAY_MS,
        "The age at which a segment is closed even if it is not full, so that retention and compaction can"
        " work on it.",
        at_least(1),
        Synonym("log.roll.ms"),
        Synonym("log.roll.hours", HOUR_MS),
    ),
    _key(
        "unclean.leader.election.enable",
        "boolean",
        False,
        "Let a replica that is not in sync lead when no other is alive. Acknowledged records may be lost.",
        None,
        Synonym("unclean.leader.election.enable"),
    ),
    ConfigKey(
        "internal.segment.bytes",
        "int",
        None,
        "Takes the place of segment.bytes without its lower limit, for tests.",
        at_least(1),
        "topic",
        is_internal=True,
    ),
)

TOPIC_KEYS: Mapping[str, ConfigKey] = by_name(_KEYS)
"""Every key that a topic takes, by name."""

REMOVED: Mapping[str, str] = {
    "message.downconversion.enable": "records are always stored and sent in format v2",
    "message.format.version": "records are always stored in format v2",
    "message.timestamp.difference.max.ms": "use message.timestamp.before.max.ms and"
    " message.timestamp.after.max.ms",
}
"""Keys that Kafka had before 4.0, with what to do instead."""


def parse_topic_overrides(overrides: Mapping[str, str]) -> dict[str, Value]:
    """The typed values of what a topic sets, or InvalidConfig that names the key and what it takes."""
    values: dict[str, Value] = {}
    for name, text in overrides.items():
        key = TOPIC_KEYS.get(name)
        if key is None:
            if name in REMOVED:
                raise InvalidConfig(f"{name} was removed in Kafka 4.0: {REMOVED[name]}")
            raise InvalidConfig(f"unknown topic config {name}{nearest(name, TOPIC_KEYS)}")
        if text is None:
            raise InvalidConfig(f"{name} needs a value")
        try:
            values[name] = key.parse(text)
        except BadValue as error:
            raise InvalidConfig(str(error)) from None
    if values.get("remote.storage.enable"):
        raise InvalidConfig(f"remote.storage.enable takes false only: {NO_TIERS}")
    return values
