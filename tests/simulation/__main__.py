"""Runs seeds of the simulation: `--seeds 100` for many, `--seed 7 --trace` for one of them again."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

HASH_SEED = "0"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="how many seeds to run (20)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (0)")
    parser.add_argument("--seed", type=int, help="run this one alone")
    parser.add_argument("--trace", action="store_true", help="print what happened, with --seed")
    parser.add_argument("--lines", type=int, default=4000, help="how many lines of the trace to keep (4000)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many processes to use")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        # The order of sets of strings must not differ between a run and its replay.
        environment = {**os.environ, "PYTHONHASHSEED": HASH_SEED}
        arguments = [sys.executable, "-m", "tests.simulation", *sys.argv[1:]]
        os.execve(sys.executable, arguments, environment)
    if options.seed is not None:
        return _replay(options.seed, options.lines, options.trace)
    return _run_many(range(options.first, options.first + options.seeds), options.jobs)


def _replay(seed: int, lines: int, wants_trace: bool) -> int:
    from tests.simulation.one_broker import simulate

    outcome = simulate(seed, trace_lines=lines)
    if wants_trace:
        print("\n".join(outcome.trace))
    print(f"seed {seed}: trace {outcome.trace_hash}, {outcome.virtual_s:.0f} virtual seconds")
    print(f"counts {dict(outcome.counts)}")
    print(f"faults {dict(outcome.faults)}")
    for anomaly in outcome.anomalies:
        print(f"  {anomaly}")
    return 0 if outcome.is_good else 1


def _run_many(seeds: range, jobs: int) -> int:
    from tests.simulation.one_broker import simulate

    began = time.perf_counter()
    counts: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    failed: list[int] = []
    fewest_acks = 1 << 30
    with ProcessPoolExecutor(jobs) as executor:
        for outcome in executor.map(simulate, seeds):
            counts += outcome.counts
            faults += outcome.faults
            fewest_acks = min(fewest_acks, outcome.counts["acks"])
            if not outcome.is_good:
                failed.append(outcome.seed)
                print(f"seed {outcome.seed} FAILED; to see it again:")
                print(f"  python -m tests.simulation --seed {outcome.seed} --trace")
                for anomaly in outcome.anomalies[:5]:
                    print(f"  {anomaly.kind}: {anomaly.text.strip().splitlines()[-1]}")
                sys.stdout.flush()
    print(f"{len(seeds)} seeds in {time.perf_counter() - began:.1f} s, {len(failed)} failed: {failed}")
    print(f"counts {dict(counts)}, at least {fewest_acks} acks in each")
    print(f"faults {dict(faults)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
