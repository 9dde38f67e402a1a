"""A leader's view of its partition's followers: how far each is, who is in sync, what is committed.

Invariants: only this leader changes the ISR, by proposals that the controller accepts or refuses, one at
a time; the controller takes members out by itself when their brokers die, and never puts one in. Until it
is known what became of a proposal, both the old and the proposed ISR count for what is committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from millstream.cluster import rules
from millstream.cluster.metadata import BrokerNode, PartitionState
from millstream.errors import NotLeaderOrFollower, StaleBrokerEpoch

if TYPE_CHECKING:
    from millstream.cluster.holder import Holder
    from millstream.storage.log import Log

LONG_AGO = float("-inf")
ANY_EPOCH = 2**63 - 1

REFUSED_PAUSE_S = 0.2
"""How long after a refusal the next proposal is made at the earliest."""
MAX_REFUSED_PAUSE_S = 5.0
"""How long at most a follower is not proposed again that was refused time and again."""


class Follower:
    """One follower, by what its fetches told."""

    __slots__ = (
        "_refusals",
        "asked_at",
        "asked_end",
        "broker_epoch",
        "caught_up_at",
        "end_offset",
        "high_watermark",
        "refused_until",
        "replica_id",
        "start_offset",
    )

    def __init__(self, replica_id: int, caught_up_at: float) -> None:
        self.replica_id = replica_id
        self.broker_epoch = -1
        self.end_offset = rules.UNKNOWN
        self.start_offset = rules.UNKNOWN
        self.high_watermark = rules.UNKNOWN
        """What it knows to be committed."""
        self.caught_up_at = caught_up_at
        self.asked_at = LONG_AGO
        self.asked_end = 0
        """The leader's end when it last asked: if it has that now, it was caught up then."""
        self.refused_until = LONG_AGO
        self._refusals = 0

    def begin(self, broker_epoch: int) -> None:
        """It began again: what it had before, it may have lost."""
        self.broker_epoch = broker_epoch
        self.end_offset = self.start_offset = self.high_watermark = rules.UNKNOWN
        self.asked_at, self.asked_end = LONG_AGO, 0

    def put_out(self) -> None:
        """It is not in sync, whatever it had before: nobody waits for it until it has caught up anew.

        Nor does it catch up by having what it had asked for until now: a full disk may let it get no further.
        """
        self.caught_up_at = self.asked_at = LONG_AGO

    def refused(self, now: float) -> None:
        """It was not let in, and is not proposed again for a while."""
        self.put_out()
        self.refused_until = now + min(REFUSED_PAUSE_S * 2**self._refusals, MAX_REFUSED_PAUSE_S)
        self._refusals = min(self._refusals + 1, 10)

    def admitted(self) -> None:
        """It is in sync."""
        self.refused_until = LONG_AGO
        self._refusals = 0

    def fetched(self, offset: int, start_offset: int, leader_end: int, now: float) -> None:
        if offset >= leader_end:
            self.caught_up_at = now
        elif offset >= self.asked_end and self.asked_at > self.caught_up_at:
            self.caught_up_at = self.asked_at
        self.asked_at = now
        self.asked_end = leader_end
        self.end_offset = offset
        self.start_offset = start_offset


