"""Groups: what a commit costs, and how long a rebalance takes."""

from __future__ import annotations

import itertools
import select
import struct
import time
from collections.abc import Mapping, Sequence

from bench.raw import Answered, many_in_flight, one_at_a_time
from bench.subjects import Subject
from bench.wire import FIND_COORDINATOR, JOIN_GROUP, Connection, Reader, WireError, check, request_frame, text
from bench.workload import (
    CPU_PER_MILLION,
    P50,
    P99,
    P999,
    REQUESTS_PER_SECOND,
    CpuClock,
    Metric,
    Scale,
    Workload,
    topic_on,
)

OFFSET_COMMIT, LEAVE_GROUP, SYNC_GROUP = 8, 13, 14
RETRIABLE = {14, 15, 16}
MEMBER_ID_REQUIRED, REBALANCE_IN_PROGRESS = 79, 27
SESSION_MS = 45_000
REBALANCE_MS = 60_000

MEDIAN_MS = Metric("median_ms", "ms", digits=2)
WORST_MS = Metric("worst_ms", "ms", digits=2)

_group_numbers = itertools.count(1)


class CommitAnswer:
    """The answer to an OffsetCommit v2 of one partition."""

    def __init__(self, topic: str) -> None:
        self.size = 4 + 4 + 4 + 2 + len(topic) + 4 + 4 + 2

    def check(self, data: bytes | bytearray | memoryview, position: int) -> None:
        (size,) = struct.unpack_from(">i", data, position)
        if size != self.size - 4:
            raise WireError(f"an OffsetCommit answer of {size} bytes instead of {self.size - 4}")
        (error,) = struct.unpack_from(">h", data, position + self.size - 2)
        check(error, "OffsetCommit")


def commit_body(group: str, topic: str) -> bytes:
    """Of somebody outside of the group: no member, no generation."""
    head = text(group) + struct.pack(">i", -1) + text("") + struct.pack(">qi", -1, 1)
    return head + text(topic) + struct.pack(">iiq", 1, 0, 42) + text("")


def find_coordinator(connection: Connection, group: str) -> None:
    """Ask until there is one and it has loaded what it knows: the first group makes an internal topic."""
    deadline = time.monotonic() + 60
    while True:
        answer = connection.request(FIND_COORDINATOR, 0, text(group))
        error = answer.take("h")
        if not error:
            return
        if error not in RETRIABLE or time.monotonic() > deadline:
            check(error, "FindCoordinator")
        time.sleep(0.05)


