"""What consumers of the classic protocol tell each other through JoinGroup and SyncGroup.

The group's coordinator passes these bytes on without reading them, but admins, and groups that move to
the new protocol, do read them. On the wire the version, an i16, stands before the message.
"""

from __future__ import annotations

from millstream.protocol.schema import Message, Struct, since
from millstream.protocol.types import i32


class ConsumerProtocolSubscription(Message, versions=(0, 3)):
    """v1 adds the partitions that the member owns (KIP-429), v2 its generation (KIP-792), v3 its rack
    (KIP-881)."""

    class TopicPartition(Struct):
        topic: str
        partitions: list[i32]

    topics: list[str]
    user_data: bytes | None = None
    owned_partitions: list[TopicPartition] = since(1)
    generation_id: i32 = since(2, -1)
    rack_id: str | None = since(3)


class ConsumerProtocolAssignment(Message, versions=(0, 3)):
    """All versions are the same; they follow those of the subscription."""

    class TopicPartition(Struct):
        topic: str
        partitions: list[i32]

    assigned_partitions: list[TopicPartition]
    user_data: bytes | None = None
