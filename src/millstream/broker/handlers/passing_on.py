"""Requests for the controller that come to another broker, as those of clients do after an election."""

from __future__ import annotations

from typing import TypeVar

from millstream.broker.router import Context
from millstream.protocol.schema import Request, Response

R = TypeVar("R", bound=Response)


async def passed_on(ctx: Context, request: Request, answer: type[R]) -> R | None:
    """The controller's answer; None if it is for this broker to answer, be it with NOT_CONTROLLER.

    Some clients learn who the controller is once, and ask that broker for as long as it is there.
    """
    if ctx.is_internal or ctx.broker.controller.is_active:
        return None
    return await ctx.broker.controller_link.pass_on(request, answer)
