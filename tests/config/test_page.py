"""The committed page is the one that the keys make."""

from __future__ import annotations

from pathlib import Path

from millstream.config.broker_keys import BROKER_KEYS
from millstream.config.page import page
from millstream.config.topic import TOPIC_KEYS

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_committed_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "run: .venv/bin/python -m millstream.config.page > docs/configuration.md"
    )


def test_every_key_is_on_the_page_once() -> None:
    rows = [line.split("`")[1] for line in page().splitlines() if line.startswith("| `")]
    expected = [
        name for keys in (TOPIC_KEYS, BROKER_KEYS) for name, key in keys.items() if not key.is_internal
    ]
    assert sorted(rows) == sorted(expected)


def test_tables_have_as_many_cells_as_columns() -> None:
    for line in page().splitlines():
        if line.startswith("| "):
            assert line.replace("\\|", "").count("|") == 6, line
