"""The bytes in which consumers of the classic protocol tell their subscriptions and assignments."""

from __future__ import annotations

from struct import Struct

from millstream.errors import ProtocolError
from millstream.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)

_version_of = Struct(">h").unpack_from


def read_subscription(data: bytes) -> ConsumerProtocolSubscription:
    """A subscription; one of a newer version is read as the newest that is known, as consumers do."""
    version = _check(data)
    newest = ConsumerProtocolSubscription.versions[1]
    return ConsumerProtocolSubscription.decode(data, min(version, newest), 2)


def read_assignment(data: bytes) -> ConsumerProtocolAssignment:
    """An assignment; b"" is none at all."""
    if not data:
        return ConsumerProtocolAssignment(assigned_partitions=[])
    version = _check(data)
    newest = ConsumerProtocolAssignment.versions[1]
    return ConsumerProtocolAssignment.decode(data, min(version, newest), 2)


def _check(data: bytes) -> int:
    if len(data) < 2:
        raise ProtocolError("a subscription or an assignment without its version")
    version: int = _version_of(data)[0]
    if version < 0:
        raise ProtocolError(f"a subscription or an assignment of version {version}")
    return version
