"""The assignors by the names that clients use. They are pure functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from uuid import UUID

from millstream.coordinator.groups.consumer_member import Partitions
from millstream.coordinator.groups.range_assignor import assign_ranges
from millstream.coordinator.groups.subscriber import Subscriber
from millstream.coordinator.groups.uniform_assignor import assign_uniformly

Assignor = Callable[[Mapping[str, Subscriber], Mapping[UUID, int]], dict[str, Partitions]]
"""From subscribers by member id and numbers of partitions by topic id to what each member is to have.

Every partition of a topic goes to exactly one of its subscribers; a topic that has none stays out.
"""

ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniformly, "range": assign_ranges}
