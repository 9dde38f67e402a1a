"""A member of a classic group: joins, gets partitions, beats, leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from random import Random
from typing import Any

from millstream.errors import (
    IllegalGeneration,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
    error_for,
)
from millstream.protocol.messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from tests.simulation.brokers import GROUP, Brokers
from tests.simulation.client import RETRY_S
from tests.simulation.ledger import Assignment, Ledger, OffsetCommit, OffsetRead, Place

SESSION_MS = 6000
REBALANCE_MS = 4000
BEAT_S = 1.0
REJOIN = {IllegalGeneration.code, UnknownMemberId.code, RebalanceInProgress.code}


class Member:
    """One member, and what it knows of its group. The leader shares out `places`, one after another."""

    def __init__(
        self, group: str, places: Iterable[Place], brokers: Brokers, ledger: Ledger, random: Random
    ) -> None:
        self.group = group
        self.brokers = brokers
        self.ledger = ledger
        self.random = random
        self.member_id = ""
        self.generation = -1
        self.assigned: list[Place] = []
        self.joins = 0
        self._places = sorted(places)
        self._beat_at = 0.0

    async def join(self) -> None:
        """Become a member of a generation, with an assignment."""
        while not await self._join():
            await asyncio.sleep(self.random.uniform(0.01, RETRY_S))
        self.joins += 1
        self._beat_at = asyncio.get_running_loop().time() + BEAT_S

    async def _join(self) -> bool:
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="turns", metadata=b"")
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=[protocol],
        )
        joined = await self._ask(request, 7)
        if joined is None:
            return False
        if joined.error_code == MemberIdRequired.code:
            self.member_id = joined.member_id
            return False
        if joined.error_code:
            self._refused(joined.error_code, "joining")
            return False
        self.member_id, self.generation = joined.member_id, joined.generation_id
        is_leader = joined.leader == self.member_id
        members = tuple(sorted(member.member_id for member in joined.members))
        shares: dict[str, list[Place]] = {member: [] for member in members}
        if is_leader:
            for number, place in enumerate(self._places):
                shares[members[number % len(members)]].append(place)
        synced = await self._ask(self._sync_request(shares), 5)
        if synced is None:
            return False
        if synced.error_code:
            self._refused(synced.error_code, "taking its share")
            return False
        self.assigned = _decode(synced.assignment)
        self.ledger.assignments.append(
            Assignment(
                self.group,
                self.generation,
                self.member_id,
                tuple(self.assigned),
                members if is_leader else (),
            )
        )
        return True

    def _sync_request(self, shares: dict[str, list[Place]]) -> SyncGroupRequest:
        return SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            protocol_type="consumer",
            protocol_name="turns",
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=member, assignment=_encode(places))
                for member, places in shares.items()
            ],
        )

    async def beat(self) -> bool:
        """Say that it is alive, if it is time to; False if it has to join again."""
        now = asyncio.get_running_loop().time()
        if now < self._beat_at:
            return True
        request = HeartbeatRequest(
            group_id=self.group, generation_id=self.generation, member_id=self.member_id
        )
        answer = await self._ask(request, 4)
        if answer is not None and not answer.error_code:
            self._beat_at = now + BEAT_S
        elif answer is not None:
            return self._refused(answer.error_code, "beating")
        else:
            self._beat_at = now + RETRY_S
        return True

    async def leave(self) -> None:
        leaving = LeaveGroupRequest.MemberIdentity(member_id=self.member_id)
        await self._ask(LeaveGroupRequest(group_id=self.group, members=[leaving]), 4)
        self.member_id, self.generation = "", -1

    # Positions

    async def positions(self, *, is_stable: bool = False) -> dict[Place, int] | None:
        """The group's positions in what is assigned here (0 for none); None if it has to join again."""
        while await self.beat():
            found = await fetch_positions(self, self.assigned, is_stable=is_stable)
            if found is not None:
                return found
            await asyncio.sleep(RETRY_S)
        return None

    async def commit(self, offsets: dict[Place, int]) -> bool:
        """Commit positions; False if it has to join again. What is not answered is asked again."""
        topics: dict[str, list[OffsetCommitRequest.OffsetCommitRequestPartition]] = {}
        for (topic, index), offset in offsets.items():
            topics.setdefault(topic, []).append(
                OffsetCommitRequest.OffsetCommitRequestPartition(
                    partition_index=index,
                    committed_offset=offset,
                    committed_leader_epoch=self.brokers.epoch(topic, index),
                )
            )
        request = OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=self.generation,
            member_id=self.member_id,
            topics=[
                OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=partitions)
                for topic, partitions in topics.items()
            ],
        )
        while True:
            now = asyncio.get_running_loop().time()
            sent = {place: OffsetCommit(self.group, place, offset, now) for place, offset in offsets.items()}
            self.ledger.commits += sent.values()
            answer = await self._ask(request, 9)
            if answer is None:
                await asyncio.sleep(self.random.uniform(0.01, RETRY_S))
                continue
            codes = set()
            for topic in answer.topics:
                for each in topic.partitions:
                    commit = sent[topic.name, each.partition_index]
                    commit.done_at = asyncio.get_running_loop().time()
                    if not error_for(each.error_code).retriable or not each.error_code:
                        commit.is_done = not each.error_code
                    codes.add(each.error_code)
            if codes == {0}:
                return True
            for code in codes - {0}:
                if not self._refused(code, "committing"):
                    return False
            await asyncio.sleep(self.random.uniform(0.01, RETRY_S))

    # Asking

    async def _ask(self, request: Any, version: int) -> Any:
        try:
            return await self.brokers.ask_coordinator(GROUP, self.group, request, version)
        except OSError:
            return None

    def _refused(self, code: int, what: str) -> bool:
        """Whether it may go on as a member all the same."""
        self.brokers.forget_coordinator(GROUP, self.group)
        if code == UnknownMemberId.code:
            self.member_id = ""
        if code in REJOIN:
            return False
        if not error_for(code).retriable:
            name = error_for(code).__name__
            self.ledger.complaints.append(f"a member of {self.group} was refused for good {what}: {name}")
            return False
        return True


