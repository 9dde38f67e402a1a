"""Who finds a place among the connections of a broker."""

from __future__ import annotations

from millstream.net.occupancy import OF_BROKER, OF_IP, OF_PROCESS, Full, Occupancy


def test_a_reserved_place_is_beyond_max_connections_but_not_beyond_the_descriptors() -> None:
    occupancy = Occupancy(lambda: 2, descriptors=5, reserved=2)
    assert [occupancy.enter("a"), occupancy.enter("b")] == [None, None]
    assert occupancy.enter("c") == Full(OF_BROKER, 2, 2)
    assert [occupancy.enter("c", is_reserved=True) for _ in range(3)] == [None] * 3
    assert occupancy.enter("c", is_reserved=True) == Full(OF_PROCESS, 5, 5)
    occupancy.leave("a")
    assert occupancy.enter("c", is_reserved=True) is None


def test_descriptors_that_are_reserved_are_left_to_those_for_whom_they_are() -> None:
    occupancy = Occupancy(
        max_connections_of_ip=lambda ip: 9 if ip == "many" else 1, descriptors=5, reserved=2
    )
    assert [occupancy.enter("many") for _ in range(3)] == [None] * 3
    assert occupancy.enter("many") == Full(OF_PROCESS, 3, 3)
    assert occupancy.enter("one", is_reserved=True) is None
    assert occupancy.enter("one", is_reserved=True) == Full(OF_IP, 1, 1)
    assert occupancy.enter("two", is_reserved=True) is None
    assert occupancy.enter("three", is_reserved=True) == Full(OF_PROCESS, 5, 5)
