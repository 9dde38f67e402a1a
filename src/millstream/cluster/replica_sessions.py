"""The sessions of all followers that copy from this broker."""

from __future__ import annotations

import asyncio
from random import Random

from millstream.cluster.replica_session import MAX_EPOCH, Find, ReplicaSession
from millstream.cluster.replication_metrics import ReplicationCounters
from millstream.cluster.throttle import Throttle
from millstream.errors import FetchSessionIdNotFound, InvalidFetchSessionEpoch, StaleBrokerEpoch
from millstream.protocol.messages import FetchRequest, FetchResponse

OUTSIDE = -1
"""The session epoch of a fetch that is no fetch: it asks for the answer to the one that waits."""


class ReplicaSessions:
    """The followers' sessions of one broker, one a follower."""

    def __init__(self, find: Find, throttle: Throttle, counters: ReplicationCounters, random: Random) -> None:
        self._find = find
        self._throttle = throttle
        self._counters = counters
        self._random = random
        self._sessions: dict[int, ReplicaSession] = {}

    def fetch(self, req: FetchRequest) -> FetchResponse | asyncio.Future[FetchResponse]:
        """Answer a follower, at once or when there is something to tell."""
        state = req.replica_state
        assert state is not None
        session = self._sessions.get(state.replica_id)
        if session is not None and state.replica_epoch < session.broker_epoch:
            raise StaleBrokerEpoch(f"broker {state.replica_id} has begun again since")
        if req.session_epoch == OUTSIDE:
            if session is not None:
                session.nudge()
            return FetchResponse(responses=[])
        if req.session_epoch == 0:
            if session is not None:
                session.close()
            session_id = self._random.randrange(1, MAX_EPOCH)
            session = ReplicaSession(session_id, state.replica_id, self._find, self._throttle, self._counters)
            self._sessions[state.replica_id] = session
        elif session is None or session.session_id != req.session_id:
            raise FetchSessionIdNotFound
        elif session.broker_epoch != state.replica_epoch:
            # It registered anew: each of its partitions must be asked for in the new epoch, or it could not
            # join the ISR of one in which nothing happens.
            raise FetchSessionIdNotFound
        elif session.epoch != req.session_epoch:
            raise InvalidFetchSessionEpoch
        session.broker_epoch = state.replica_epoch
        return session.fetch(req)

    def wake(self) -> None:
        """Answer everything that waits: this broker stops."""
        for session in self._sessions.values():
            session.nudge()

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()
