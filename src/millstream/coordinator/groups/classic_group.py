"""A group of the classic protocol: who is in it, and how far its rebalance is.

A rebalance has two phases. While *preparing*, members join and wait; when all known ones have (or the
time is up) a new generation begins and all are answered, the leader with the list of members. While
*completing*, members sync and wait for the assignment, which the leader's sync brings; it is written to
the log, and the group is *stable*.

What survives is the last state written: `written`, an entry's value or None. Only `replay` sets it.
Everything else is made from it when the log has been loaded and then follows the requests; a generation
whose assignment was not written before the coordinator moved does not come back, and its members join
again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import Enum

from millstream.coordinator.entry_format import read_value
from millstream.coordinator.group_entries import GroupMetadataValue
from millstream.coordinator.groups.member import Member, Protocols
from millstream.coordinator.groups.subscription import subscribed_topics
from millstream.coordinator.promise import Promise
from millstream.errors import FencedInstanceId, UnknownMemberId
from millstream.protocol.messages import JoinGroupResponse, SyncGroupResponse

CONSUMER = "consumer"
"""The protocol type of consumers, the only one whose bytes are looked into."""


class State(Enum):
    """The states as clients are told them."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class ClassicGroup:
    """One group. A group that only commits offsets has no members and no protocol type: it is simple."""

    kind = "classic"

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.written: bytes | None = None
        self.state = State.EMPTY
        self.began_empty = True
        """Whether the rebalance under way is that of a group that had no members."""
        self.state_since_ms = -1
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.generation = 0
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.instances: dict[str, str] = {}
        """The member ids of static members, by instance id."""
        self.pending: dict[str, None] = {}
        """Member ids that were given out and not yet used to join (KIP-394), the oldest first."""
        self.unsynced: set[str] = set()
        """Members of this generation that have not asked for their assignment yet."""
        self.has_newcomers = False
        """Whether somebody joined since the initial delay was last looked at."""
        self.has_lost_members = False
        """Whether somebody of this generation has gone."""
        self.topics: frozenset[str] | None = None
        """What the members are subscribed to, where that is known."""
        self._speakers: Counter[str] = Counter()
        self._joined = 0

    # What it is

    @property
    def is_empty(self) -> bool:
        return self.state is State.EMPTY

    @property
    def is_consumer(self) -> bool:
        return self.protocol_type == CONSUMER

    @property
    def have_all_joined(self) -> bool:
        return self._joined == len(self.members) and not self.pending

    @property
    def joined_count(self) -> int:
        return self._joined

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest that any member asked for."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def reads(self, topic: str) -> bool:
        """Whether members are subscribed to a topic, as far as that is known."""
        return self.is_consumer if self.topics is None else topic in self.topics

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether a member that speaks these protocols could join."""
        if self.is_empty:
            return bool(protocol_type) and any(True for _ in names)
        if protocol_type != self.protocol_type:
            return False
        count = len(self.members)
        return any(self._speakers[name] == count for name in names)

    def check_member(self, member_id: str, instance_id: str | None) -> Member:
        """The member, or why the request is not from one: unknown, or fenced by a newer instance."""
        if instance_id is not None:
            current = self.instances.get(instance_id)
            if current is None:
                raise UnknownMemberId
            if current != member_id:
                raise FencedInstanceId
        member = self.members.get(member_id)
        if member is None:
            raise UnknownMemberId
        return member

    # Who is in it

    def add(self, member: Member, protocol_type: str) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.instances[member.instance_id] = member.member_id
        self._speakers.update(name for name, _ in member.protocols)
        self.pending.pop(member.member_id, None)

    def update(self, member: Member, protocols: Protocols) -> None:
        """Take over what a member says when it joins again."""
        self._speakers.subtract(name for name, _ in member.protocols)
        member.protocols = protocols
        self._speakers.update(name for name, _ in protocols)

    def remove(self, member_id: str) -> Member | None:
        """Let a member go; whatever it waits for tells it that it is not known."""
        self.pending.pop(member_id, None)
        self.unsynced.discard(member_id)
        member = self.members.pop(member_id, None)
        if member is None:
            return None
        self.has_lost_members = True
        self._speakers.subtract(name for name, _ in member.protocols)
        if member.instance_id is not None and self.instances.get(member.instance_id) == member_id:
            del self.instances[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.refuse(member, UnknownMemberId.code)
        return member

    def replace(self, member: Member, member_id: str) -> None:
        """A new client has taken over a static member: it goes on under a new member id (KIP-345)."""
        self.refuse(member, FencedInstanceId.code)
        del self.members[member.member_id]
        if self.leader == member.member_id:
            self.leader = member_id
        self.unsynced.discard(member.member_id)
        member.member_id = member_id
        member.watched_until = None
        self.members[member_id] = member
        assert member.instance_id is not None
        self.instances[member.instance_id] = member_id

    # Who waits

    def wait_to_join(self, member: Member) -> Promise[JoinGroupResponse]:
        """What a member that has joined waits for; the same if it asks twice."""
        if member.joining is None:
            member.joining = Promise()
            self._joined += 1
        return member.joining

    def answer_join(self, member: Member, response: JoinGroupResponse) -> bool:
        """Answer a member that waits in the first phase; False if it does not."""
        promise, member.joining = member.joining, None
        if promise is None:
            return False
        self._joined -= 1
        promise.keep(response)
        return True

    def answer_sync(self, member: Member, error_code: int = 0) -> bool:
        """Answer a member that waits for its assignment; False if it does not."""
        promise, member.syncing = member.syncing, None
        if promise is None:
            return False
        promise.keep(self.sync_response(member) if not error_code else _sync_error(error_code))
        return True

    def refuse(self, member: Member, error_code: int, join_error_code: int | None = None) -> None:
        """Answer whatever a member waits for with an error, with another one if it waits to join."""
        code = error_code if join_error_code is None else join_error_code
        refusal = JoinGroupResponse(error_code=code, leader="", member_id=member.member_id, members=[])
        self.answer_join(member, refusal)
        self.answer_sync(member, error_code)

    def join_response(self, member: Member) -> JoinGroupResponse:
        """The generation as a member of it is told."""
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.leader or "",
            member_id=member.member_id,
            members=self.listed() if self.leader == member.member_id else [],
        )

    def sync_response(self, member: Member) -> SyncGroupResponse:
        return SyncGroupResponse(
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            assignment=member.assignment,
        )

    def listed(self) -> list[JoinGroupResponse.JoinGroupResponseMember]:
        """The members, as their leader is told."""
        return [
            JoinGroupResponse.JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.metadata(self.protocol_name),
            )
            for member in self.members.values()
        ]

    # How it moves on

    def become(self, state: State, now_ms: int) -> None:
        self.state = state
        self.state_since_ms = now_ms

    def choose_protocol(self) -> str:
        """What all members speak and most like best; among equals the first in the alphabet."""
        count = len(self.members)
        candidates = {name for name, speakers in self._speakers.items() if speakers == count}
        votes = Counter(member.preferred(candidates) for member in self.members.values())
        best = max(votes.values())
        return min(name for name, number in votes.items() if name is not None and number == best)

    def elect_joined_leader(self) -> bool:
        """See to it that the leader is one that has joined; False if nobody has."""
        leader = self.members.get(self.leader or "")
        if leader is None or leader.joining is None:
            joined = next((member for member in self.members.values() if member.joining is not None), None)
            if joined is None:
                return False
            self.leader = joined.member_id
        return True

    def next_generation(self, now_ms: int) -> None:
        """Begin a generation with whoever is in the group."""
        self.generation += 1
        self.has_lost_members = False
        self.has_newcomers = False
        self.unsynced.clear()
        if self.members:
            self.protocol_name = self.choose_protocol()
            self.become(State.COMPLETING, now_ms)
        else:
            self.protocol_name = None
            self.leader = None
            self.become(State.EMPTY, now_ms)
        self.find_topics()

    def find_topics(self) -> None:
        """Look up what the members of this generation are subscribed to."""
        if not self.is_consumer or (self.members and self.protocol_name is None):
            self.topics = None
            return
        self.topics = subscribed_topics(
            member.metadata(self.protocol_name) for member in self.members.values()
        )

    # What the log keeps

    def value(self, assignments: Mapping[str, bytes] | None = None) -> GroupMetadataValue:
        """The group as it is to be written, with the assignments given, or those it has."""
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol_name,
            leader=self.leader,
            current_state_timestamp=self.state_since_ms,
            members=[
                member.written(
                    self.protocol_name,
                    member.assignment if assignments is None else assignments.get(member.member_id, b""),
                )
                for member in self.members.values()
            ],
        )

    def load(self) -> None:
        """Come back as last written, with all members as if they had just been heard of."""
        if self.written is None:
            return
        value = read_value(GroupMetadataValue, self.written)
        self.protocol_type = value.protocol_type or None
        self.generation = value.generation
        self.protocol_name = value.protocol
        self.state_since_ms = value.current_state_timestamp
        for each in value.members:
            self.add(Member.load(each, value.protocol or ""), value.protocol_type)
        self.leader = value.leader if value.leader in self.members else next(iter(self.members), None)
        self.state = State.STABLE if self.members else State.EMPTY
        self.find_topics()

    def took(self, value: GroupMetadataValue, now_ms: int) -> list[Member]:
        """An assignment is in the log: the generation is stable. The members that were waiting for it."""
        for each in value.members:
            member = self.members.get(each.member_id)
            if member is not None:
                member.assignment = each.assignment
        self.become(State.STABLE, now_ms)
        return [member for member in self.members.values() if self.answer_sync(member)]


def _sync_error(code: int) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=code, assignment=b"")
