"""Fixtures of the tests of records."""

from __future__ import annotations

import pytest

from tests.protocol.kernels import KINDS, Records, records_over


@pytest.fixture(params=KINDS, scope="session")
def records(request: pytest.FixtureRequest) -> Records:
    """The record modules, over the compiled kernel and over the interpreted one."""
    return records_over(request.param)
