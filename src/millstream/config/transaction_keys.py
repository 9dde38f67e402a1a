"""Broker keys of idempotent producers and of transactions."""

from __future__ import annotations

from millstream.config.checks import at_least
from millstream.config.keys import ConfigKey

TRANSACTION_KEYS = (
    ConfigKey(
        "add.partitions.to.txn.retry.backoff.max.ms",
        "int",
        100,
        "The longest pause before a broker asks again whether a partition is part of a transaction.",
        at_least(0),
    ),
    ConfigKey(
        "add.partitions.to.txn.retry.backoff.ms",
        "int",
        20,
        "The pause before a broker asks again whether a partition is part of a transaction.",
        at_least(1),
    ),
    ConfigKey(
        "producer.id.expiration.ms",
        "int",
        86_400_000,
        "How long a partition remembers an idempotent producer that no longer writes, and with it the"
        " sequence numbers that find repeated batches; looked at every log.retention.check.interval.ms.",
        at_least(1),
        "cluster-wide",
    ),
    ConfigKey(
        "producer.purgatory.purge.interval.requests",
        "int",
        1000,
        "How often waiting Produce requests are cleaned out of memory.",
        idle="requests that wait are dropped from memory as soon as they are answered",
    ),
    ConfigKey(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        "int",
        10_000,
        "How often transactions that ran out of time are aborted.",
        at_least(1),
    ),
    ConfigKey(
        "transaction.max.timeout.ms",
        "int",
        900_000,
        "The longest time-out that a producer may ask for its transactions.",
        at_least(1),
    ),
    ConfigKey(
        "transaction.partition.verification.enable",
        "boolean",
        True,
        "Check that a partition is part of the transaction before a batch of it is written.",
        None,
        "cluster-wide",
    ),
    ConfigKey(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        "int",
        3_600_000,
        "How often transactional ids that expired are removed.",
        at_least(1),
    ),
    ConfigKey(
        "transaction.state.log.load.buffer.size",
        "int",
        5 * 1024 * 1024,
        "How many bytes are read at a time when the state of transactions is loaded.",
        at_least(1),
    ),
    ConfigKey(
        "transaction.state.log.min.isr",
        "int",
        2,
        "The min.insync.replicas of __transaction_state; at most the number of its replicas.",
        at_least(1),
    ),
    ConfigKey(
        "transaction.state.log.num.partitions",
        "int",
        50,
        "How many partitions __transaction_state is created with.",
        at_least(1),
    ),
    ConfigKey(
        "transaction.state.log.replication.factor",
        "short",
        3,
        "How many replicas __transaction_state is created with; as many as there are brokers if they are"
        " fewer.",
        at_least(1),
    ),
    ConfigKey(
        "transaction.state.log.segment.bytes",
        "int",
        100 * 1024 * 1024,
        "The segment size of __transaction_state.",
        at_least(1),
    ),
    ConfigKey(
        "transaction.two.phase.commit.enable",
        "boolean",
        False,
        "Let producers take part in transactions that another system decides.",
        idle="transactions that another system decides (KIP-939) are not served",
    ),
    ConfigKey(
        "transactional.id.expiration.ms",
        "int",
        604_800_000,
        "How long a transactional id that is not used is remembered.",
        at_least(1),
    ),
)