class Leadership:
    """The followers of one partition, from the beginning of a leader epoch on."""

    def __init__(self, holder: Holder, log: Log, state: PartitionState, epoch_start: int) -> None:
        now = holder.clock.monotonic()
        self._holder = holder
        self._log = log
        self._epoch_start = epoch_start
        self.isr = list(state.isr)
        self.version = state.version
        self.proposed: list[int] | None = None
        """The ISR that the controller was asked for and has not answered yet."""
        self._proposed_epochs: list[int] = []
        """The broker epoch in which each of them was fit, -1 for one that is not known."""
        self._no_proposal_before = LONG_AGO
        self._joining: set[int] = set()
        self._doubtful: set[int] = set()
        """Who was refused, and may be let in yet by an earlier copy of the proposal."""
        self.followers: dict[int, Follower] = {}
        self._counted: list[Follower] = []
        self._set_replicas(state, now)

    def _set_replicas(self, state: PartitionState, now: float) -> None:
        self.replicas = list(state.replicas)
        self._adding = state.adding
        self.followers = {
            one: self.followers.get(one) or Follower(one, now if one in state.isr else LONG_AGO)
            for one in state.replicas
            if one != self._holder.broker_id
        }

    def update(self, state: PartitionState) -> None:
        """Take what the controller wrote, in the same leader epoch; older news are ignored.

        A proposal that is under way then names an older version: it was this one, or is refused. Of a version
        that was this leader's own proposal only the replicas are news.
        """
        if state.version < self.version:
            return
        if state.version == self.version:
            self._set_replicas(state, self._holder.clock.monotonic())
            self.recount()
            return
        for one in self.isr:
            if one not in state.isr and one in self.followers:
                self.followers[one].put_out()
        self.version = state.version
        self.isr = list(state.isr)
        self.proposed = None
        self._doubtful.clear()
        self._set_replicas(state, self._holder.clock.monotonic())
        self.recount()

    def recount(self) -> None:
        """Work out again whose records count."""
        now, holder = self._holder.clock.monotonic(), self._holder
        self._joining = {
            one
            for one in self._joining
            if one in self.followers and self._is_joining(self.followers[one], now, holder.max_lag_s())
        }
        counted = rules.counted(self.isr, self.proposed, self._joining | self._doubtful)
        self._counted = [one for one in self.followers.values() if one.replica_id in counted]

    def _is_joining(self, follower: Follower, now: float, max_lag_s: float) -> bool:
        return (
            follower.end_offset >= 0
            and now >= follower.refused_until
            and follower.replica_id not in self.isr
            and now - follower.caught_up_at <= max_lag_s
            and self._holder.is_alive(follower.replica_id, follower.broker_epoch)
        )

    def committed(self, high_watermark: int, own_end: int) -> int:
        """The high watermark, given what this leader has itself."""
        ends = [one.end_offset for one in self._counted]
        return rules.high_watermark(high_watermark, own_end, ends, has_enough=self.has_enough)

    def acknowledged(self, high_watermark: int) -> int:
        """Up to where records may be acknowledged to those who want all in-sync replicas to have them."""
        return rules.acknowledged(
            high_watermark,
            [one.high_watermark for one in self._counted],
            min_insync=self._log.config.min_insync_replicas,
        )

    @property
    def is_under_replicated(self) -> bool:
        """Whether replicas are out of sync, other than those to which the partition is being moved."""
        return any(one not in self.isr for one in self.replicas if one not in self._adding)

    @property
    def has_enough(self) -> bool:
        """Whether acks=all can be kept with the replicas that are in sync."""
        return rules.has_enough(self.isr, self._log.config.min_insync_replicas, self.replicas)

    # What followers tell

    def follower(self, replica_id: int, broker_epoch: int) -> Follower:
        """The follower that fetches; raises if it is none, or an earlier life of one."""
        found = self.followers.get(replica_id)
        if found is None:
            raise NotLeaderOrFollower(f"broker {replica_id} is no replica of {self._log.partition}")
        if broker_epoch != found.broker_epoch:
            if broker_epoch < found.broker_epoch:
                raise StaleBrokerEpoch(f"broker {replica_id} has begun again since")
            found.begin(broker_epoch)
            if replica_id not in self.isr:
                found.caught_up_at = LONG_AGO  # nobody is to wait for it before it has caught up again
        return found

    def fetched(self, follower: Follower, offset: int, start_offset: int, high_watermark: int) -> bool:
        """A follower has everything below `offset`, as this leader has it.

        True if the ISR should be larger by it: `proposed` then says what to ask for.
        """
        holder = self._holder
        now = holder.clock.monotonic()
        follower.fetched(offset, start_offset, self._log.end_offset, now)
        replica_id = follower.replica_id
        if replica_id in self.isr or (self.proposed is not None and replica_id in self.proposed):
            return False
        if replica_id not in self._joining and self._is_joining(follower, now, holder.max_lag_s()):
            self._joining.add(replica_id)
            self.recount()
        return self._may_propose(now) and self._join(follower, high_watermark)

    def expand(self, high_watermark: int) -> bool:
        """Propose to have one more in sync that need not fetch for that; false if there is none.

        While it is in doubt who may be let in yet, the ISR as it is: once that is written anew, nobody can.
        """
        now, end_offset, max_lag_s = (
            self._holder.clock.monotonic(),
            self._log.end_offset,
            self._holder.max_lag_s(),
        )
        if not self._may_propose(now):
            return False
        if self._doubtful:
            self._propose(list(self.isr))
            return True
        return any(
            self._join(follower, high_watermark)
            for follower in self.followers.values()
            if rules.is_caught_up(follower.end_offset, end_offset, follower.caught_up_at, now, max_lag_s)
        )

    def _may_propose(self, now: float) -> bool:
        return self.proposed is None and now >= self._no_proposal_before

    def _join(self, follower: Follower, high_watermark: int) -> bool:
        if (
            follower.replica_id in self.isr
            or follower.end_offset == rules.UNKNOWN
            or self._holder.clock.monotonic() < follower.refused_until
            or not rules.may_join(follower.end_offset, high_watermark, self._epoch_start)
            or not self._holder.is_alive(follower.replica_id, follower.broker_epoch)
        ):
            return False
        self._propose(rules.with_member(self.isr, follower.replica_id, self.replicas))
        return True

    def shrink(self) -> bool:
        """Propose to go on without those that lag behind for too long; false if there are none."""
        now, max_lag_s = self._holder.clock.monotonic(), self._holder.max_lag_s()
        end_offset = self._log.end_offset
        for follower in self.followers.values():
            if follower.end_offset == end_offset:  # nothing has come since it asked: it need not ask again
                follower.caught_up_at = now
        self.recount()
        if not self._may_propose(now):
            return False
        gone = [
            one.replica_id
            for one in self.followers.values()
            if one.replica_id in self.isr
            and not rules.is_caught_up(one.end_offset, end_offset, one.caught_up_at, now, max_lag_s)
        ]
        if gone:
            self._propose(rules.without(self.isr, gone, self.replicas))
        return bool(gone)

    def _propose(self, isr: list[int]) -> None:
        if self._holder.broker_id not in isr:
            isr = [self._holder.broker_id, *isr]
        self.proposed = isr
        self._proposed_epochs = [
            self.followers[one].broker_epoch if one in self.followers else -1 for one in isr
        ]
        self.recount()

    # What the controller answers

    def proposal(self) -> list[tuple[int, int]]:
        """The proposed ISR with the broker epoch of each (KIP-903), the same as often as it is sent.

        One that has begun again since is not fit in its new epoch. Only the controller can say that it is not
        let in: it may have been already, and its answer lost.
        """
        if self.proposed is None:
            return []
        return list(zip(self.proposed, self._proposed_epochs, strict=True))

    def accepted(self, isr: Iterable[int], version: int) -> None:
        """The controller wrote the proposal down."""
        self.isr = list(isr)
        self.version = version
        self.proposed = None
        self._doubtful.clear()
        for one in self.followers.values():
            if one.replica_id in self.isr:
                one.admitted()
        self.recount()

    def refused(self, *, is_final: bool) -> float:
        """The controller wrote nothing down. Nobody waits for who was not let in, if that is final.

        How long it takes until all of them may be proposed again; others may before.
        """
        now = self._holder.clock.monotonic()
        self._no_proposal_before = now + REFUSED_PAUSE_S
        for one in self.proposed or ():
            if one in self.followers and one not in self.isr:
                self.followers[one].refused(now)
                if not is_final:
                    self._doubtful.add(one)
        self.proposed = None
        longest = max((one.refused_until for one in self.followers.values()), default=now)
        self.recount()
        return max(REFUSED_PAUSE_S, longest - now)

    def nearest(self, rack: str, brokers: Mapping[int, BrokerNode], offset: int) -> int:
        """The replica that a consumer in a rack should read from, -1 if that is the leader (KIP-392).

        It is in sync, has the records from `offset` on, and is the one of them that reaches furthest.
        """
        own = brokers.get(self._holder.broker_id)
        if own is not None and own.rack == rack:
            return -1
        found = [
            follower
            for follower in self.followers.values()
            if follower.replica_id in self.isr
            and follower.replica_id in brokers
            and brokers[follower.replica_id].rack == rack
            and follower.start_offset <= offset <= follower.end_offset
        ]
        return max(found, key=lambda one: one.end_offset).replica_id if found else -1

    def low_watermark(self, own_start: int) -> int:
        """Where the log starts on every replica whose broker is alive, UNKNOWN if one has not said so yet.

        It may lead next, and what it said in an earlier life, or to another leader, does not count. One that
        is about to stop, or cut off, will not, unless nobody could take it out of the ISR, or so few are in
        sync that others are eligible.
        """
        is_there, is_alive = self._holder.is_there, self._holder.is_alive
        may_lead = self.isr if self.has_enough else self.replicas
        counted = [
            one
            for one in self.followers.values()
            if (is_there if one.replica_id in may_lead else is_alive)(one.replica_id, ANY_EPOCH)
        ]
        return min(
            (
                one.start_offset if is_there(one.replica_id, one.broker_epoch) else rules.UNKNOWN
                for one in counted
            ),
            default=own_start,
        )
