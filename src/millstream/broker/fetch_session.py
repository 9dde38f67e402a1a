"""Fetch sessions (KIP-227): the broker remembers what a client fetches, so that both say only news.

A session is a set of partitions with where to read next and what was last told of each. A request
of epoch 0 opens one, -1 closes it or does without, any other must be the next in order. The cache
is bounded, in sessions and in partitions; when it is full those unused for longest make room, if they
are old enough.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from random import Random
from uuid import UUID

from millstream.clock import Clock
from millstream.errors import FetchSessionIdNotFound, FetchSessionTopicIdError, InvalidFetchSessionEpoch
from millstream.protocol.messages import FetchRequest, FetchResponse

FINAL_EPOCH = -1
INITIAL_EPOCH = 0
MAX_EPOCH = 2**31 - 1
MAX_POSITIONS = 500_000
"""How many partitions all sessions remember together; each takes a few hundred bytes."""

PartitionKey = tuple[str | UUID, int]


class FetchPosition:
    """One partition in a fetch: where the client reads, and what it was last told."""

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "high_watermark",
        "index",
        "last_fetched_epoch",
        "last_stable_offset",
        "log_start_offset",
        "max_bytes",
        "topic",
        "topic_id",
    )

    def __init__(self, topic: str, topic_id: UUID, wanted: FetchRequest.FetchPartition) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = wanted.partition
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        self.update(wanted)

    def update(self, wanted: FetchRequest.FetchPartition) -> None:
        self.fetch_offset = wanted.fetch_offset
        self.max_bytes = wanted.partition_max_bytes
        self.current_leader_epoch = wanted.current_leader_epoch
        self.last_fetched_epoch = wanted.last_fetched_epoch

    def has_news(self, answer: FetchResponse.PartitionData) -> bool:
        """Whether the answer tells the client something; it counts as told from then on."""
        told = (
            bool(answer.records)
            or answer.error_code != 0
            or answer.high_watermark != self.high_watermark
            or answer.last_stable_offset != self.last_stable_offset
            or answer.log_start_offset != self.log_start_offset
            or answer.diverging_epoch is not None
            or answer.preferred_read_replica >= 0
        )
        if answer.error_code != 0:
            # Told again in full once the error is over.
            self.high_watermark = -1
            return True
        self.high_watermark = answer.high_watermark
        self.last_stable_offset = answer.last_stable_offset
        self.log_start_offset = answer.log_start_offset
        return told


def positions_of(req: FetchRequest, by_id: bool) -> dict[PartitionKey, FetchPosition]:
    """What a full request asks for, in its order."""
    positions: dict[PartitionKey, FetchPosition] = {}
    for topic in req.topics:
        key = topic.topic_id if by_id else topic.topic
        for wanted in topic.partitions:
            positions[key, wanted.partition] = FetchPosition(topic.topic, topic.topic_id, wanted)
    return positions


@dataclass(slots=True)
class FetchSession:
    """A client's remembered fetch."""

    session_id: int
    uses_ids: bool
    positions: dict[PartitionKey, FetchPosition]
    epoch: int
    last_used: float

    def update(self, req: FetchRequest) -> None:
        """Take over what an incremental request changes: new or moved partitions, forgotten ones."""
        for topic in req.topics:
            key = topic.topic_id if self.uses_ids else topic.topic
            for wanted in topic.partitions:
                position = self.positions.get((key, wanted.partition))
                if position is None:
                    self.positions[key, wanted.partition] = FetchPosition(topic.topic, topic.topic_id, wanted)
                else:
                    position.update(wanted)
        for forgotten in req.forgotten_topics_data:
            key = forgotten.topic_id if self.uses_ids else forgotten.topic
            for index in forgotten.partitions:
                self.positions.pop((key, index), None)

    def move_back(self, position: FetchPosition) -> None:
        """What was served goes to the end, so that no partition starves the others."""
        key = (position.topic_id if self.uses_ids else position.topic, position.index)
        if self.positions.pop(key, None) is not None:
            self.positions[key] = position


class FetchSessions:
    """The sessions of one broker."""

    def __init__(self, slots: int, min_eviction_seconds: float, clock: Clock, random: Random) -> None:
        self._slots = slots
        self._min_eviction_seconds = min_eviction_seconds
        self._clock = clock
        self._random = random
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._position_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self, req: FetchRequest, version: int
    ) -> tuple[FetchSession | None, bool, dict[PartitionKey, FetchPosition]]:
        """The request's session (None without one), whether only news is wanted, and its partitions."""
        by_id = version >= 13
        if req.session_epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            if req.session_id in self._sessions:
                self._close(req.session_id)
            positions = positions_of(req, by_id)
            if req.session_epoch == FINAL_EPOCH or not positions:
                return None, False, positions
            return self._open(by_id, positions), False, positions
        session = self._sessions.get(req.session_id)
        if session is None:
            raise FetchSessionIdNotFound
        if session.epoch != req.session_epoch:
            raise InvalidFetchSessionEpoch(
                f"the session is at epoch {session.epoch}, not {req.session_epoch}"
            )
        if session.uses_ids != by_id:
            raise FetchSessionTopicIdError
        before = len(session.positions)
        session.update(req)
        self._position_count += len(session.positions) - before
        if self._position_count > MAX_POSITIONS and len(session.positions) > before:
            self._close(session.session_id)  # the client begins anew, and has to do without
            raise FetchSessionIdNotFound("the sessions have grown too large")
        session.epoch = 1 if session.epoch == MAX_EPOCH else session.epoch + 1
        session.last_used = self._clock.monotonic()
        self._sessions.move_to_end(session.session_id)
        return session, True, session.positions

    def _open(self, by_id: bool, positions: dict[PartitionKey, FetchPosition]) -> FetchSession | None:
        now = self._clock.monotonic()
        if len(positions) > MAX_POSITIONS:
            return None
        while len(self._sessions) >= self._slots or self._position_count + len(positions) > MAX_POSITIONS:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now - oldest.last_used < self._min_eviction_seconds:
                return None
            self._close(oldest.session_id)
        session_id = self._random.randrange(1, MAX_EPOCH)
        while session_id in self._sessions:
            session_id = self._random.randrange(1, MAX_EPOCH)
        session = FetchSession(session_id, by_id, positions, 1, now)
        self._sessions[session_id] = session
        self._position_count += len(positions)
        return session

    def _close(self, session_id: int) -> None:
        self._position_count -= len(self._sessions.pop(session_id).positions)
