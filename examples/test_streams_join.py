"""How an app is tested: rows in, rows out, no broker."""

from __future__ import annotations

from examples.streams_join import app


def test_orders_are_shipped_to_where_the_customer_lives() -> None:
    with app.test() as test:
        with test.together():  # one micro-batch; timestamps go up by a second from row to row
            test.pipe("customers", {"customer": "ann", "city": "Oslo"}, key="customer")
            test.pipe("orders", {"id": 1, "customer": "ann", "cents": 250}, "what?", key="customer")
            test.pipe("customers", {"customer": "ann", "city": "Lima"}, key="customer")
            test.pipe("orders", {"id": 2, "customer": "ann", "cents": 50}, key="customer")
        assert test.rows("shipments") == [{"id": 1, "city": "Oslo"}, {"id": 2, "city": "Lima"}]
        revenue = {row["city"]: row["cents"] for row in test.rows("revenue")}
        assert revenue == {"Oslo": 250, "Lima": 50}
        assert test.rows("orders.bad") == ["what?"]
