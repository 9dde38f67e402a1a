"""Places in the sink's protocol where a test can stop it: nothing happens unless the environment says so.

MILLSTREAM_SINK_FAILPOINTS names a folder. Where a process comes by a place whose name a file there has, it
renames the file to `NAME.hit`, writes its process id into it and stands still until it is killed, or until
the file is removed. So each file stops one process, once. MILLSTREAM_SINK_WITHOUT_DECISION leaves the
decisions out, to show that they are what makes writes exactly once.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

FOLDER = "MILLSTREAM_SINK_FAILPOINTS"
WITHOUT_DECISION = "MILLSTREAM_SINK_WITHOUT_DECISION"

LONGEST_SECONDS = 600.0
POLL_SECONDS = 0.02

WRITTEN = "written"
"""In a task's first attempt: all rows are written, its transaction open, Spark does not know it. That starts
one speculative attempt of a task, and no other if that stood still too."""
BEFORE_DECISION = "before-decision"
AFTER_DECISION = "after-decision"
AFTER_END = "after-end-"
"""With a number: so many transactions of the batch have been committed."""
BEFORE_RETURN = "before-return"
"""All is done, but Spark has not written its own commit log."""


def are_on() -> bool:
    return bool(os.environ.get(FOLDER))


def reached(name: str) -> None:
    """A place of that name is passed."""
    folder = os.environ.get(FOLDER)
    if not folder:
        return
    mine, hit = Path(folder, f"{name}.{os.getpid()}"), Path(folder, f"{name}.hit")
    try:
        Path(folder, name).rename(mine)
    except FileNotFoundError:
        return
    mine.write_text(str(os.getpid()))
    mine.rename(hit)
    deadline = time.monotonic() + LONGEST_SECONDS
    while hit.exists() and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)


def is_without_decision() -> bool:
    return bool(os.environ.get(WITHOUT_DECISION))
