"""Committed offsets: who may commit, what is kept, what transactions leave, what expires."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millstream.coordinator.groups.commits import Caller, Commit, Errors
from millstream.coordinator.shard import Producer, Result
from millstream.errors import (
    FencedInstanceId,
    GroupIdNotFound,
    GroupSubscribedToTopic,
    IllegalGeneration,
    KafkaError,
    NonEmptyGroup,
    NotCoordinator,
    OffsetMetadataTooLarge,
    RebalanceInProgress,
    UnknownMemberId,
)
from millstream.model import TopicPartition
from millstream.protocol.messages import ConsumerProtocolSubscription
from tests.coordinator.groups.host import Host

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)
U0 = TopicPartition("u", 0)
MINUTE_MS = 60_000


def commit(host: Host, caller: Caller | None = None, group: str = "g", **options: Any) -> Errors:
    """Commit offset 5 of T0, or what `commits` says."""
    commits = options.pop("commits", [Commit(T0, 5, 0, "")])
    errors = host.apply(host.shard.commits.commit(group, caller or Caller(), commits, **options))
    assert isinstance(errors, dict)
    return errors


def refusal(work: Callable[[], object]) -> type[KafkaError]:
    with pytest.raises(KafkaError) as caught:
        work()
    return type(caught.value)


def offset(host: Host, partition: TopicPartition = T0, group: str = "g") -> int | None:
    committed = host.shard.commits.committed(group, partition)
    return None if committed is None else committed.offset


def subscription(*topics: str) -> bytes:
    return b"\x00\x01" + ConsumerProtocolSubscription(topics=list(topics)).encode(1)


def member(host: Host, group: str = "g", **options: Any) -> Caller:
    """A stable group of one."""
    member_id, join = host.enter(group, **options)
    host.settle(group, [join])
    return Caller(1, member_id or join.result().member_id, options.get("instance"))


def test_somebody_without_a_group_commits() -> None:
    host = Host()
    assert commit(host, commits=[Commit(T0, 5, 3, "note"), Commit(U0, 7, -1, "")]) == {}
    found = host.shard.commits.committed("g", T0)
    assert found is not None
    assert (found.offset, found.leader_epoch, found.metadata) == (5, 3, "note")
    assert sorted(host.shard.commits.all_partitions("g")) == [T0, U0]
    group = host.shard.find("g")
    assert group is not None
    assert (group.state.value, group.protocol_type) == ("Empty", None)
    assert [each.group_id for each in host.shard] == ["g"]


def test_a_member_commits_in_its_generation_only() -> None:
    host = Host()
    caller = member(host)
    assert commit(host, caller) == {}
    assert refusal(lambda: commit(host, caller._replace(generation=2))) is IllegalGeneration
    assert refusal(lambda: commit(host, caller._replace(generation=0))) is IllegalGeneration
    assert refusal(lambda: commit(host, caller._replace(generation=-1))) is IllegalGeneration
    assert refusal(lambda: commit(host, caller._replace(member_id="who"))) is UnknownMemberId
    assert refusal(lambda: commit(host, Caller())) is UnknownMemberId


def test_a_generation_of_a_group_that_is_not_there() -> None:
    host = Host()
    assert refusal(lambda: commit(host, Caller(1, "m"), version=8)) is IllegalGeneration
    assert refusal(lambda: commit(host, Caller(1, "m"), version=9)) is GroupIdNotFound
    assert refusal(lambda: commit_pending(host, caller=Caller(1, "m"))) is IllegalGeneration


def test_a_fenced_member_does_not_commit() -> None:
    host = Host()
    join = host.join("g", instance="a")
    host.settle("g", [join])
    assert refusal(lambda: commit(host, Caller(1, "former", "a"))) is FencedInstanceId
    assert commit(host, Caller(1, join.result().member_id, "a")) == {}


def test_commits_during_a_rebalance() -> None:
    host = Host()
    member_id, first = host.enter("g")
    host.settle("g", [first])
    host.enter("g")
    assert commit(host, Caller(1, member_id)) == {}  # what it still has it may commit
    host.join("g", member_id)
    assert refusal(lambda: commit(host, Caller(1, member_id))) is IllegalGeneration
    assert refusal(lambda: commit(host, Caller(2, member_id))) is RebalanceInProgress


def test_an_admin_commits_for_an_empty_group() -> None:
    host = Host()
    caller = member(host)
    host.leave("g", (caller.member_id, None))
    assert commit(host) == {}
    assert refusal(lambda: commit(host, caller)) is UnknownMemberId


def test_committing_is_a_sign_of_life() -> None:
    host = Host()
    caller = member(host, session_ms=10_000)
    for _ in range(5):
        host.wait(9_000)
        commit(host, caller)
    assert host.heartbeat("g", caller.member_id, 1) == 0


def test_long_notes_are_refused_one_by_one() -> None:
    host = Host({"offset.metadata.max.bytes": "10"})
    errors = commit(host, commits=[Commit(T0, 1, -1, "x" * 10), Commit(T1, 2, -1, "x" * 11)])
    assert errors == {T1: OffsetMetadataTooLarge.code}
    assert (offset(host, T0), offset(host, T1)) == (1, None)


def test_notes_that_no_entry_could_hold_are_refused() -> None:
    host = Host({"offset.metadata.max.bytes": "1000000"})
    errors = commit(host, commits=[Commit(T0, 1, -1, "x" * 32_767), Commit(T1, 2, -1, "ü" * 16_384)])
    assert errors == {T1: OffsetMetadataTooLarge.code}
    host.reload(NotCoordinator())
    assert (offset(host, T0), offset(host, T1)) == (1, None)


# Deleting


def test_offsets_are_deleted_where_nobody_reads() -> None:
    host = Host()
    assert refusal(lambda: host.shard.commits.delete("g", [T0])) is GroupIdNotFound
    caller = member(host, protocols={"range": subscription("t")})
    commit(host, caller, commits=[Commit(T0, 1, -1, ""), Commit(U0, 2, -1, "")])
    errors = host.apply(host.shard.commits.delete("g", [T0, U0, TopicPartition("u", 9)]))
    assert errors == {T0: GroupSubscribedToTopic.code}
    assert (offset(host, T0), offset(host, U0)) == (1, None)
    host.leave("g", (caller.member_id, None))
    assert host.apply(host.shard.commits.delete("g", [T0])) == {}
    assert offset(host) is None


def test_offsets_of_a_live_group_of_another_kind_are_not_deleted() -> None:
    host = Host()
    member(host, protocol_type="connect", protocols={"default": b""})
    assert refusal(lambda: host.shard.commits.delete("g", [T0])) is NonEmptyGroup


def test_a_group_without_members_is_deleted_with_its_offsets() -> None:
    host = Host()
    caller = member(host)
    commit(host, caller)
    assert refusal(lambda: host.shard.delete_group("g")) is NonEmptyGroup
    host.leave("g", (caller.member_id, None))
    host.apply(host.shard.delete_group("g"))
    assert list(host.shard) == []
    assert offset(host) is None
    assert refusal(lambda: host.shard.delete_group("g")) is GroupIdNotFound
    host.reload(NotCoordinator())
    assert list(host.shard) == []


def test_offsets_go_with_their_topic() -> None:
    host = Host()
    commit(host, commits=[Commit(T0, 1, -1, ""), Commit(T1, 1, -1, ""), Commit(U0, 2, -1, "")])
    commit(host, group="h", commits=[Commit(T0, 1, -1, "")])
    host.apply(host.shard.delete_topic("t"))
    host.run_timers()
    assert (offset(host, T0), offset(host, T1), offset(host, U0)) == (None, None, 2)
    assert host.shard.find("h") is None


def test_offsets_go_with_their_topic_when_the_log_takes_that_later() -> None:
    """Else a topic made anew under the old name would be read from the old positions on."""
    host = Host()
    commit(host, commits=[Commit(T0, 1, -1, "")])
    host.apply(host.shard.delete_topic("t"))
    commit(host, group="h", commits=[Commit(T0, 7, -1, "")])  # in the topic made anew
    host.refuses = NotCoordinator()
    host.run_timers()
    assert offset(host, T0) == 1
    host.refuses = None
    host.wait(1000)
    assert offset(host, T0) is None
    assert host.shard.commits.committed("h", T0) is not None


@pytest.mark.parametrize("is_reloaded", [False, True])
@pytest.mark.parametrize("jump_ms", [-3_600_000, 3_600_000])
def test_which_topic_a_commit_was_for_no_clock_tells(jump_ms: int, is_reloaded: bool) -> None:
    """It may be set between a commit and the topic's end, or be that of a coordinator that was behind."""
    host = Host()
    commit(host, commits=[Commit(T0, 1, -1, "")])
    host.clock.jumped_ms = jump_ms
    if is_reloaded:
        host.reload(NotCoordinator())
    host.apply(host.shard.delete_topic("t"))
    host.clock.jumped_ms = 0
    commit(host, group="h", commits=[Commit(T0, 7, -1, "")])
    host.clock.jumped_ms = jump_ms
    host.run_timers()
    assert (offset(host), offset(host, group="h")) == (None, 7)
    commit(host, commits=[Commit(T0, 2, -1, "")])
    host.reload(NotCoordinator())
    assert (offset(host), offset(host, group="h")) == (2, 7)


