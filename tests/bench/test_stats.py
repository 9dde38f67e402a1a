from __future__ import annotations

import random

import pytest
from bench.stats import Latencies, percentile, spread


def test_percentile_is_a_value_that_occurred() -> None:
    values = [float(value) for value in range(1, 1001)]
    assert percentile(values, 50) == 500
    assert percentile(values, 99) == 990
    assert percentile(values, 99.9) == 999
    assert percentile(values, 100) == 1000
    assert percentile([7.0], 0) == percentile([7.0], 99.9) == 7
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_spread_is_half_the_range_over_the_median() -> None:
    assert spread([90, 100, 110]) == pytest.approx(0.1)
    assert spread([5]) == 0
    assert spread([0, 0]) == 0


def test_weighted_latencies_equal_the_same_values_one_by_one() -> None:
    chance = random.Random(1)
    weighted, plain, flat = Latencies(), Latencies(), []
    for _ in range(500):
        nanoseconds, count = chance.randrange(1_000, 1_000_000), chance.randrange(1, 9)
        weighted.add(nanoseconds, count)
        plain.extend([nanoseconds] * count)
        flat += [nanoseconds / 1000] * count
    flat.sort()
    assert weighted.count == plain.count == len(flat)
    expected = [percentile(flat, percent) for percent in (0, 50, 99, 99.9, 100)]
    assert weighted.percentiles_us(0, 50, 99, 99.9, 100) == expected
    assert plain.percentiles_us(0, 50, 99, 99.9, 100) == expected
    assert weighted.summary_us()["p99.9_us"] == expected[3]


def test_no_latencies_is_an_error_not_a_zero() -> None:
    with pytest.raises(ValueError, match="no latencies"):
        Latencies().percentiles_us(50)
