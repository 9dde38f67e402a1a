"""A group whose members say too much for one batch of its log."""

from __future__ import annotations

from millstream.protocol.messages import SyncGroupRequest
from tests.behaviour.groups.steps import describe, join, leave, sync_request
from tests.wire import Wire

UNKNOWN_SERVER_ERROR = -1


def test_an_assignment_that_cannot_be_written_down(wire: Wire, group: str) -> None:
    joined = join(wire, group)
    request = sync_request(group, joined)
    request.assignments = [
        SyncGroupRequest.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=bytes(2 << 20))
    ]
    assert wire.ask(request).error_code == UNKNOWN_SERVER_ERROR
    assert describe(wire, group).group_state != "Stable"
    again = join(wire, group, member_id=joined.member_id)
    small = wire.ask(sync_request(group, again))
    assert (small.error_code, small.assignment) == (0, b"mine")
    leave(wire, group, joined.member_id)
