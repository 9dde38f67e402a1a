"""Members that do what they should are never told that they are not known, however their steps interleave."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.coordinator.promise import Promise
from millstream.errors import IllegalGeneration, MemberIdRequired, RebalanceInProgress
from millstream.protocol.messages import JoinGroupResponse, SyncGroupResponse
from tests.coordinator.groups.host import Host

SESSION_MS = 10_000


class Consumer:
    """A consumer that joins, syncs, sends heartbeats, and joins again when it is told to."""

    def __init__(self, host: Host, group: str, instance: str | None) -> None:
        self.host = host
        self.group = group
        self.instance = instance
        self.member_id = ""
        self.generation = -1
        self.joining: Promise[JoinGroupResponse] | None = None
        self.syncing: Promise[SyncGroupResponse] | None = None
        self.assignment: bytes | None = None
        self.metadata = 0

    def step(self, wants_change: bool) -> None:
        """Do the next thing."""
        if self.joining is not None:
            if self.joining.is_done:
                answer, self.joining = self.joining.result(), None
                assert answer.error_code in (0, MemberIdRequired.code)
                self.member_id = answer.member_id
                if not answer.error_code:
                    self.sync(answer)
        elif self.syncing is not None:
            if self.syncing.is_done:
                synced, self.syncing = self.syncing.result(), None
                assert synced.error_code in (0, RebalanceInProgress.code, IllegalGeneration.code)
                self.assignment = None if synced.error_code else synced.assignment
        elif self.assignment is None or wants_change:
            self.metadata += wants_change
            self.join()
        else:
            code = self.host.heartbeat(self.group, self.member_id, self.generation, self.instance)
            assert code in (0, RebalanceInProgress.code, IllegalGeneration.code)
            if code:
                self.assignment = None

    def join(self) -> None:
        self.assignment = None
        self.joining = self.host.join(
            self.group,
            self.member_id,
            instance=self.instance,
            protocols={"range": b"%d" % self.metadata},
            session_ms=SESSION_MS,
        )

    def sync(self, answer: JoinGroupResponse) -> None:
        self.generation = answer.generation_id
        wanted = {}
        if answer.leader == answer.member_id and not answer.skip_assignment:
            wanted = {member.member_id: member.member_id.encode() for member in answer.members}
        self.syncing = self.host.sync(
            self.group, self.member_id, self.generation, wanted, instance=self.instance
        )


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.tuples(st.integers(0, 8), st.sampled_from([0, 0, 0, 1, 50]), st.integers(0, 9)), max_size=200)
)
def test_no_stray_refusals(schedule: list[tuple[int, int, int]]) -> None:
    host = Host()
    consumers = [
        Consumer(host, group, f"{group}-static" if number == 0 else None)
        for group in ("one", "two", "three")
        for number in range(3)
    ]
    for index, wait_ms, chance in schedule:
        consumers[index].step(wants_change=chance == 0)
        if wait_ms:
            host.wait(wait_ms)
    for _ in range(30):
        for consumer in consumers:
            consumer.step(wants_change=False)
        host.wait(10)
    for consumer in consumers:
        assert consumer.assignment == consumer.member_id.encode()
    for group in ("one", "two", "three"):
        assert len({each.generation for each in consumers if each.group == group}) == 1
