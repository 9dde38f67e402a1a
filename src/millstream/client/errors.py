"""Errors that a client adds to those of the protocol, and the way from an error code to its error."""

from __future__ import annotations

from millstream.errors import NetworkException, UnknownTopicOrPartition, error_for


class Unreachable(NetworkException):
    """None of the bootstrap addresses answers."""


class NoSuchTopic(UnknownTopicOrPartition):
    """The topic does not exist: it is not just on its way, so trying again does not help."""

    retriable = False


def raise_for(code: int, message: str | None, subject: str) -> None:
    """Raise the error that `code` stands for, saying what it is about; do nothing for 0."""
    if code:
        error = error_for(code)
        raise error(f"{subject}: {message or error().message}")