class Commits(Workload):
    """OffsetCommit requests of one partition each, one in flight on each connection."""

    metrics = (REQUESTS_PER_SECOND, P50, P99, P999, CPU_PER_MILLION)

    def __init__(self, connections: int) -> None:
        self.connections = connections
        self.name = f"commits-{connections}c"
        self.title = f"offset commits, one in flight on {connections} connection(s)"

    def measure(self, subject: Subject, scale: Scale) -> Mapping[str, float]:
        broker = subject.shared()
        group = f"bench-commits-{next(_group_numbers)}"
        with topic_on(broker, 1) as topic:
            body = commit_body(group, topic)
            with Connection(broker.port) as connection:
                find_coordinator(connection, group)
                deadline = time.monotonic() + 60
                while self._error(connection.request(OFFSET_COMMIT, 2, body)) in RETRIABLE:
                    if time.monotonic() > deadline:
                        raise WireError("the group's coordinator does not come into service")
                    time.sleep(0.05)
            frame = bytearray(request_frame(OFFSET_COMMIT, 2, 0, body))
            answer = CommitAnswer(topic)
            requests = scale.count(quick=10_000, full=50_000)
            seconds = scale.count(quick=10, full=30)
            self._run(broker.port, frame, answer, requests // 5, seconds / 5)
            cpu = CpuClock(broker)
            answered = self._run(broker.port, frame, answer, requests, seconds)
            return {
                "requests/s": answered.requests / answered.seconds / 1e3,
                **answered.latencies.summary_us(),
                "cpu/Mreq": cpu.per_million(answered.requests),
            }

    def _error(self, answer: Reader) -> int:
        answer.count()
        answer.string()
        answer.count()
        answer.take("i")
        return answer.take("h")

    def _run(
        self, port: int, frame: bytearray, answer: CommitAnswer, requests: int, seconds: float
    ) -> Answered:
        if self.connections == 1:
            return one_at_a_time(port, frame, answer, requests, longest_seconds=seconds)
        return many_in_flight(
            port, frame, answer, requests, depth=1, connections=self.connections, longest_seconds=seconds
        )


class Member:
    """One member of a group on a connection of its own: JoinGroup 5, SyncGroup 3, LeaveGroup 1."""

    def __init__(self, port: int, group: str) -> None:
        self.connection = Connection(port, timeout_seconds=60)
        self.group = group
        self.member_id = ""
        self.generation = -1
        self.leader = ""
        self.members: list[str] = []
        self.turn = 0

    def send_join(self) -> None:
        body = text(self.group) + struct.pack(">ii", SESSION_MS, REBALANCE_MS) + text(self.member_id)
        body += struct.pack(">h", -1) + text("consumer") + struct.pack(">i", 1)
        # What it says changes each time: a member that says the same is only told the generation.
        subscription = struct.pack(">hi", 0, 1) + text("topic") + struct.pack(">iq", 8, self.turn)
        body += text("range") + struct.pack(">i", len(subscription)) + subscription
        self.send(JOIN_GROUP, 5, body)

    def take_join(self) -> int:
        """The answer's error code; a member without an id is given one, to join again with."""
        answer = self.receive()
        answer.take("i")
        error = answer.take("h")
        self.generation = answer.take("i")
        answer.string()
        self.leader, self.member_id = answer.string(), answer.string()
        self.members = []
        for _ in range(answer.count()):
            self.members.append(answer.string())
            answer.string()
            metadata_bytes = answer.take("i")
            answer.position += metadata_bytes
        return error

    def send_sync(self) -> None:
        body = text(self.group) + struct.pack(">i", self.generation) + text(self.member_id)
        body += struct.pack(">hi", -1, len(self.members))
        for member_id in self.members:
            assignment = struct.pack(">hiii", 0, 0, -1, 0)
            body += text(member_id) + struct.pack(">i", len(assignment)) + assignment
        self.send(SYNC_GROUP, 3, body)

    def take_sync(self) -> int:
        answer = self.receive()
        answer.take("i")
        error = answer.take("h")
        if not error and answer.take("i") <= 0:
            raise WireError("SyncGroup without an assignment")
        return error

    def leave(self) -> None:
        self.send(LEAVE_GROUP, 1, text(self.group) + text(self.member_id))
        self.receive()

    def send(self, key: int, version: int, body: bytes) -> None:
        self.connection.socket.sendall(request_frame(key, version, 0, body))

    def receive(self) -> Reader:
        (size,) = struct.unpack(">i", self.connection.receive_exactly(4))
        return Reader(self.connection.receive_exactly(size)[4:])


class Rebalance(Workload):
    """A group whose members all join again at once, until each has its assignment."""

    metrics = (MEDIAN_MS, WORST_MS)

    def __init__(self, members: int) -> None:
        self.members = members
        self.name = f"rebalance-{members}"
        self.title = f"rebalance of a group of {members}"

    def measure(self, subject: Subject, scale: Scale) -> Mapping[str, float]:
        broker = subject.shared()
        group = f"bench-rebalance-{next(_group_numbers)}"
        with Connection(broker.port) as connection:
            find_coordinator(connection, group)
        members = [Member(broker.port, group) for _ in range(self.members)]
        try:
            self._gather(members)
            taken = sorted(self._turn(members) for _ in range(scale.count(quick=20, full=60)))
            return {"median_ms": taken[len(taken) // 2], "worst_ms": taken[-1]}
        finally:
            for member in members:
                try:
                    member.leave()
                finally:
                    member.connection.close()

    def _gather(self, members: Sequence[Member]) -> None:
        """Bring all into one generation: the first ones to join go ahead, and come back for the others."""
        joining, syncing, stable = set(members), set[Member](), set[Member]()
        for member in members:
            member.send_join()
        deadline = time.monotonic() + 60
        while len(stable) < len(members):
            waiting = {member.connection.socket: member for member in joining | syncing}
            ready, _, _ = select.select(list(waiting), [], [], 1)
            if time.monotonic() > deadline:
                raise WireError("the members do not come together")
            for member in map(waiting.__getitem__, ready):
                if member in joining:
                    error = member.take_join()
                    if error == MEMBER_ID_REQUIRED or error in RETRIABLE:
                        time.sleep(0.01 if error in RETRIABLE else 0)
                        member.send_join()
                        continue
                    check(error, "JoinGroup")
                    joining.discard(member)
                    syncing.add(member)
                    member.send_sync()
                else:
                    error = member.take_sync()
                    syncing.discard(member)
                    if error != REBALANCE_IN_PROGRESS:
                        check(error, "SyncGroup")
                        stable.add(member)
                    else:
                        joining.add(member)
                        member.send_join()
            if joining:
                for member in stable:
                    member.send_join()
                joining |= stable
                stable.clear()

    def _turn(self, members: Sequence[Member]) -> float:
        """One rebalance, in milliseconds."""
        for member in members:
            member.turn += 1
        started = time.perf_counter()
        for member in members:
            member.send_join()
        for member in members:
            check(member.take_join(), "JoinGroup")
        for member in members:
            member.send_sync()
        for member in members:
            check(member.take_sync(), "SyncGroup")
        seconds = time.perf_counter() - started
        if {len(member.members) for member in members} != {0, len(members)}:
            raise WireError("not all members were in the rebalance")
        return seconds * 1e3