async def fetch_positions(
    member: Member, places: Iterable[Place], *, is_stable: bool
) -> dict[Place, int] | None:
    """What a group's coordinator tells of its positions; None if it tells nothing now."""
    topics: dict[str, list[int]] = {}
    for topic, index in places:
        topics.setdefault(topic, []).append(index)
    group = OffsetFetchRequest.OffsetFetchRequestGroup(
        group_id=member.group,
        topics=[
            OffsetFetchRequest.OffsetFetchRequestTopics(name=topic, partition_indexes=indexes)
            for topic, indexes in topics.items()
        ],
    )
    request = OffsetFetchRequest(groups=[group], require_stable=is_stable)
    asked_at = asyncio.get_running_loop().time()
    answer = await member._ask(request, 8)
    if answer is None:
        return None
    (found,) = answer.groups
    codes = {each.error_code for topic in found.topics for each in topic.partitions} | {found.error_code}
    if codes != {0}:
        for code in codes - {0}:
            member._refused(code, "asking for positions")
        return None
    positions: dict[Place, int] = {}
    now = asyncio.get_running_loop().time()
    for topic in found.topics:
        for each in topic.partitions:
            place = (topic.name, each.partition_index)
            read = OffsetRead(member.group, place, each.committed_offset, asked_at, now)
            member.ledger.offset_reads.append(read)
            positions[place] = max(0, each.committed_offset)
            member.brokers.saw_epoch(*place, each.committed_leader_epoch)
    return positions


def _encode(places: list[Place]) -> bytes:
    return ",".join(f"{topic}/{index}" for topic, index in places).encode()


def _decode(data: bytes | memoryview) -> list[Place]:
    texts = [text.rpartition("/") for text in bytes(data).decode().split(",") if text]
    return [(topic, int(index)) for topic, _, index in texts]
