"""pytest fixtures: a broker for the test session, and a maker of topics for a test.

    def test_orders(millstream_broker, millstream_topic):
        topic = millstream_topic(partitions=3)
        producer = SomeKafkaClient(millstream_broker.bootstrap)

Override the fixture `millstream_config` in a conftest.py to give the broker other settings. pytest
loads this module in every project where Millstream is installed, so it imports nothing of it until a
fixture is used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from millstream.testing.broker import Broker


@pytest.fixture(scope="session")
def millstream_config() -> Mapping[str, str | int | float]:
    """The broker's configuration, by Kafka's key names."""
    return {}


@pytest.fixture(scope="session")
def millstream_broker(millstream_config: Mapping[str, str | int | float]) -> Iterator[Broker]:
    """A broker that all tests of the session share; its address is `millstream_broker.bootstrap`."""
    from millstream.testing.broker import Broker

    with Broker(millstream_config) as broker:
        yield broker


@pytest.fixture
def millstream_topic(
    millstream_broker: Broker, request: pytest.FixtureRequest
) -> Iterator[Callable[..., str]]:
    """Makes topics with names of their own: `millstream_topic(partitions=3, configs={...})`.

    They are deleted when the test ends.
    """
    made: list[str] = []

    def make(
        name: str | None = None, partitions: int = 1, configs: Mapping[str, str | None] | None = None
    ) -> str:
        chosen = name or _name(request.node.name, len(made))
        millstream_broker.create_topic(chosen, partitions, configs=configs)
        made.append(chosen)
        return chosen

    yield make
    if millstream_broker.is_running:
        left = set(millstream_broker.topics())
        for name in made:
            if name in left:
                millstream_broker.delete_topic(name)


def _name(test: str, number: int) -> str:
    """A legal topic name that says which test it belongs to."""
    import uuid

    words = re.sub(r"[^a-zA-Z0-9._-]+", "-", test).strip("-")[:180] or "topic"
    return f"{words}-{number}-{uuid.uuid4().hex[:8]}"
