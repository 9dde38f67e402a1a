"""Who commits for a group, so that a member that was replaced is refused (KIP-447)."""

from __future__ import annotations

from typing import NamedTuple


class GroupMetadata(NamedTuple):
    """A consumer as its group knows it; without a member, commits are not checked."""

    group: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
