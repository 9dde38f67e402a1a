"""The two stores give the same answers to the same writes: each is the other's model."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.registry.contract import Check, Create, Delete, Operation, RegistryError, Set
from millstream.registry.database import Database
from millstream.registry.memory import MemoryRegistry, MemoryTree

PATHS = st.sampled_from(["/", "/a", "/b", "/a/a", "/a/b", "/a/a/a"])
VERSIONS = st.sampled_from([-1, -1, 0, 1])
DATA = st.sampled_from([b"", b"x", b"y"])
OPERATIONS = st.one_of(
    st.builds(Create, PATHS, DATA, st.booleans()),
    st.builds(Create, PATHS, DATA, st.just(False)),
    st.builds(Set, PATHS, DATA, VERSIONS),
    st.builds(Delete, PATHS, VERSIONS),
    st.builds(Check, PATHS, VERSIONS),
)
STEPS = st.lists(st.lists(OPERATIONS, max_size=4), max_size=25)
ALL_PATHS = ["/", "/a", "/b", "/a/a", "/a/b", "/a/a/a"]


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except RegistryError as error:
        return type(error), error.path, str(error)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_memory_and_sqlite_agree(steps: list[list[Operation]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        database = Database(str(Path(folder) / "registry.db"))
        database.prepare()
        tree = MemoryTree()
        session = database.begin_session(1, lambda _: None)
        assert tree.open(MemoryRegistry(tree)) == session
        try:
            for operations in steps:
                expected = outcome(lambda ops=operations: tree.multi(ops, session))  # type: ignore[misc]
                assert outcome(lambda ops=operations: database.multi(ops, session)) == expected  # type: ignore[misc]
                assert database.get_many(ALL_PATHS) == tree.get_many(ALL_PATHS)
                for path in ALL_PATHS:
                    children = outcome(lambda path=path: tree.children(path))  # type: ignore[misc]
                    assert outcome(lambda path=path: database.children(path)) == children  # type: ignore[misc]
            tree.expire(session)
            assert database.end_session(session)
            assert database.get_many(ALL_PATHS) == tree.get_many(ALL_PATHS)
        finally:
            database.close()
