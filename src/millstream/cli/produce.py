"""`millstream produce`: records from standard input or files."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import click

from millstream.cli.batching import Batching, producer_for
from millstream.cli.escapes import unescape
from millstream.cli.input_stream import InputStream
from millstream.cli.options import client_options, complete_topics
from millstream.cli.output import print_json
from millstream.cli.progress import Progress
from millstream.cli.record_input import BadInput, Headers, JsonFormat, LineFormat, LineSplitter, Parse
from millstream.cli.session import CLIENT_ID, admin_of, run
from millstream.client.producer_settings import Acks
from millstream.errors import KafkaError, MillstreamError
from millstream.protocol.batch import Codec

ACKS: dict[str, Acks] = {"all": "all", "-1": "all", "1": 1, "leader": 1, "0": 0, "none": 0}
CODECS = [codec.name.lower() for codec in Codec]


def _bytes(_: click.Context, parameter: click.Parameter, value: str | None) -> bytes | None:
    """A text with escapes such as \\t."""
    try:
        return None if value is None else unescape(value)
    except ValueError as error:
        raise click.BadParameter(str(error), param=parameter) from None


def _header_pairs(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> Headers:
    """`name=value`; a name alone has a null value."""
    pairs = (value.partition("=") for value in values)
    return tuple((name, text.encode() if equals else None) for name, equals, text in pairs)


@click.command()
@click.argument("topic", shell_complete=complete_topics)
@click.argument("files", nargs=-1, type=click.Path(allow_dash=True), metavar="[FILE]...")
@click.option("-k", "--key", callback=_bytes, help="The key of every record.")
@click.option(
    "-K", "--key-delimiter", callback=_bytes, metavar="TEXT", help="What parts a line's key from its value."
)
@click.option(
    "-H",
    "--header",
    "headers",
    multiple=True,
    callback=_header_pairs,
    metavar="NAME=VALUE",
    help="A header of every record; may be repeated.",
)
@click.option(
    "-f",
    "--format",
    "format_name",
    type=click.Choice(["lines", "json"]),
    default="lines",
    show_default=True,
    help="Lines of text, or JSON objects as `consume -f json` prints them.",
)
@click.option(
    "-D", "--delimiter", callback=_bytes, default="\\n", show_default=True, help="What ends a line."
)
@click.option("--whole", is_flag=True, help="Each FILE is one record.")
@click.option("-Z", "--null", "null_if_empty", is_flag=True, help="An empty value is null: a tombstone.")
@click.option("--tombstone", is_flag=True, help="Every value is null; lines are keys, unless -k gives one.")
@click.option("-p", "--partition", type=click.IntRange(min=0), help="The partition of every record.")
@click.option(
    "--keep-partitions", is_flag=True, help="With -f json: to the partition that each record names."
)
@click.option(
    "-a",
    "--acks",
    type=click.Choice(list(ACKS)),
    default="all",
    show_default=True,
    help="Who must have a record: all in-sync replicas, the leader, or nobody.",
)
@click.option("-z", "--compression", type=click.Choice(CODECS), default="none", show_default=True)
@client_options
def produce(
    topic: str,
    files: tuple[str, ...],
    key: bytes | None,
    key_delimiter: bytes | None,
    headers: Headers,
    format_name: str,
    delimiter: bytes,
    whole: bool,
    null_if_empty: bool,
    tombstone: bool,
    partition: int | None,
    keep_partitions: bool,
    acks: str,
    compression: str,
    bootstrap: str,
    timeout_ms: int,
    as_json: bool,
) -> None:
    """Write records to TOPIC: a record for each line of FILEs, or of standard input.

    A topic that does not exist is created, if the broker allows it. With --acks all a record is
    written exactly once, also where the connection breaks meanwhile.

    \b
    Examples:
      echo hello | millstream produce greetings
      millstream produce orders -K : < orders.txt
      millstream produce orders -f json orders.jsonl
      millstream produce pictures --whole a.png b.png -H kind=png
      echo user-7 | millstream produce users --tombstone
    """
    if key is not None and key_delimiter is not None:
        raise click.UsageError("-k and -K do not go together")
    if format_name == "json" and (key is not None or key_delimiter is not None or tombstone or null_if_empty):
        raise click.UsageError(
            "with -f json the key and value come from the JSON: leave out -k, -K, -Z, --tombstone"
        )
    if whole and (not files or format_name == "json"):
        raise click.UsageError("--whole needs FILEs and does not go with -f json")
    if not delimiter:
        raise click.UsageError("-D needs at least one character")
    parse: Parse = LineFormat(key, key_delimiter, headers, null_if_empty, tombstone, partition)
    if format_name == "json":
        parse = JsonFormat(headers, partition, keep_partitions)
    missing = [name for name in files if name != "-" and not os.path.isfile(name)]
    if missing:
        raise click.UsageError(f"{missing[0]} is not a file")

    async def work() -> Batching:
        async with admin_of(bootstrap) as admin:
            await admin.describe_cluster(timeout_ms / 1000)  # nobody there is an error at once
        producer = producer_for(
            bootstrap, timeout_ms, client_id=CLIENT_ID, acks=ACKS[acks], compression=compression
        )
        await producer.start()
        batching = Batching(producer, topic)
        try:
            await producer.partitions_of(topic, timeout_ms / 1000)
            if whole:
                await _send_whole(batching, parse, files)
            else:
                await _send_lines(batching, parse, delimiter, files or ("-",))
            await batching.finish()
        except (KafkaError, BadInput) as error:
            batching.count_rest()
            raise _with_count(error, batching) from error
        finally:
            await producer.close(timeout=0)
        return batching

    _report(topic, run(work()), as_json)


async def _send_lines(batching: Batching, parse: Parse, delimiter: bytes, files: tuple[str, ...]) -> None:
    total = _size_of(files)
    with Progress("writing", total, "bytes", quiet=sys.stdin.isatty()) as progress:
        for name in files:
            descriptor = sys.stdin.fileno() if name == "-" else os.open(name, os.O_RDONLY)
            if name == "-" and sys.stdin.isatty():
                click.echo("Type records, a line each; Ctrl-D ends.", err=True)
            try:
                splitter, stream = LineSplitter(delimiter), InputStream(descriptor)
                async for chunk in stream:
                    now_ms = time.time_ns() // 1_000_000
                    for line in splitter.feed(chunk):
                        await batching.add(*parse(line, now_ms))
                    if stream.is_idle:
                        await batching.flush()
                    progress.advance(len(chunk))
                for line in splitter.finish():
                    await batching.add(*parse(line, time.time_ns() // 1_000_000))
            finally:
                if name != "-":
                    os.close(descriptor)


def _size_of(files: tuple[str, ...]) -> int | None:
    """How much there is to read, where that can be known."""
    return None if "-" in files else sum(os.path.getsize(name) for name in files)


async def _send_whole(batching: Batching, parse: Parse, files: tuple[str, ...]) -> None:
    for name in files:
        await batching.add(*parse(_read_whole(name), time.time_ns() // 1_000_000))


def _read_whole(name: str) -> bytes:
    if name == "-":
        return sys.stdin.buffer.read()
    with open(name, "rb") as file:
        return file.read()


def _with_count(error: MillstreamError, batching: Batching) -> MillstreamError:
    """The error, with how much had been written when it came."""
    count = batching.records_written
    message = str(error).rstrip(".")
    return type(error)(f"{message}. {count} record{'s were' if count != 1 else ' was'} written before")


def _report(topic: str, batching: Batching, as_json: bool) -> None:
    if as_json:
        partitions: list[dict[str, Any]] = [
            {
                "partition": index,
                "count": written.count,
                "first_offset": written.first_offset if written.first_offset >= 0 else None,
                "last_offset": written.last_offset if written.last_offset >= 0 else None,
            }
            for index, written in sorted(batching.written.items())
        ]
        print_json({"topic": topic, "count": batching.records_written, "partitions": partitions})
    elif sys.stdout.isatty():
        count = batching.records_written
        places = ", ".join(
            f"{index}: {written.first_offset}-{written.last_offset}"
            for index, written in sorted(batching.written.items())
            if written.first_offset >= 0
        )
        click.echo(
            f"Wrote {count} record{'s' if count != 1 else ''} to {topic}{f' ({places})' if places else ''}."
        )
