"""docs/api/producer.md names every option with its default, and every method."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path

from millstream import AsyncProducer, Producer
from millstream.client.producer_settings import ProducerOptions, ProducerSettings

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "api" / "producer.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", PAGE.split("## Options")[1], re.MULTILINE))


def test_options() -> None:
    names = {field.name for field in fields(ProducerSettings)}
    assert set(ProducerOptions.__annotations__) == names
    assert set(ROWS) == names | {"bootstrap"}


def test_defaults() -> None:
    for field in fields(ProducerSettings):
        shown = ROWS[field.name]
        if shown.isdecimal():
            assert int(shown) == field.default, field.name
        elif shown.startswith("`"):
            assert shown.strip("`").strip('"') == str(field.default), field.name


def test_methods() -> None:
    for kind in (Producer, AsyncProducer):
        for name, member in inspect.getmembers(kind):
            if not name.startswith("_") and (callable(member) or isinstance(member, property)):
                if name in ("start", "settings", "serializers"):
                    continue
                assert re.search(rf"`{name}\b", PAGE), f"{kind.__name__}.{name}"
