"""`millstream produce` and `consume`: records in, records out, byte for byte."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from millstream.testing import Broker
from tests.cli.conftest import CommandLine
from tests.conftest import Name
from tests.processes import free_port

ALL = ("--exit", "-f")


@pytest.fixture
def topic(millstream: CommandLine, new_name: Name) -> str:
    name = new_name("records")
    millstream("topic", "create", name)
    return name


def test_lines_are_records(millstream: CommandLine, topic: str) -> None:
    result = millstream("produce", topic, given=b"one\ntwo\nthree")
    assert (result.out, result.err) == (b"", ""), "a pipe is told nothing unless it asks"
    assert millstream("consume", topic, *ALL, "value").out == b"one\ntwo\nthree\n"


def test_the_report_for_programs(millstream: CommandLine, topic: str) -> None:
    millstream("produce", topic, given=b"a\n")
    assert millstream("produce", topic, "--json", given=b"b\nc\n").json == {
        "topic": topic,
        "count": 2,
        "partitions": [{"partition": 0, "count": 2, "first_offset": 1, "last_offset": 2}],
    }
    unknown = millstream("produce", topic, "--acks", "0", "--json", given=b"d\n").json
    assert unknown["partitions"] == [{"partition": 0, "count": 1, "first_offset": None, "last_offset": None}]


def test_keys_headers_and_delimiters(millstream: CommandLine, topic: str) -> None:
    millstream(
        "produce", topic, "-K", "\\t", "-H", "a=1", "-H", "b=", "-H", "c", given=b"k1\tv1\nk2\tv2\tx\n"
    )
    millstream("produce", topic, "-k", "fixed", "-D", "\\0", given=b"two\nlines\0next\0")
    lines = millstream("consume", topic, "--exit", "-f", "%k|%v|%h{%k:%v,}\\0").out.split(b"\0")
    assert lines == [b"k1|v1|a:1,b:,c:,", b"k2|v2\tx|a:1,b:,c:,", b"fixed|two\nlines|", b"fixed|next|", b""]
    first = millstream("consume", topic, "-n", "1", "-o", "start").json
    assert first["headers"] == [
        {"key": "a", "value": "1"},
        {"key": "b", "value": ""},
        {"key": "c", "value": None},
    ]


def test_tombstones(millstream: CommandLine, topic: str) -> None:
    millstream("produce", topic, "--tombstone", given=b"user-7\n")
    millstream("produce", topic, "-K", ":", "-Z", given=b"user-8:\nuser-9:x\n")
    found = [(line["key"], line["value"]) for line in millstream("consume", topic, "--exit").json_lines]
    assert found == [("user-7", None), ("user-8", None), ("user-9", "x")]


def test_files(millstream: CommandLine, topic: str, tmp_path: Path) -> None:
    one, two, binary = tmp_path / "one", tmp_path / "two", tmp_path / "binary"
    one.write_bytes(b"a\nb\n")
    two.write_bytes(b"c")
    binary.write_bytes(bytes(range(256)) * 10)
    millstream("produce", topic, str(one), "-", str(two), given=b"stdin\n")
    millstream("produce", topic, "--whole", str(binary))
    assert millstream("consume", topic, "-n", "4", "-o", "start", "-f", "value").out == b"a\nb\nstdin\nc\n"
    assert millstream("consume", topic, "-o", "4:5", "-f", "%v").out == bytes(range(256)) * 10
    target = tmp_path / "target"
    assert millstream("consume", topic, *ALL, "value", "-n", "2", "-O", str(target)).out == b""
    missing = millstream.run("consume", topic, *ALL, "value", "-O", "/nonexistent/x")
    assert missing.code == 1
    assert "/nonexistent/x" in missing.err
    assert target.read_bytes() == b"a\nb\n"


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compression(millstream: CommandLine, topic: str, codec: str) -> None:
    data = b"".join(b"line %d\n" % n for n in range(1000))
    millstream("produce", topic, "-z", codec, given=data)
    assert millstream("consume", topic, *ALL, "value").out == data
    assert millstream("consume", topic, "-n", "1", "-o", "start", "-f", "%a").text == codec


def test_json_round_trip(millstream: CommandLine, topic: str, new_name: Name) -> None:
    """What one topic prints as JSON another takes as it is: keys, values, headers, times, null, bytes."""
    lines = (
        b'{"key": "k", "value": "v", "timestamp": 1780000000000, "headers": [{"key": "h", "value": "1"}]}\n'
        b'{"key": null, "value": null}\n'
        b'{"key_base64": "/w==", "value": {"nested": [1, 2.5, "x"]}}\n'
    )
    millstream("produce", topic, "-f", "json", given=lines)
    printed = millstream("consume", topic, "--exit").out
    other = new_name("copy")
    millstream("topic", "create", other)
    millstream("produce", other, "-f", "json", given=printed)
    copied = millstream("consume", other, "--exit").out
    assert copied == printed.replace(topic.encode(), other.encode())
    assert b'"value":"{\\"nested\\":[1,2.5,\\"x\\"]}"' in printed


def test_partitions(millstream: CommandLine, new_name: Name) -> None:
    name = new_name("parts")
    millstream("topic", "create", name, "-p", "4")
    millstream("produce", name, "-p", "2", given=b"two\n")
    millstream("produce", name, "-K", ":", given=b"".join(b"key%d:%d\n" % (n % 10, n) for n in range(100)))
    assert millstream("consume", name, "-p", "2", "-n", "1", "-o", "start", "-f", "%p %v\n").out == b"2 two\n"
    places: dict[str, set[int]] = {}
    order: dict[str, list[int]] = {}
    for line in millstream("consume", name, "--exit").json_lines[:]:
        if line["key"]:
            places.setdefault(line["key"], set()).add(line["partition"])
            order.setdefault(line["key"], []).append(int(line["value"]))
    assert len(places) == 10
    assert all(len(partitions) == 1 for partitions in places.values()), "a key stays in its partition"
    assert all(numbers == sorted(numbers) for numbers in order.values())
    copied = new_name("kept")
    millstream("topic", "create", copied, "-p", "4")
    printed = millstream("consume", name, "--exit").out
    millstream("produce", copied, "-f", "json", "--keep-partitions", given=printed)
    ends = [row["end"] for row in millstream("offsets", name, "--json").json]
    assert [row["end"] for row in millstream("offsets", copied, "--json").json] == ends
    missing = millstream.run("produce", name, "-p", "9", given=b"x\n")
    assert (missing.code, "partitions 0 to 3, not 9" in missing.err) == (1, True)
    missing = millstream.run("consume", name, "-p", "9", "--exit")
    assert (missing.code, "partitions 0 to 3, not 9" in missing.err) == (1, True)


def test_records_without_a_key_use_all_partitions(millstream: CommandLine, new_name: Name) -> None:
    name = new_name("sticky")
    millstream("topic", "create", name, "-p", "3")
    data = b"".join(b"%d %s\n" % (n, b"x" * 1000) for n in range(3000))
    report = millstream("produce", name, "--json", given=data).json
    assert report["count"] == 3000
    assert [part["partition"] for part in report["partitions"]] == [0, 1, 2]
    found = millstream("consume", name, *ALL, "value").out.splitlines()
    assert sorted(found) == sorted(data.splitlines())


RANGES = [
    ("start", "0123456789"),
    (":end", "0123456789"),
    ("+7", "789"),
    ("-3", "789"),
    ("-99", "0123456789"),
    ("6", "6789"),
    ("99", ""),
    ("2:5", "234"),
    (":3", "012"),
    ("8:99", "89"),
    ("@1780000004000", "456789"),
    ("@1780000003500:1780000006000", "45"),
    ("@:1780000002000", "01"),
    ("@2026-05-28T20:26:47Z:1s", "7"),
    ("@1780000099000", ""),
    ("end", ""),
]


def test_every_range(millstream: CommandLine, topic: str) -> None:
    lines = b"".join(
        b'{"value": "%d", "timestamp": %d}\n' % (n, 1_780_000_000_000 + n * 1000) for n in range(10)
    )
    millstream("produce", topic, "-f", "json", given=lines)
    for text, expected in RANGES:
        assert millstream("consume", topic, "--exit", "-o", text, "-f", "%v").text == expected, text


def test_a_bounded_range_ends_by_itself(millstream: CommandLine, topic: str) -> None:
    millstream("produce", topic, given=b"a\nb\nc\n")
    assert millstream("consume", topic, "-o", "0:2", "-f", "%v").text == "ab"
    assert millstream("consume", topic, "-o", ":end", "-f", "%v").text == "abc"
    assert millstream("consume", topic, "-o", "@-1h:end", "-f", "%v").text == "abc"


def test_several_topics_and_counts(millstream: CommandLine, topic: str, new_name: Name) -> None:
    other = new_name("other")
    millstream("topic", "create", other)
    millstream("produce", topic, given=b"a\nb\n")
    millstream("produce", other, given=b"c\nd\n")
    both = millstream("consume", topic, other, "--exit").json_lines
    assert sorted((line["topic"], line["value"]) for line in both) == sorted(
        [(topic, "a"), (topic, "b"), (other, "c"), (other, "d")]
    )
    numbered = millstream("consume", topic, other, "-o", "start", "-n", "3", "-f", "%i\\n").out
    assert numbered == b"1\n2\n3\n"


def test_a_topic_comes_to_exist_with_its_first_record(millstream: CommandLine, new_name: Name) -> None:
    name = new_name("auto")
    millstream("produce", name, given=b"first\n")
    assert millstream("consume", name, *ALL, "value").out == b"first\n"


def test_bad_lines_say_what_was_written_before(millstream: CommandLine, topic: str) -> None:
    result = millstream.run("produce", topic, "-K", ":", given=b"a:1\nnocolon\n")
    assert result.code == 1
    assert "the line 'nocolon' has no key delimiter ':'" in result.err
    assert "0 records were written before" in result.err
    large = millstream.run("produce", topic, given=b"x" * 3_000_000 + b"\n")
    assert large.code == 1
    assert "max.message.bytes" in large.err
    nameless = millstream.run("produce", "no name", given=b"x\n")
    assert nameless.code == 1
    assert ".." not in nameless.err


def test_what_is_wrong_with_a_record_is_said_once(millstream: CommandLine, new_name: Name) -> None:
    name = new_name("compacted")
    millstream("topic", "create", name, "-c", "cleanup.policy=compact")
    result = millstream.run("produce", name, given=b"x\n")
    assert result.code == 1
    assert result.err.count("record 0: a compacted topic needs a key") == 1


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["produce", "t", "-k", "a", "-K", ":"], "do not go together"),
        (["produce", "t", "-f", "json", "-K", ":"], "come from the JSON"),
        (["produce", "t", "--whole"], "needs FILEs"),
        (["produce", "t", "no-such-file"], "not a file"),
        (["produce", "t", "-K", "\\q"], "is no escape"),
        (["produce", "t", "-z", "brotli"], "brotli"),
        (["consume", "t", "-o", "sometimes"], "is not a range of offsets"),
        (["consume", "t", "-f", "yaml"], "is no format"),
        (["consume", "t", "-f", "%Z"], "%Z is not known"),
        (["consume", "t", "--json", "-f", "value"], "do not go together"),
        (["consume", "t", "--timeout", "soon"], "is not a duration"),
        (["consume"], "Missing argument"),
        (["offsets", "t", "--at", "sometimes"], "is not a time"),
        (["prodcue", "t"], "Did you mean 'produce'?"),
        (["topic", "creat", "t"], "Did you mean 'create'?"),
        (["topic", "create", "t", "-c", "novalue"], "write -c key=value"),
    ],
)
def test_calls_that_make_no_sense(millstream: CommandLine, words: list[str], reason: str) -> None:
    result = millstream.run(*words)
    assert (result.code, result.out) == (2, b"")
    assert reason in result.err


def test_nobody_answers(millstream: CommandLine) -> None:
    for words in (["topic", "list"], ["consume", "t"], ["produce", "t"], ["offsets", "t"]):
        result = millstream.run(*words, "-b", "127.0.0.1:1")
        assert result.code == 1
        assert "cannot connect to 127.0.0.1:1" in result.err
        assert "millstream serve" in result.err


def test_offsets(millstream: CommandLine, new_name: Name) -> None:
    name = new_name("offsets")
    millstream("topic", "create", name, "-p", "2")
    lines = b"".join(b'{"value": "%d", "timestamp": %d}\n' % (n, 1_780_000_000_000 + n) for n in range(5))
    millstream("produce", name, "-p", "1", "-f", "json", given=lines)
    assert millstream("offsets", name, "--at", "1780000000002", "--json").json == [
        {"topic": name, "partition": 0, "start": 0, "end": 0, "count": 0, "at": None, "at_timestamp": None},
        {
            "topic": name,
            "partition": 1,
            "start": 0,
            "end": 5,
            "count": 5,
            "at": 2,
            "at_timestamp": 1780000000002,
        },
    ]
    table = [line.split() for line in millstream("offsets", name).text.splitlines()]
    assert table == [
        ["TOPIC", "PARTITION", "START", "END", "COUNT"],
        [name, "0", "0", "0", "0"],
        [name, "1", "0", "5", "5"],
    ]
    assert [name, "1", "0", "5", "5"] in [line.split() for line in millstream("offsets").text.splitlines()]


def test_a_deleted_beginning_is_skipped_with_a_note(millstream: CommandLine, topic: str) -> None:
    millstream("produce", topic, given=b"a\nb\nc\n")
    millstream("topic", "trim", topic, "--before", "2", "-y")
    assert millstream("consume", topic, "-o", "0", "--exit", "-f", "%v").text == "c"


def test_every_shell_completes(millstream: CommandLine, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """click's own mechanism; names of topics come from the broker."""
    for shell in ("bash", "zsh", "fish"):
        monkeypatch.setenv("_MILLSTREAM_COMPLETE", f"{shell}_source")
        assert "_MILLSTREAM_COMPLETE" in millstream.run().text
    monkeypatch.setenv("_MILLSTREAM_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"millstream consume {topic[:-1]}")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert f"plain,{topic}" in millstream.run().text.splitlines()
    monkeypatch.setenv("COMP_WORDS", "millstream to")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert millstream.run().text.splitlines() == ["plain,topic"]


def test_doctor(millstream: CommandLine, cli_broker: Broker, tmp_path: Path) -> None:
    checks = millstream(
        "doctor", "--data", str(tmp_path / "new"), "--listen", f"127.0.0.1:{free_port()}", "--json"
    )
    states = {check["check"]: check["state"] for check in checks.json}
    assert states["record kernel"] == "good"
    assert states["python"] == states["data folder"] == states["broker"] == states["partitions"] == "good"
    used = millstream.run("doctor", "--listen", "127.0.0.1:1", "--data", str(cli_broker.data))
    assert "a broker is using" in used.out.decode()
    nobody = millstream.run("doctor", "-b", "127.0.0.1:1", "--data", str(tmp_path))
    assert "none at 127.0.0.1:1" in nobody.out.decode()
    if os.geteuid() != 0:
        bad = millstream.run("doctor", "--data", "/proc/nope")
        assert bad.code == 1
