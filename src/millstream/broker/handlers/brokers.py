"""UnregisterBroker: a broker that will not come back."""

from __future__ import annotations

from millstream.broker.handlers.passing_on import passed_on
from millstream.broker.router import Context, handles
from millstream.protocol.messages import UnregisterBrokerRequest, UnregisterBrokerResponse


@handles(UnregisterBrokerRequest)
async def unregister_broker(ctx: Context, req: UnregisterBrokerRequest) -> UnregisterBrokerResponse:
    """v0. Java's clients send it to any broker."""
    passed = await passed_on(ctx, req, UnregisterBrokerResponse)
    if passed is not None:
        return passed
    await ctx.broker.controller.unregister_broker(req.broker_id)
    return UnregisterBrokerResponse()
