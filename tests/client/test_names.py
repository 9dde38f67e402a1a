"""What `millstream` exports, and that type checkers see all of it."""

from __future__ import annotations

import re
from pathlib import Path

import millstream


def test_every_name_is_there_and_told_to_type_checkers() -> None:
    source = Path(millstream.__file__).read_text(encoding="utf-8")
    told = set(re.findall(r"^    from [\w.]+ import (\w+) as \1$", source, re.MULTILINE))
    assert told == set(millstream.__all__)
    for name in millstream.__all__:
        assert getattr(millstream, name).__name__ == name


def test_errors_are_of_one_family() -> None:
    errors = [
        each
        for each in (getattr(millstream, name) for name in millstream.__all__)
        if isinstance(each, type) and issubclass(each, Exception)
    ]
    assert len(errors) > 10
    assert all(issubclass(error, millstream.MillstreamError) for error in errors)
