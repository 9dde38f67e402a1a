"""A broker for tests of groups, which lets a group begin at once."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from millstream.testing.broker import Broker
from tests.behaviour.groups.steps import LOADING, describe, find
from tests.conftest import OUTSIDE, Name
from tests.wire import Wire


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    if OUTSIDE:
        yield OUTSIDE
        return
    with Broker() as broker:
        yield broker.bootstrap


@pytest.fixture
def wire(bootstrap: str) -> Iterator[Wire]:
    with Wire(bootstrap) as connection:
        yield connection


@pytest.fixture
def group(wire: Wire, new_name: Name) -> str:
    """A name whose coordinator is in service."""
    name = new_name("group")
    find(wire, name)
    deadline = time.monotonic() + 20
    while describe(wire, name, 5).error_code in LOADING:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return name
