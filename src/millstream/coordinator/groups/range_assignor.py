"""The assignor `range`: each topic is cut into ranges of neighbouring partitions, one a subscriber.

Topics with as many partitions and the same subscribers are cut alike, so that a member gets the same
numbers of each, which is what joins need. Members stand in the order of their instance ids, then of their
member ids, so that static members keep their ranges when they come back under other member ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from millstream.coordinator.groups.consumer_member import Partitions
from millstream.coordinator.groups.subscriber import Subscriber


def assign_ranges(members: Mapping[str, Subscriber], counts: Mapping[UUID, int]) -> dict[str, Partitions]:
    """What each member is to have. The first members of a topic have one more where it does not divide."""
    assigned: dict[str, dict[UUID, frozenset[int]]] = {member_id: {} for member_id in members}
    ordered = sorted(members.items(), key=_place)
    for topic_id in sorted(counts):
        readers = [member_id for member_id, member in ordered if topic_id in member.topic_ids]
        if not readers:
            continue
        share, rest = divmod(counts[topic_id], len(readers))
        start = 0
        for i, member_id in enumerate(readers):
            end = start + share + (i < rest)
            if end > start:
                assigned[member_id][topic_id] = frozenset(range(start, end))
            start = end
    return dict(assigned)


def _place(item: tuple[str, Subscriber]) -> tuple[bool, str, str]:
    member_id, member = item
    return member.instance_id is None, member.instance_id or "", member_id
