"""A compacted topic under faults, many seeds: its table is the one that was acknowledged, always."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.simulation.seeds import run_seeds
from tests.simulation.table import TableOutcome, simulate_table

pytestmark = pytest.mark.timeout(1800)

SEEDS = range(int(os.environ.get("MILLSTREAM_TABLE_SEEDS", "24")))


@pytest.fixture(scope="module")
def outcomes() -> list[TableOutcome]:
    return run_seeds(simulate_table, SEEDS)


def test_seeds_pass(outcomes: list[TableOutcome]) -> None:
    failed = [f"seed {outcome.seed}: {outcome.failure}" for outcome in outcomes if outcome.failure]
    assert not failed, "\n".join(failed)


def test_they_test_something(outcomes: list[TableOutcome]) -> None:
    for outcome in outcomes:
        assert outcome.counts["acks"] > 500, outcome.seed
        assert outcome.counts["tables"] > 20, outcome.seed
        assert outcome.counts["compactions"] > 20, outcome.seed
    total: Counter[str] = sum((outcome.counts for outcome in outcomes), Counter())
    assert total["swaps_finished_at_start"] > 3
    assert total["faults"] > 5 * len(outcomes)


def test_a_seed_does_the_same_again(outcomes: list[TableOutcome]) -> None:
    assert simulate_table(0).trace_hash == outcomes[0].trace_hash
