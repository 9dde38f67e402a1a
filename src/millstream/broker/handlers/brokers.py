"""UnregisterBroker: a broker that will not come back."""

from __future__ import annotations

from millstream.broker.router import Context, handles
from millstream.protocol.messages import UnregisterBrokerRequest, UnregisterBrokerResponse


@handles(UnregisterBrokerRequest)
async def unregister_broker(ctx: Context, req: UnregisterBrokerRequest) -> UnregisterBrokerResponse:
    """v0. Any broker takes it and asks the controller: Java's clients do not look for that."""
    broker = ctx.broker
    if not broker.controller.is_active and not ctx.is_internal:
        timeout_ms: int = broker.config["controller.socket.timeout.ms"]
        return await broker.controller_link.ask(req, UnregisterBrokerResponse, timeout_ms)
    await broker.controller.unregister_broker(req.broker_id)
    return UnregisterBrokerResponse()
