"""What the log says while a registry is out of reach, minute by minute."""

from __future__ import annotations

import asyncio
import logging
import re

import pytest

from millstream.registry.outage import REPEAT_S, SETTLED_S, Outage
from tests.simulation.host import SimClock
from tests.simulation.world import World

LEASE_S = 5.5
LAPSED = "out of reach for"


class Story:
    """An outage in virtual time, with the lease of a session beside it."""

    def __init__(self, world: World, log: pytest.LogCaptureFixture) -> None:
        self.world = world
        self.log = log
        self.deadline = 0.0
        self.clock = SimClock(world)
        self.outage = Outage("ZooKeeper", self.clock, lambda: self.deadline, lambda: "zk1:2181: refused")

    def hold(self) -> None:
        self.deadline = self.clock.monotonic() + LEASE_S

    def said(self) -> list[str]:
        """What was said since this was asked last."""
        said = [record.getMessage() for record in self.log.records if record.levelno >= logging.WARNING]
        self.log.clear()
        return said


@pytest.fixture
def story(caplog: pytest.LogCaptureFixture) -> Story:
    return Story(World(1), caplog)


def test_that_nothing_is_led_is_said_when_the_lease_lapses_each_minute_and_at_the_end(story: Story) -> None:
    async def main() -> None:
        story.hold()
        story.outage.broke()
        assert len(story.said()) == 1
        await asyncio.sleep(LEASE_S - 0.1)
        assert story.said() == [], "the lease still holds"
        await asyncio.sleep(0.2)
        (line,) = story.said()
        assert re.fullmatch("ZooKeeper has been out of reach for [56] s; .* are led: zk1:2181: refused", line)
        await asyncio.sleep(3 * REPEAT_S)
        assert [LAPSED in line for line in story.said()] == [True, True, True]
        story.hold()
        story.outage.back()
        await asyncio.sleep(2 * REPEAT_S)
        assert story.said() == ["ZooKeeper is back, after 185.6 s"]

    story.world.run(main())


def test_a_connection_that_is_back_before_the_lease_lapses_is_said_too(story: Story) -> None:
    async def main() -> None:
        story.hold()
        story.outage.broke()
        await asyncio.sleep(2)
        story.hold()
        story.outage.back()
        await asyncio.sleep(2 * REPEAT_S)
        assert [LAPSED in line for line in story.said()] == [False, False]

    story.world.run(main())


def test_servers_that_go_one_after_another_are_one_outage(story: Story) -> None:
    """The connection breaks again at once, and nothing was said twice of that."""

    async def main() -> None:
        for _ in range(3):
            story.hold()
            story.outage.broke()
            await asyncio.sleep(0.03)
            story.outage.back()
            await asyncio.sleep(SETTLED_S / 2)
        assert len(story.said()) == 1
        story.outage.broke()
        await asyncio.sleep(LEASE_S)
        assert [LAPSED in line for line in story.said()] == [True]
        for _ in range(3):
            story.outage.back()
            story.outage.broke()
        assert story.said() == []

    story.world.run(main())


def test_new_sessions_that_cannot_begin_are_said_each_minute(story: Story) -> None:
    """Who lost the session says so itself, and why no other begins; so the first line is due in a minute."""

    async def main() -> None:
        story.deadline = float("-inf")
        story.outage.lost()
        for _ in range(25):
            await asyncio.sleep(5)
            story.outage.failed("the disk is away")
        said = story.said()
        assert [LAPSED in line and line.endswith(": the disk is away") for line in said] == [True, True]
        story.outage.back()
        await asyncio.sleep(2 * REPEAT_S)
        assert story.said() == ["ZooKeeper is back, after 125.0 s"]

    story.world.run(main())


def test_nothing_is_said_of_a_session_that_nobody_wants(story: Story) -> None:
    async def main() -> None:
        story.outage.broke()
        story.said()
        story.outage.forget()
        await asyncio.sleep(2 * REPEAT_S)
        story.outage.back()
        await asyncio.sleep(2 * REPEAT_S)
        assert story.said() == []

    story.world.run(main())
