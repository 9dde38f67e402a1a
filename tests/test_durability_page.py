"""Every promise in docs/durability.md names a test, and that test exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "durability.md").read_text(encoding="utf-8")


def test_the_named_tests_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)
    assert len(named) >= 12
    for path, function in named:
        source = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"^def {function}\(", source, re.MULTILINE), f"{path}::{function}"


def test_every_cell_names_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("|---")]
    promises = [row for row in rows if not row.startswith(("| acks", "| fault"))]
    assert len(promises) == 44
    for row in promises:
        assert re.search(r"\[\d\]|`tests/", row), row
    for number in set(re.findall(r": \[(\d)\]", PAGE)):
        assert f"\n[{number}] `tests/" in PAGE
