"""What a leader thinks of its followers, by what their fetches tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.cluster.holder import Holder
from millstream.cluster.leadership import REFUSED_PAUSE_S, Follower, Leadership
from millstream.cluster.metadata import BrokerNode, PartitionState
from millstream.config.log import LogConfig
from millstream.controller.elections import Rules
from millstream.controller.isr import Member, Proposal, altered
from millstream.errors import IneligibleReplica, NotLeaderOrFollower, StaleBrokerEpoch
from tests.storage.logs import World, append, batch


class Case:
    """A leader, broker 1, with followers 2 and 3; its log has ten records, eight of them committed."""

    def __init__(self, path: Path, isr: list[int], *, min_isr: int = 1) -> None:
        self.world = World(path)
        self.log = self.world.open(LogConfig(min_insync_replicas=min_isr))
        for number in range(10):
            append(self.log, batch(b"%d" % number))
        self.alive: dict[int, int] = {2: 20, 3: 30}
        self.stopping: set[int] = set()
        self.high_watermark = 8
        holder = Holder(
            1,
            self.world.clock,
            lambda: 1 << 20,
            is_there=self._is_there,
            is_alive=lambda number, epoch: self._is_there(number, epoch) and number not in self.stopping,
        )
        self.leadership = Leadership(holder, self.log, PartitionState([1, 2, 3], isr, 1, 4, 7), 5)
        self.leadership.recount()

    def _is_there(self, number: int, epoch: int) -> bool:
        return number in self.alive and self.alive[number] <= epoch

    def pass_time(self, seconds: float) -> None:
        self.world.clock.ms += int(seconds * 1000)

    def fetch(self, number: int, offset: int, epoch: int | None = None) -> bool:
        follower = self.follower(number, epoch)
        return self.leadership.fetched(follower, offset, 0, self.high_watermark)

    def follower(self, number: int, epoch: int | None = None) -> Follower:
        return self.leadership.follower(number, self.alive[number] if epoch is None else epoch)


def test_a_follower_that_has_what_is_committed_is_proposed_once(tmp_path: Path) -> None:
    case = Case(tmp_path, [1, 2])
    assert not case.fetch(3, 7)
    assert case.fetch(3, 8)
    assert case.leadership.proposed == [1, 2, 3]
    assert case.leadership.proposal() == [(1, -1), (2, -1), (3, 30)]
    assert not case.fetch(3, 9)  # it is under way
    case.leadership.accepted([1, 2, 3], 8)
    assert (case.leadership.isr, case.leadership.version) == ([1, 2, 3], 8)
    assert not case.leadership.proposal()


def test_a_follower_must_have_what_its_leader_began_with(tmp_path: Path) -> None:
    case = Case(tmp_path, [1])
    case.high_watermark = 3
    assert not case.fetch(3, 4)
    assert case.fetch(3, 5)


def test_after_a_refusal_nothing_is_proposed_for_a_moment(tmp_path: Path) -> None:
    case = Case(tmp_path, [1])
    assert case.fetch(3, 10)
    case.leadership.refused(is_final=True)
    assert not case.fetch(3, 10)
    case.pass_time(REFUSED_PAUSE_S)
    assert case.leadership.expand(case.high_watermark)


def test_what_a_broker_had_in_an_earlier_life_does_not_count(tmp_path: Path) -> None:
    case = Case(tmp_path, [1])
    del case.alive[3]
    assert not case.fetch(3, 10, 30)
    case.alive[3] = 31
    assert not case.leadership.expand(case.high_watermark)
    follower = case.follower(3)  # it is back, and asks; what it has is not compared yet
    assert follower.end_offset == -1
    assert not case.leadership.expand(case.high_watermark)
    with pytest.raises(StaleBrokerEpoch):
        case.follower(3, 30)
    assert case.fetch(3, 9)
    assert case.leadership.proposal() == [(1, -1), (3, 31)]


def test_a_proposal_names_the_life_in_which_a_follower_was_fit(tmp_path: Path) -> None:
    """However often it is sent: one that begins again meanwhile may have lost everything."""
    case = Case(tmp_path, [1, 2])
    assert case.fetch(3, 10)
    case.alive[3] = 31
    assert not case.fetch(3, 0)
    assert case.leadership.proposal() == [(1, -1), (2, -1), (3, 30)]
    proposal = Proposal(1, 4, 7, [Member(*each) for each in case.leadership.proposal()])
    state = PartitionState([1, 2, 3], [1, 2], 1, 4, 7)
    with pytest.raises(IneligibleReplica):
        altered(state, proposal, {1: 10, 2: 20, 3: 31}, frozenset(), Rules(2))
    case.leadership.refused(is_final=True)
    case.pass_time(REFUSED_PAUSE_S)
    assert not case.fetch(3, 7)
    assert case.fetch(3, 10)
    assert case.leadership.proposal() == [(1, -1), (2, -1), (3, 31)]


def test_who_was_refused_counts_until_no_earlier_copy_of_the_proposal_can_let_it_in(tmp_path: Path) -> None:
    case = Case(tmp_path, [1, 2])
    leadership = case.leadership
    assert case.fetch(3, 9)
    case.fetch(2, 10)
    leadership.refused(is_final=False)
    assert leadership.committed(8, 10) == 9
    case.pass_time(REFUSED_PAUSE_S)
    assert leadership.expand(case.high_watermark)
    assert leadership.proposed == [1, 2], "once this is written, what was written before is overtaken"
    leadership.refused(is_final=True)
    assert leadership.committed(8, 10) == 9
    case.pass_time(REFUSED_PAUSE_S)
    assert leadership.expand(case.high_watermark)
    leadership.accepted([1, 2], 8)
    assert leadership.committed(8, 10) == 10


def test_records_are_deleted_where_a_broker_that_stops_is_still_in_sync(tmp_path: Path) -> None:
    """It may be the next leader, if nobody could take it out of the ISR."""
    case = Case(tmp_path, [1, 2])
    leadership = case.leadership
    for number in (2, 3):
        leadership.fetched(case.follower(number), 10, 4, case.high_watermark)
    assert leadership.low_watermark(6) == 4
    leadership.fetched(case.follower(2), 10, 5, case.high_watermark)
    case.stopping = {2, 3}
    assert leadership.low_watermark(6) == 5
    leadership.fetched(case.follower(2), 10, 6, case.high_watermark)
    assert leadership.low_watermark(6) == 6
    case.alive[2] = 21  # what it said in its earlier life does not count
    assert leadership.low_watermark(6) == -1
    del case.alive[2]
    assert leadership.low_watermark(6) == 6


def test_records_are_deleted_where_a_broker_is_eligible_that_stops_or_is_cut_off(tmp_path: Path) -> None:
    """Too few are in sync, so it may lead once it is heard of again."""
    case = Case(tmp_path, [1], min_isr=2)
    case.stopping = {2}
    for number, start in ((2, 4), (3, 6)):
        case.leadership.fetched(case.follower(number), 10, start, case.high_watermark)
    assert case.leadership.low_watermark(6) == 4
    del case.alive[2]
    assert case.leadership.low_watermark(6) == 6


def test_strangers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotLeaderOrFollower):
        Case(tmp_path, [1]).leadership.follower(4, 40)


def test_a_follower_that_lags_leaves_and_does_not_come_back_by_itself(tmp_path: Path) -> None:
    case = Case(tmp_path, [1, 2, 3])
    for number in (2, 3):
        case.fetch(number, 10)
    append(case.log, batch(b"more"))
    case.pass_time(29)
    case.fetch(2, 11)
    assert not case.leadership.shrink()
    case.pass_time(2)
    assert case.leadership.shrink()
    assert case.leadership.proposed == [1, 2]
    case.leadership.accepted([1, 2], 8)
    case.high_watermark = 10  # it has all that is committed, but does not fetch
    assert not case.leadership.expand(case.high_watermark)
    assert case.fetch(3, 10)


def test_a_follower_that_need_not_ask_is_in_sync_for_as_long_as_nothing_comes(tmp_path: Path) -> None:
    case = Case(tmp_path, [1, 2])
    case.fetch(2, 10)
    for _ in range(20):
        case.pass_time(15)
        assert not case.leadership.shrink()
    append(case.log, batch(b"more"))
    case.pass_time(14)
    assert not case.leadership.shrink()
    case.pass_time(17)
    assert case.leadership.shrink()


def test_a_follower_that_is_always_one_fetch_behind_is_in_sync(tmp_path: Path) -> None:
    case = Case(tmp_path, [1, 2])
    case.fetch(2, 10)
    end = 10
    for _ in range(20):
        for _ in range(5):
            append(case.log, batch(b"more"))
        case.pass_time(10)
        case.fetch(2, end)
        end += 5
        assert not case.leadership.shrink()


def test_those_about_to_join_are_waited_for_until_they_lag_or_die(tmp_path: Path) -> None:
    case = Case(tmp_path, [1])
    leadership = case.leadership
    leadership.refused(is_final=True)  # so that nobody is proposed yet
    assert leadership.committed(8, 10) == 10
    case.fetch(3, 10)
    append(case.log, batch(b"more"))
    assert leadership.committed(8, 11) == 10
    case.pass_time(31)
    leadership.recount()
    assert leadership.committed(8, 11) == 11
    leadership.refused(is_final=True)
    case.fetch(3, 11)
    assert leadership.committed(8, 12) == 11
    del case.alive[3]
    leadership.recount()
    assert leadership.committed(8, 12) == 12


def test_nobody_waits_for_one_that_came_back_before_it_has_caught_up(tmp_path: Path) -> None:
    """It was caught up a moment ago, in its earlier life, and may have to copy everything now."""
    case = Case(tmp_path, [1])
    leadership = case.leadership
    leadership.refused(is_final=True)  # so that nobody is proposed yet
    case.fetch(3, 10)
    case.alive[3] = 31
    case.fetch(3, 0)
    leadership.recount()
    assert leadership.committed(8, 11) == 11
    case.fetch(3, 10)
    append(case.log, batch(b"more"))
    assert leadership.committed(8, 11) == 10, "it has what there was when it last asked"


def test_news_of_the_same_epoch_are_taken_in_order(tmp_path: Path) -> None:
    case = Case(tmp_path, [1, 2])
    case.fetch(3, 10)
    assert case.leadership.proposed == [1, 2, 3]
    case.leadership.update(PartitionState([1, 2, 3], [1, 2], 1, 4, 7))
    assert case.leadership.proposed == [1, 2, 3]  # it says nothing new
    case.leadership.update(PartitionState([1, 2, 3, 4], [1], 1, 4, 8))
    assert case.leadership.isr == [1]
    assert not case.leadership.proposal()
    assert set(case.leadership.followers) == {2, 3, 4}
    case.leadership.update(PartitionState([1, 2, 3], [1, 2, 3], 1, 4, 6))
    assert case.leadership.isr == [1]


def test_the_nearest_replica_is_one_in_sync_that_has_the_records(tmp_path: Path) -> None:
    case = Case(tmp_path, [1, 2, 3])
    racks = {1: "a", 2: "b", 3: "b"}
    brokers = {number: BrokerNode(number, (), rack) for number, rack in racks.items()}
    case.fetch(2, 8)
    case.fetch(3, 10)
    assert case.leadership.nearest("b", brokers, 4) == 3
    assert case.leadership.nearest("b", brokers, 11) == -1
    assert case.leadership.nearest("a", brokers, 4) == -1
    assert case.leadership.nearest("c", brokers, 4) == -1
    case.leadership.accepted([1, 2], 8)
    assert case.leadership.nearest("b", brokers, 4) == 2


def test_who_is_not_let_in_is_not_waited_for(tmp_path: Path) -> None:
    """Its disk may be full: it will not have the next record for a long time."""
    case = Case(tmp_path, [1])
    leadership = case.leadership
    case.fetch(3, 10)
    assert leadership.proposed == [1, 3]
    append(case.log, batch(b"more"))
    assert leadership.committed(8, 11) == 10
    leadership.refused(is_final=True)
    assert leadership.committed(8, 11) == 11
    case.fetch(3, 10)
    assert leadership.committed(8, 11) == 11


def test_who_was_not_let_in_and_gets_no_further_is_not_waited_for_later(tmp_path: Path) -> None:
    """Such as one whose disk is full: it has all that there was when it was refused, and asks on and on."""
    case = Case(tmp_path, [1, 2])
    leadership = case.leadership
    case.fetch(2, 10)
    assert case.fetch(3, 10)
    leadership.refused(is_final=True)
    append(case.log, batch(b"more"))
    case.fetch(2, 11)
    assert leadership.committed(8, 11) == 11
    case.high_watermark = 11
    for _ in range(5):
        case.pass_time(REFUSED_PAUSE_S)
        assert not case.fetch(3, 10)
        assert leadership.committed(11, 12) == 11, "broker 2 is waited for"
        case.follower(2).end_offset = 12
        assert leadership.committed(11, 12) == 12, "nobody else is"
        case.follower(2).end_offset = 11
    assert not case.fetch(3, 10)
    assert case.fetch(3, 11), "it got on"


def test_whom_the_controller_put_out_is_not_waited_for_until_it_has_caught_up_anew(tmp_path: Path) -> None:
    case = Case(tmp_path, [1, 2, 3])
    leadership = case.leadership
    case.fetch(2, 10)
    case.fetch(3, 10)
    assert leadership.committed(8, 10) == 10
    leadership.update(PartitionState([1, 2, 3], [1, 2], 1, 4, 8))  # its disk is full, say
    append(case.log, batch(b"more"))
    case.fetch(2, 11)
    assert leadership.committed(10, 11) == 11
    case.high_watermark = 11
    append(case.log, batch(b"still more"))
    for _ in range(3):
        assert not case.fetch(3, 10)
        case.fetch(2, 12)
        assert leadership.committed(11, 12) == 12
    assert case.fetch(3, 12)
    assert leadership.proposed == [1, 2, 3]
