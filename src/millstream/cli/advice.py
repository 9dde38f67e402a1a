"""What a person can do about an error."""

from __future__ import annotations

from millstream import errors
from millstream.client.errors import NoSuchTopic, Unreachable


def advice_for(error: errors.MillstreamError) -> str:
    """The error's own words, and the next step where there is an obvious one."""
    message = str(error) or type(error).__name__
    advice = next((text for kind, text in _ADVICE if isinstance(error, kind)), None)
    return message if advice is None else f"{message.rstrip('.')}. {advice}"


_ADVICE: list[tuple[type[errors.MillstreamError], str]] = [
    (
        Unreachable,
        "Is the broker running? Start one with `millstream serve`, "
        "or name another with -b HOST:PORT or MILLSTREAM_BOOTSTRAP.",
    ),
    (NoSuchTopic, "See `millstream topic list`, or create it with `millstream topic create`."),
    (errors.TopicAlreadyExists, "Use --if-not-exists to accept that."),
    (
        errors.InvalidReplicationFactor,
        "A topic has at most as many replicas as there are brokers; leave -r out for the broker's default.",
    ),
    (
        errors.MessageTooLarge,
        "Raise the topic's limit with `millstream topic alter TOPIC -c max.message.bytes=N`, "
        "or send smaller records.",
    ),
    (errors.NotEnoughReplicas, "Wait for brokers to come back, or lower min.insync.replicas."),
    (errors.RequestTimedOut, "Raise --timeout if the broker is only slow."),
    (errors.KafkaStorageError, "See the broker's log, and whether its disk is full."),
    (errors.GroupIdNotFound, "See `millstream group list`."),
    (errors.NonEmptyGroup, "Stop its consumers first."),
    (errors.GroupSubscribedToTopic, "Stop its consumers first."),
    (errors.TransactionalIdNotFound, "See `millstream txn list`."),
    (errors.TopicDeletionDisabled, "Set delete.topic.enable=true on the broker."),
]
