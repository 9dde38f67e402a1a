"""The deadline of a ZooKeeper session never lies behind what its leader may do."""

from __future__ import annotations

from millstream.registry.lease import LAG, MARGIN, Lease

TIMEOUT_S = 12.0
LAG_S = TIMEOUT_S * LAG
CERTAIN_S = TIMEOUT_S * (1 - MARGIN)


def connected(at: float = 100.0) -> Lease:
    lease = Lease()
    lease.connected(at, TIMEOUT_S)
    return lease


def test_a_connection_counts_from_when_it_was_begun() -> None:
    assert Lease().deadline == float("-inf")
    assert connected().deadline == 100 + CERTAIN_S


def test_an_answer_proves_what_was_sent_some_time_before_it() -> None:
    lease = connected()
    lease.answered(101, 1)
    assert lease.deadline == 100 + CERTAIN_S
    lease.answered(101 + LAG_S, 1)
    assert lease.deadline == 101 + CERTAIN_S
    lease.answered(101.5 + LAG_S, 1)
    assert lease.deadline == 101 + CERTAIN_S
    lease.answered(101 + 2 * LAG_S, 1)
    assert lease.deadline == 101 + LAG_S + CERTAIN_S


def test_who_was_paused_has_no_more_than_what_was_known_before() -> None:
    """The first answer after a pause may come while the leader counts down from before it."""
    lease = connected()
    for second in range(1, 20):
        lease.answered(100 + second, 1)
    before = lease.deadline
    assert before == 119 - LAG_S + CERTAIN_S
    lease.answered(119 + TIMEOUT_S - 1, 1)
    assert lease.deadline == 119 + CERTAIN_S


def test_signs_of_an_older_connection_prove_nothing() -> None:
    """The server that had them may have lost the leader before it passed them on."""
    lease = connected()
    lease.answered(105, 1)
    lease.connected(106, TIMEOUT_S)
    assert lease.deadline == 106 + CERTAIN_S
    lease.answered(106 + LAG_S, 1)
    lease.answered(107, lease.connection)
    assert lease.deadline == 106 + CERTAIN_S
    lease.answered(107 + LAG_S, lease.connection)
    assert lease.deadline == 107 + CERTAIN_S


def test_the_granted_time_out_counts() -> None:
    lease = Lease()
    lease.connected(100, 3.0)
    assert lease.deadline == 100 + 3 * (1 - MARGIN)


def test_an_end_is_final() -> None:
    lease = connected()
    lease.end()
    lease.answered(200, 1)
    lease.connected(200, TIMEOUT_S)
    assert lease.deadline == float("-inf")
