"""Runs a shard of groups without a broker: virtual time, timers in order, a log that is a list.

It does what the runtime does (entries are appended, then replayed), so that a test sees the state
machine alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, TypeVar

from millstream.config.broker import BrokerConfig
from millstream.coordinator.groups.member import Client
from millstream.coordinator.groups.settings import Settings
from millstream.coordinator.groups.shard import GroupShard
from millstream.coordinator.host import RETRY_MS
from millstream.coordinator.promise import Promise
from millstream.coordinator.shard import Entry, Producer, Result
from millstream.errors import KafkaError
from millstream.protocol.messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

T = TypeVar("T")

START_MS = 1_700_000_000_000


class VirtualClock:
    """Moves only when it is told to."""

    def __init__(self) -> None:
        self.elapsed_ms = 0.0
        self.jumped_ms = 0
        """By how much the wall clock was set."""

    def now_ms(self) -> int:
        return START_MS + int(self.elapsed_ms) + self.jumped_ms

    def monotonic(self) -> float:
        return self.elapsed_ms / 1000


class Host:
    """One shard with its log and timers; `reload` makes another shard of the same log."""

    def __init__(self, config: Mapping[str, str] | None = None, seed: int = 0) -> None:
        self.config = {"group.initial.rebalance.delay.ms": "0", **(config or {})}
        self.clock = VirtualClock()
        self.random = Random(seed)
        self.log: list[tuple[Entry, Producer | None]] = []
        self.markers: dict[int, tuple[Producer, bool]] = {}
        """The ends of transactions, by the place in the log before which they stand."""
        self.refuses: KafkaError | None = None
        """What appending fails with, while it does."""
        self._timers: dict[object, tuple[float, int, Callable[[], Result[Any]]]] = {}
        self._count = 0
        self.shard = self._make()
        list(self.shard.prepare())
        self.shard.loaded()
        self.run_timers()

    def _make(self) -> GroupShard:
        return GroupShard(Settings(BrokerConfig(self.config)), self.clock, self.random, self)

    # Timers

    def set(self, key: object, delay_ms: int, work: Callable[[], Result[Any]]) -> None:
        assert delay_ms >= 0
        self._count += 1
        self._timers[key] = (self.clock.elapsed_ms + delay_ms, self._count, work)

    def set_idle(self, key: object, work: Callable[[], Result[Any]]) -> None:
        self.set(key, 0, work)

    def cancel(self, key: object) -> None:
        self._timers.pop(key, None)

    @property
    def timer_keys(self) -> frozenset[object]:
        return frozenset(self._timers)

    def run_timers(self) -> None:
        """Do what is due."""
        while True:
            due = [(at, number, key) for key, (at, number, _) in self._timers.items()]
            due = [each for each in due if each[0] <= self.clock.elapsed_ms]
            if not due:
                return
            _, _, key = min(due, key=lambda each: each[:2])
            _, _, work = self._timers.pop(key)
            try:
                self.apply(work())
            except KafkaError:
                self.set(key, RETRY_MS, work)

    def wait(self, ms: float) -> None:
        """Let time pass; timers ring when they are due, in order."""
        end = self.clock.elapsed_ms + ms
        self.run_timers()
        while True:
            following = min((at for at, _, _ in self._timers.values()), default=end + 1)
            if following > end:
                break
            self.clock.elapsed_ms = following
            self.run_timers()
        self.clock.elapsed_ms = end

    # The runtime's part

    def apply(self, result: Result[T]) -> T | Promise[T]:
        if result.entries and self.refuses is not None:
            raise self.refuses
        for entry in result.entries:
            self.log.append((entry, result.producer))
            self.shard.replay(entry, result.producer, len(self.log) - 1)
        return result.response

    def end_transaction(self, producer: Producer, *, is_commit: bool) -> None:
        self.log.append((Entry(b"", None), producer))
        self.markers[len(self.log) - 1] = (producer, is_commit)
        self.shard.replay_end(producer, is_commit)

    def replayed(self, thin_from: int | None = None) -> GroupShard:
        """A fresh shard that has read the log, not yet serving.

        From `thin_from` on it is read as a broker reads it: of entries that follow each other outside of
        transactions, and have the same key, only the last is there.
        """
        shard = self._make()
        left_out = _left_out(self.log, len(self.log) if thin_from is None else thin_from)
        for offset, (entry, producer) in enumerate(self.log):
            if offset in self.markers:
                shard.replay_end(*self.markers[offset])
            elif offset not in left_out:
                shard.replay(entry, producer, offset)
        return shard

    def reload(self, error: Exception) -> None:
        """The coordinator moves: waiting requests are broken with `error`, and another shard takes over."""
        self._timers.clear()
        self.shard.unloaded(error)
        self._timers.clear()
        self.shard = self.replayed(len(self.log) // 2)
        list(self.shard.prepare())
        self.shard.loaded()
        self.run_timers()

    # Requests as handlers make them

    def join(
        self,
        group: str,
        member_id: str = "",
        *,
        instance: str | None = None,
        protocols: Mapping[str, bytes] | None = None,
        protocol_type: str = "consumer",
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        version: int = 9,
        client_id: str = "client",
    ) -> Promise[JoinGroupResponse]:
        """Join once; an answer that does not have to wait is a promise that is kept."""
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[
                JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=metadata)
                for name, metadata in (protocols or {"range": b"", "sticky": b""}).items()
            ],
        )
        client = Client(version, client_id, "/127.0.0.1")
        try:
            return promised(self.apply(self.shard.join(request, client)))
        except KafkaError as error:
            refusal = JoinGroupResponse(error_code=error.code, leader="", member_id=member_id, members=[])
            return promised(refusal)

    def enter(self, group: str, **options: Any) -> tuple[str, Promise[JoinGroupResponse]]:
        """Join as a client does that has no member id: under the one it is given, where one is required."""
        first = self.join(group, **options)
        if first.is_done and first.result().error_code == 79:
            member_id = first.result().member_id
            return member_id, self.join(group, member_id, **options)
        return "", first

    def sync(
        self,
        group: str,
        member_id: str,
        generation: int,
        assignments: Mapping[str, bytes] | None = None,
        *,
        instance: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> Promise[SyncGroupResponse]:
        request = SyncGroupRequest(
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=each, assignment=assignment)
                for each, assignment in (assignments or {}).items()
            ],
        )
        try:
            return promised(self.apply(self.shard.sync(request)))
        except KafkaError as error:
            return promised(SyncGroupResponse(error_code=error.code, assignment=b""))

    def heartbeat(self, group: str, member_id: str, generation: int, instance: str | None = None) -> int:
        """The error code of the answer."""
        request = HeartbeatRequest(
            group_id=group, generation_id=generation, member_id=member_id, group_instance_id=instance
        )
        try:
            response = self.apply(self.shard.heartbeat(request))
        except KafkaError as error:
            return error.code
        assert not isinstance(response, Promise)
        return response.error_code

    def leave(self, group: str, *members: tuple[str, str | None], version: int = 5) -> LeaveGroupResponse:
        request = LeaveGroupRequest(
            group_id=group,
            member_id=members[0][0] if version < 3 else "",
            members=[
                LeaveGroupRequest.MemberIdentity(member_id=member_id, group_instance_id=instance)
                for member_id, instance in members
            ],
        )
        try:
            response = self.apply(self.shard.leave(request, version))
        except KafkaError as error:
            return LeaveGroupResponse(error_code=error.code)
        assert isinstance(response, LeaveGroupResponse)
        return response

    def settle(self, group: str, joins: list[Promise[JoinGroupResponse]]) -> dict[str, bytes]:
        """Bring a group whose members have all joined to the end of its rebalance.

        Each member is assigned its own id as bytes.
        """
        self.run_timers()
        answers = [join.result() for join in joins]
        assert [answer.error_code for answer in answers] == [0] * len(answers)
        (generation,) = {answer.generation_id for answer in answers}
        (leader,) = {answer.leader for answer in answers}
        waiting = {
            answer.member_id: self.sync(group, answer.member_id, generation)
            for answer in answers
            if answer.member_id != leader
        }
        wanted = {answer.member_id: answer.member_id.encode() for answer in answers}
        waiting[leader] = self.sync(group, leader, generation, wanted)
        got = {member_id: promise.result().assignment for member_id, promise in waiting.items()}
        assert got == wanted
        return got


def promised(response: T | Promise[T]) -> Promise[T]:
    """A response as a promise, kept if it is there."""
    if isinstance(response, Promise):
        return response
    promise: Promise[T] = Promise()
    promise.keep(response)
    return promise


def _left_out(log: Sequence[tuple[Entry, Producer | None]], start: int) -> set[int]:
    """The places in a log, from `start` on, whose keys have later entries before the next transaction's."""
    left_out: set[int] = set()
    latest: dict[bytes, int] = {}
    for offset, (entry, producer) in enumerate(log[start:], start):
        if producer is not None:
            latest.clear()
            continue
        if entry.key in latest:
            left_out.add(latest[entry.key])
        latest[entry.key] = offset
    return left_out


def error_of(promise: Promise[Any]) -> int:
    """The error code of an answer that has come."""
    code: int = promise.result().error_code
    return code
