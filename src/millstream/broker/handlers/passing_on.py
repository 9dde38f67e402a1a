"""Requests for the controller that come to another broker, as those of clients do after an election."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from millstream.broker.controller_link import PASSING
from millstream.broker.router import Context
from millstream.errors import KafkaError
from millstream.protocol.schema import Request, Response

R = TypeVar("R", bound=Response)


async def passed_on(
    ctx: Context, request: Request, answer: type[R], refused: Callable[[KafkaError], R] | None = None
) -> R | None:
    """The controller's answer; None if it is for this broker to answer, be it with NOT_CONTROLLER.

    Some clients learn who the controller is once, and ask that broker for as long as it is there. `refused`
    makes the answer when the controller gives none, where the answer as a whole has no place for an error.
    """
    if ctx.broker.controller.is_active or was_passed_on(ctx):
        return None
    link, is_large = ctx.broker.controller_link, ctx.turn is not None
    if is_large and link.is_passing_large:
        return None
    if ctx.turn is not None:
        ctx.turn.release()
    passed: R | None
    try:
        passed = await link.pass_on(request, answer, is_large=is_large)
    except KafkaError as error:
        if refused is None:
            raise
        return refused(error)
    if passed is None and ctx.turn is not None:
        await ctx.turn.take()
    return passed


def was_passed_on(ctx: Context) -> bool:
    """Whether another broker took the request from its client: it goes no further.

    Clients may use the listener for brokers, too, if there is but one.
    """
    return ctx.is_internal and ctx.client_id is not None and ctx.client_id.endswith(f"-{PASSING}")