def test_a_topic_that_goes_again_takes_all_that_was_committed_between() -> None:
    host = Host()
    commit(host, commits=[Commit(T0, 1, -1, ""), Commit(U0, 1, -1, "")])
    host.apply(host.shard.delete_topic("t"))
    commit(host, commits=[Commit(T0, 2, -1, "")])
    host.refuses = NotCoordinator()
    host.apply(host.shard.delete_topic("u"))
    host.run_timers()
    host.refuses = None
    assert (offset(host, T0), offset(host, U0)) == (2, 1)
    host.apply(host.shard.delete_topic("t"))
    commit(host, group="h")
    host.run_timers()
    assert (offset(host, T0), offset(host, U0), offset(host, group="h")) == (None, None, 5)
    commit(host)
    host.apply(host.shard.delete_topic("u"))
    host.run_timers()
    assert offset(host) == 5


# Transactions


def commit_pending(
    host: Host, producer: int = 1, at: int = 9, caller: Caller | None = None, group: str = "g"
) -> Errors:
    errors = host.apply(
        host.shard.commits.commit_in_transaction(
            group, caller or Caller(), Producer(producer, 0), [Commit(T0, at, -1, "txn")]
        )
    )
    assert isinstance(errors, dict)
    return errors


def test_offsets_of_a_transaction_count_when_it_is_committed() -> None:
    host = Host()
    commit(host)
    commit_pending(host)
    assert offset(host) == 5
    assert host.shard.commits.is_unstable("g", T0)
    host.end_transaction(Producer(1, 0), is_commit=True)
    assert offset(host) == 9
    assert not host.shard.commits.is_unstable("g", T0)


