"""A cluster under faults, many seeds: nothing acknowledged is lost, doubled or reordered, and it heals.

Guards the rules of replication and of coordinators that move: what is acknowledged with acks=all outlives
every fault that the durability table allows, replicas are byte-equal, transactions are whole.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.simulation.cluster import DURATION_S, simulate_cluster
from tests.simulation.cluster_mutations import MUTATIONS, seeds_until_caught
from tests.simulation.one_broker import Outcome

pytestmark = pytest.mark.timeout(1800)

SEEDS = range(int(os.environ.get("MILLSTREAM_CLUSTER_SEEDS", "100")))
MUTATION_SEEDS = 200


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    with ProcessPoolExecutor(os.cpu_count()) as executor:
        return list(executor.map(simulate_cluster, SEEDS))


def test_seeds_pass(outcomes: list[Outcome]) -> None:
    failed = [
        f"seed {outcome.seed}: {'; '.join(map(str, outcome.anomalies[:3]))}\n"
        f"  to see it again: python -m tests.simulation cluster --seed {outcome.seed} --trace"
        for outcome in outcomes
        if not outcome.is_good
    ]
    assert not failed, "\n".join(failed)


def test_each_seed_tests_something(outcomes: list[Outcome]) -> None:
    for outcome in outcomes:
        assert outcome.virtual_s >= DURATION_S, outcome.seed
        assert outcome.faults.total() >= 5, outcome.seed
    assert sum(outcome.counts["acks"] for outcome in outcomes) >= 1000 * len(outcomes)


def test_together_they_test_everything(outcomes: list[Outcome]) -> None:
    """A simulation that stopped testing is seen."""
    counts: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for outcome in outcomes:
        counts += outcome.counts
        faults += outcome.faults
    for name in (
        "elections",
        "truncations",
        "isr_shrinks",
        "isr_changes",
        "sessions_lost",
        "fenced",
        "aborted",
        "committed",
        "asked",
        "client crashes",
        "client zombies",
        "offset_commits",
        "outputs",
    ):
        assert counts[name] > 0, name
    for name in (
        "kill",
        "kill all",
        "kill beside a cut",
        "kill inside a disk call",
        "power loss",
        "clean restart",
        "pause",
        "cut off",
        "split",
        "cut off from the registry",
        "lose connections",
        "lose session",
        "delay",
        "slow disk",
        "clock jump",
    ):
        assert faults[name] > 0, name


@pytest.fixture(scope="module")
def seeds_needed() -> dict[str, int]:
    with ProcessPoolExecutor(os.cpu_count()) as executor:
        needed = executor.map(seeds_until_caught, MUTATIONS, [MUTATION_SEEDS] * len(MUTATIONS))
        return dict(zip(MUTATIONS, needed, strict=True))


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_broken_cluster_is_caught(mutation: str, seeds_needed: dict[str, int]) -> None:
    assert seeds_needed[mutation] <= MUTATION_SEEDS


def test_equal_seed_equal_trace() -> None:
    """Twice, in processes whose strings hash differently."""
    program = (
        "from tests.simulation.cluster import simulate_cluster as run;"
        "print(run(3, duration_s=15.0).trace_hash)"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1")
    }
    assert len(hashes) == 1
