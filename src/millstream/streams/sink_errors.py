"""What stops a sink: one line each that says what happened and what to do."""

from __future__ import annotations

from millstream.errors import MillstreamError


class MissingTopic(MillstreamError):
    """A topic to write to does not exist, and brokers do not create it."""


class BadRow(MillstreamError):
    """A row that cannot become a record."""


class LostTransaction(MillstreamError):
    """A task's transaction was gone before the batch was decided: nothing of the batch was committed."""


class CheckpointBehind(MillstreamError):
    """The checkpoint is older than the output: it would write batches that are written already."""


class LostDecision(MillstreamError):
    """A decision that tasks went by is gone: what they left out may not be in the output."""


class WrittenTwice(MillstreamError):
    """A second write of a batch under the same name: its rows would be taken for those written before."""


class TornBatch(MillstreamError):
    """A part of a decided batch could not be committed: the output holds the rest of it."""