def test_offsets_of_an_aborted_transaction_never_count() -> None:
    host = Host()
    commit_pending(host)
    assert host.shard.find("g") is not None
    assert host.shard.commits.all_partitions("g") == [T0]
    host.end_transaction(Producer(1, 0), is_commit=False)
    assert host.shard.find("g") is None
    host.end_transaction(Producer(1, 0), is_commit=True)  # of another transaction, without offsets
    assert offset(host) is None


def test_what_was_committed_later_stays() -> None:
    host = Host()
    commit_pending(host, at=9)
    commit(host)
    host.end_transaction(Producer(1, 0), is_commit=True)
    assert offset(host) == 5


def test_two_transactions_on_one_partition() -> None:
    host = Host()
    commit_pending(host, producer=1, at=1)
    commit_pending(host, producer=2, at=2)
    host.end_transaction(Producer(2, 0), is_commit=True)
    assert host.shard.commits.is_unstable("g", T0)
    host.end_transaction(Producer(1, 0), is_commit=True)
    assert not host.shard.commits.is_unstable("g", T0)
    assert offset(host) == 2


def test_offsets_of_an_open_transaction_go_with_their_topic() -> None:
    host = Host()
    commit_pending(host, at=9)
    host.wait(10)
    host.apply(host.shard.delete_topic("t"))
    host.run_timers()
    host.wait(10)
    commit_pending(host, producer=2, at=1)  # in the topic made anew
    host.end_transaction(Producer(1, 0), is_commit=True)
    assert offset(host) is None
    host.end_transaction(Producer(2, 0), is_commit=True)
    assert offset(host) == 1
    host.reload(NotCoordinator())
    assert offset(host) == 1


def test_a_topic_s_end_takes_nothing_from_a_transaction_in_the_topic_made_anew() -> None:
    host = Host()
    commit(host)
    host.apply(host.shard.delete_topic("t"))
    commit_pending(host, at=1)
    host.run_timers()
    host.end_transaction(Producer(1, 0), is_commit=True)
    assert offset(host) == 1


def test_a_deleted_offset_is_not_brought_back_by_a_transaction_that_was_open() -> None:
    host = Host()
    commit_pending(host)
    host.apply(host.shard.commits.delete("g", [T0, T1]))
    host.end_transaction(Producer(1, 0), is_commit=True)
    assert offset(host) is None
    host.reload(NotCoordinator())
    assert offset(host) is None


def test_a_transactional_commit_checks_the_member() -> None:
    host = Host()
    caller = member(host)
    assert commit_pending(host, caller=caller) == {}
    assert refusal(lambda: commit_pending(host, caller=caller._replace(generation=7))) is IllegalGeneration
    assert refusal(lambda: commit_pending(host, caller=caller._replace(member_id="x"))) is UnknownMemberId
    assert commit_pending(host, caller=Caller()) == {}  # old producers tell neither


