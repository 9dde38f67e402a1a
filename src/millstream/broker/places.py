"""How the descriptors that files leave are divided between the connections of clients and of brokers."""

from __future__ import annotations

from collections.abc import Callable

from millstream.config.broker import BrokerConfig
from millstream.net.occupancy import Occupancy

MAX_KEPT = 1024
"""How many clients leave to brokers at most; a quarter where there are few."""

ENOUGH = 48
"""What the brokers of a small cluster take, with a link for each purpose: it is kept if it is at most half.
Without their places they copy nothing and agree on nothing, and clients gain nothing by having them."""


def occupancies(
    config: BrokerConfig, max_connections_of_ip: Callable[[str], int], descriptors: int
) -> tuple[Occupancy, Occupancy]:
    """That of the configured listeners, and that of the one which a broker makes for other brokers.

    Together they never hold more than `descriptors`. Where brokers have a listener of their own, those that
    are kept for them are never taken by clients.
    """
    kept = max(min(descriptors // 4, MAX_KEPT), min(descriptors // 2, ENOUGH))
    is_apart = config.peer_listener is None
    configured = Occupancy(
        lambda: config["max.connections"],
        max_connections_of_ip,
        descriptors=descriptors - kept if is_apart else descriptors,
        reserved=kept if not is_apart and len(config.listeners) > 1 else 0,
    )
    return configured, Occupancy(descriptors=kept)
