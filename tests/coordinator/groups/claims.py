"""What must always hold of a group."""

from __future__ import annotations

from collections.abc import Set

from millstream.coordinator.groups.classic_group import ClassicGroup, State


def check_group(group: ClassicGroup, max_size: int) -> None:
    """Its parts agree with each other."""
    members = group.members.values()
    assert group.joined_count == sum(member.joining is not None for member in members)
    assert all(member_id == member.member_id for member_id, member in group.members.items())
    static = {member.instance_id: member.member_id for member in members if member.instance_id is not None}
    assert static == group.instances
    assert not group.pending.keys() & group.members.keys()
    assert group.unsynced <= set(group.members)
    if group.members:
        assert group.leader in group.members
    if group.state is State.EMPTY:
        assert not group.members
    if group.state in (State.STABLE, State.COMPLETING):
        assert group.members
        assert all(member.joining is None for member in members)
    if group.state is not State.COMPLETING:
        assert all(member.syncing is None for member in members)
    if group.state is not State.PREPARING:
        assert len(group.members) <= max_size


def check_timers(group: ClassicGroup, keys: Set[object]) -> None:
    """A group that is not at rest has a timer that will move it, and so has every member."""
    name = group.group_id
    if group.state is State.PREPARING:
        assert ("join", name) in keys
    if group.state is State.COMPLETING:
        assert ("sync", name) in keys
    for member in group.members.values():
        if not member.is_waiting:
            assert ("session", name, member.member_id) in keys
    for member_id in group.pending:
        assert ("session", name, member_id) in keys