def test_open_transactions_survive_a_move() -> None:
    host = Host()
    commit_pending(host)
    host.reload(NotCoordinator())
    assert host.shard.commits.is_unstable("g", T0)
    host.end_transaction(Producer(1, 0), is_commit=True)
    host.reload(NotCoordinator())
    assert offset(host) == 9
    assert not host.shard.commits.is_unstable("g", T0)


# Expiring

KEEP_AN_HOUR = {"offsets.retention.minutes": "60", "offsets.retention.check.interval.ms": "600000"}


def test_a_simple_group_s_offsets_expire_after_the_last_commit() -> None:
    host = Host(KEEP_AN_HOUR)
    commit(host)
    host.wait(50 * MINUTE_MS)
    commit(host, commits=[Commit(T1, 6, -1, "")])
    host.wait(20 * MINUTE_MS)
    assert (offset(host, T0), offset(host, T1)) == (None, 6)
    host.wait(60 * MINUTE_MS)
    assert list(host.shard) == []
    host.reload(NotCoordinator())
    assert list(host.shard) == []


def test_a_group_s_offsets_expire_after_it_became_empty() -> None:
    host = Host(KEEP_AN_HOUR)
    caller = member(host, session_ms=1_000_000, protocols={"range": subscription("t")})
    commit(host, caller, commits=[Commit(T0, 5, -1, ""), Commit(U0, 6, -1, "")])
    for _ in range(20):
        host.wait(10 * MINUTE_MS)
        host.heartbeat("g", caller.member_id, 1)
    assert offset(host, T0) == 5
    assert offset(host, U0) is None  # nobody reads that topic
    host.leave("g", (caller.member_id, None))
    host.reload(NotCoordinator())
    host.wait(55 * MINUTE_MS)
    assert offset(host, T0) == 5
    host.wait(20 * MINUTE_MS)
    assert offset(host, T0) is None
    assert host.shard.find("g") is None


def test_an_expiry_of_its_own_rules() -> None:
    host = Host(KEEP_AN_HOUR)
    commit(host, retention_ms=15 * MINUTE_MS, version=2)
    commit(host, group="h", retention_ms=600 * MINUTE_MS, version=2)
    host.reload(NotCoordinator())
    host.wait(25 * MINUTE_MS)
    assert offset(host) is None
    host.wait(300 * MINUTE_MS)
    assert offset(host, group="h") == 5


@pytest.mark.parametrize("retention_ms", [(1 << 63) - 1, (1 << 63) - 1000])
def test_an_expiry_of_its_own_may_be_never(retention_ms: int) -> None:
    host = Host(KEEP_AN_HOUR)
    commit(host, retention_ms=retention_ms, version=2)
    host.reload(NotCoordinator())
    host.wait(300 * MINUTE_MS)
    assert offset(host) == 5


def test_an_open_transaction_keeps_an_offset() -> None:
    host = Host(KEEP_AN_HOUR)
    commit(host)
    commit_pending(host)
    host.wait(200 * MINUTE_MS)
    assert offset(host) == 5
    host.end_transaction(Producer(1, 0), is_commit=False)
    host.wait(20 * MINUTE_MS)
    assert list(host.shard) == []


def test_many_groups_expire_in_small_steps() -> None:
    host = Host(KEEP_AN_HOUR)
    sizes: list[int] = []
    for number in range(7000):
        commit(host, group=f"g{number}")
    original = host.apply

    def counted(result: Result[Any]) -> Any:
        sizes.append(len(result.entries))
        return original(result)

    host.apply = counted  # type: ignore[method-assign]
    host.wait(80 * MINUTE_MS)
    assert list(host.shard) == []
    assert sum(sizes) == 7000
    assert max(sizes) <= 2000


def test_what_is_committed_in_a_group_that_has_long_been_empty_is_kept() -> None:
    """An admin sets where the group is to go on from, shortly before its old offsets expire."""
    host = Host({"offsets.retention.minutes": "10", "offsets.retention.check.interval.ms": "60000"})
    member_id, joined = host.enter("g")
    host.settle("g", [joined])
    commit(host, caller=Caller(1, member_id), commits=[Commit(T0, 1, -1, ""), Commit(T1, 1, -1, "")])
    host.leave("g", (member_id, None))
    host.wait(590_000)
    commit(host, commits=[Commit(T0, 7, -1, "")])
    host.wait(300_000)
    assert (offset(host, T0), offset(host, T1)) == (7, None)
    host.wait(400_000)
    assert host.shard.find("g") is None
