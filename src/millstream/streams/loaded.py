"""What a worker of Spark keeps from task to task: what it has loaded, and memory."""

from __future__ import annotations

import gc
import os
from collections import Counter

FREED_BYTES = 31 << 20
"""The C library keeps less than twice of what was once freed in one piece, 32 MB at most."""

TIMES = 3
"""Most is loaded before the first task, and the rest by the first tasks, when they need it."""

_kept: Counter[tuple[int, str]] = Counter()


def keep_loaded(keeper: str) -> None:
    """Have this process keep what it has loaded by now: as often as TIMES for each that asks, since each has
    modules of its own. To be called before there is data.

    Spark's workers collect all garbage after each task. To look through all modules takes some 25 ms each
    time: more than the reading of a hundred thousand records, or a third of what it takes to write 60 MB.
    What is frozen is not looked through.

    And the C library gives freed memory back and then asks for it again, to have it cleared page by page:
    as much work as copying the data once more. Where a large piece was freed before, it keeps as much.
    """
    key = (os.getpid(), keeper)  # what a fork loads is its own
    if _kept[key] < TIMES:
        _kept[key] += 1
        gc.freeze()
        bytes(FREED_BYTES)
