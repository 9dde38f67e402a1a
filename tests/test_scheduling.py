"""The order of files in a parallel run."""

from __future__ import annotations

from pathlib import Path

from tests.scheduling import BESIDE, LONG, TOGETHER, piece_of, rank_of

ROOT = Path(__file__).resolve().parent.parent


def test_what_is_named_exists() -> None:
    for beginning in (
        *LONG,
        *BESIDE,
        *BESIDE.values(),
        *(each for several in TOGETHER.values() for each in several),
    ):
        assert (ROOT / beginning).exists(), beginning


def test_pieces_and_their_order() -> None:
    assert piece_of("tests/simulation/test_cluster.py") == piece_of("tests/simulation/test_image.py")
    assert piece_of("tests/streams/test_app_run.py") == piece_of("tests/cli/test_streams.py") == "spark"
    assert piece_of("tests/streams/test_app_cluster.py") == "tests/streams/test_sink_exactly_once.py"
    alone = [
        "tests/streams/test_sink_exactly_once.py",
        "tests/cli/test_serve.py",
        "tests/net/test_connection.py",
    ]
    assert [*map(piece_of, alone)] == alone
    assert rank_of("tests/simulation/test_image.py") < rank_of("tests/streams/test_app_run.py")
    ranks = [*map(rank_of, alone)]
    assert ranks == sorted(set(ranks))
    assert rank_of("tests/client/test_kafka_leaders.py") < rank_of("tests/client/test_admin.py")
