"""Every message at every version: a round trip, and the same bytes as kio's."""

import pytest
from hypothesis import HealthCheck, given, settings

from millstream.protocol.schema import Message
from tests.protocol.strategies import CASE_IDS, CASES, kio_class, kio_decode, kio_encode, structs, to_kio

few = settings(
    max_examples=12,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.parametrize(("message", "version"), CASES, ids=CASE_IDS)
def test_a_message_survives_the_wire_and_equals_kios(message: type[Message], version: int) -> None:
    oracle = kio_class(message, version)

    @few
    @given(structs(message, version))
    def check(sent: Message) -> None:
        encoded = sent.encode(version)
        assert message.decode(encoded, version) == sent
        entity = to_kio(sent, oracle)
        assert kio_encode(entity) == encoded
        assert kio_decode(oracle, encoded) == entity

    check()
