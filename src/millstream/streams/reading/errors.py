"""What a query meets that only a person can put right: each is one line that says what to do."""

from __future__ import annotations

import logging

from millstream.errors import MillstreamError
from millstream.model import TopicPartition

log = logging.getLogger("millstream.streams")


class NoTopic(MillstreamError):
    """A topic that is to be read does not exist."""


class NoBroker(MillstreamError):
    """None of the brokers that were named answers."""


class NoRecords(MillstreamError):
    """Records that are there by the plan did not come in time."""


class LostRecords(MillstreamError):
    """Records that the query was to read are not there any more."""


def lost(partition: TopicPartition, first: int, end: int, why: str, is_fatal: bool) -> None:
    """Records were lost: raise LostRecords, or with failOnDataLoss=false only say so."""
    what = f"{partition}: the records at offsets {first} to {end - 1} are lost, {why}"
    report_loss(what, is_fatal)


def report_loss(what: str, is_fatal: bool) -> None:
    """Raise or log a loss of records; the way out is the same for all."""
    if is_fatal:
        raise LostRecords(
            f"{what}. To go on without them set failOnDataLoss=false; to begin anew use a new checkpoint"
        )
    log.warning("%s; going on without them, as failOnDataLoss=false asks", what)
