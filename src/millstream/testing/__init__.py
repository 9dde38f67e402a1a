"""Brokers for tests: `with millstream.testing.Broker() as broker:`; pytest fixtures in `plugin`.

`Cluster(brokers=3)` is a cluster of real processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.testing.broker import Broker
    from millstream.testing.cluster import Cluster

__all__ = ["Broker", "Cluster"]


def __getattr__(name: str) -> Any:
    # pytest imports this package wherever Millstream is installed; it pays for a broker only on use.
    if name == "Broker":
        from millstream.testing.broker import Broker

        return Broker
    if name == "Cluster":
        from millstream.testing.cluster import Cluster

        return Cluster
    raise AttributeError(f"module {__name__} has no attribute {name}")
