"""What the controller does about brokers that are alive, and of which it hears nothing."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from millstream.controller.patience import Patience
from millstream.controller.term import Term

if TYPE_CHECKING:
    from millstream.controller.controller import Controller

log = logging.getLogger(__name__)

SILENT_SESSIONS = 2
"""After how many session time-outs a broker that asks for nothing counts as cut off.

One that died has lost its session by then, also where ZooKeeper takes some of its ticks longer.
"""
LEAST_SILENCE_S = 5.0
"""Brokers ask twice a second; an answer that is lost takes one and a half until they ask again."""


def silent_rounds(session_s: float, round_s: float) -> int:
    """After how many rounds of upkeep a broker counts as silent."""
    return math.ceil(max(SILENT_SESSIONS * session_s, LEAST_SILENCE_S) / round_s)


class Listening:
    """Draws the consequences of silence, in the controller's turns."""

    def __init__(self, controller: Controller, patience: Patience) -> None:
        self._controller = controller
        self._patience = patience

    async def next_round(self) -> None:
        """Look who was heard of. At each round of the controller's upkeep."""
        controller = self._controller
        term = controller.term
        presence = term.presence
        presence.next_round(term.picture.epochs)
        self._patience.listened(presence, asyncio.get_running_loop().time())
        if self._patience.is_over(presence):
            await controller.in_turn(partial(self._make_room, term))
        elif presence.has_news and not presence.is_in_doubt:
            await controller.in_turn(partial(self._part_with_silent, term))

    async def _make_room(self, term: Term) -> None:
        """Let a broker be the controller that the others can reach."""
        controller, presence = self._controller, term.presence
        if controller.term is not term or not presence.is_cut_off:
            return
        self._patience.makes_room(presence, asyncio.get_running_loop().time())
        log.warning(
            "no longer the controller of epoch %d: nothing is heard of brokers %s, though they are alive",
            controller.epoch,
            _listed(presence.silent),
        )
        await controller.make_room()

    async def _part_with_silent(self, term: Term) -> None:
        """Others lead what brokers lead that are cut off, and do not wait for them."""
        silent = {id_: epoch for id_, epoch in term.presence.silent.items() if term.epoch_of(id_) == epoch}
        if self._controller.term is not term or not silent:
            return
        log.warning("brokers %s are alive, but ask for nothing: others lead what they lead", _listed(silent))
        await term.partitions.stop_brokers(silent)
        term.presence.note(silent)


def _listed(brokers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(brokers)))
