"""`make soak` runs the long form of every test that has one."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
NUMBER = re.compile(r'(?:int|float)\(os\.environ\.get\("(MILLSTREAM_\w+)"')


def test_every_test_that_takes_a_number_is_there_with_it() -> None:
    taken: dict[str, str] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if path.parent.name != "simulation":  # `make simulate` is for those
            for name in NUMBER.findall(path.read_text(encoding="utf-8")):
                taken[name] = str(path.relative_to(ROOT))
    assert set(re.findall(r"^soak: export (\w+) \?= \d+$", MAKEFILE, re.MULTILINE)) == taken.keys()
    (files,) = re.findall(r"^SOAK_TESTS := ((?:.*\\\n)*.*)", MAKEFILE, re.MULTILINE)
    assert set(files.replace("\\", "").split()) == set(taken.values())


def test_a_number_given_by_hand_wins() -> None:
    words = [
        "make",
        "--dry-run",
        "--print-data-base",
        "soak",
        "MILLSTREAM_CRASH_ROUNDS=2",
        "ARGS=tests/crash",
    ]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "-m pytest --timeout 3600 tests/crash\n" in done.stdout
    assert "MILLSTREAM_CRASH_ROUNDS = 2\n" in done.stdout
