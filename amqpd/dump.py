"""`python -m amqpd.dump DIR`: content of a stopped broker's data directory, as lines of JSON.

    {"definitions": {...}}                                    as GET /api/definitions; the first line
    {"vhost": ..., "queue": ..., "messages": [...]}           some messages of a durable queue, in its order
    {"vhost": ..., "queue": ..., "count": N, "left": N}       all messages of the queue are written; `left` are
                                                              omitted
    {"end": true}                                             the last line; without it the output is incomplete

A message has exchange, routing_key (surrogates for bytes that are not UTF-8), properties and body (base64),
persistent. Messages in delayed exchanges, and null bodies with which a stream's compaction deletes keys, are
omitted.

The directory is opened and recovered as by a start. Nothing listens and no timer runs, so no message expires or is
dead-lettered.

Exit codes: 0; 64: the directory cannot be read with these settings (reason on standard error); 69: a broker uses
it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from base64 import b64encode
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TextIO

from amqpd.broker.queue.log_opener import opened
from amqpd.config import EXIT_USAGE, Settings, SettingsError, load
from amqpd.management.definitions import export_definitions
from amqpd.management.listing import document_reply
from amqpd.server import EXIT_UNAVAILABLE, Server
from amqpd.storage.data_directory import DataDirectoryInUse
from amqpd.storage.metadata.store import MetadataError
from amqpd.storage.queue_log import LogUnusable

if TYPE_CHECKING:
    from amqpd.broker.queue.queue import Queue
    from amqpd.broker.vhost.vhost import VHost
    from amqpd.storage.log.record import Record

READ_BYTES: Final = 512 * 1024
MESSAGES_MAX: Final = 200
DATABASE: Final = "metadata.sqlite"


class UnreadableDataDirectory(Exception):
    """The data directory cannot be read; the text says why."""


async def dump_directory(settings: Settings, out: TextIO) -> None:
    """Write the definitions and messages of a data directory, a JSON object per line.

    Raises: UnreadableDataDirectory, DataDirectoryInUse, MetadataError, LogUnusable, OSError.
    """
    if not settings.metadata.url and not (settings.data_dir / DATABASE).is_file():
        raise UnreadableDataDirectory(f"{settings.data_dir} is no data directory of amqpd (no {DATABASE} in it)")
    server = Server(settings, asyncio.get_running_loop())
    server.load()
    server.broker.timers.stop()
    try:
        whole = (await document_reply(export_definitions(server.broker))).body
        text = whole if isinstance(whole, bytes) else b"".join(whole or ())
        _write_line(out, {"definitions": json.loads(text)})
        for vhost in sorted(server.broker.vhosts.values(), key=lambda each: each.name):
            for queue in [each for each in vhost.queues.values() if each.durable and each.exclusive_owner is None]:
                await _write_queue(vhost, queue, out)
    finally:
        server.stop()
        await server.stopped.wait()
    _write_line(out, {"end": True})


async def _write_queue(vhost: VHost, queue: Queue, out: TextIO) -> None:
    fields = {"vhost": vhost.name, "queue": queue.name}
    if not await opened(queue):
        raise UnreadableDataDirectory(f"queue '{queue.name}' in vhost '{vhost.name}': its log cannot be opened")
    log = queue.log()
    assert log is not None  # it is durable and open
    count = left = 0
    cursor = log.cursor
    offset = 0
    while True:
        fetch = cursor.read(offset, READ_BYTES)
        if not fetch.records:
            break
        messages = [record for record in fetch.records if not record.tombstone]
        for part in _parts(messages):
            _write_line(out, {**fields, "messages": [_message(record) for record in part]})
        count += len(messages)
        left += len(fetch.records) - len(messages)
        offset = int(fetch.next_offset)
        await asyncio.sleep(0)
    _write_line(out, {**fields, "count": count, "left": left})


def _parts(records: list[Record]) -> Iterator[list[Record]]:
    """Yield parts of at most READ_BYTES and MESSAGES_MAX. A larger message is a part of its own."""
    part: list[Record] = []
    size = 0
    for record in records:
        if part and (size + len(record.body) > READ_BYTES or len(part) == MESSAGES_MAX):
            yield part
            part, size = [], 0
        part.append(record)
        size += len(record.body)
    if part:
        yield part


def _message(record: Record) -> dict[str, Any]:
    return {
        "exchange": record.exchange.decode("utf-8", "surrogateescape"),
        "routing_key": record.routing_key.decode("utf-8", "surrogateescape"),
        "properties": b64encode(record.properties).decode(),
        "body": b64encode(record.body).decode(),
        "persistent": record.persistent,
    }


def _write_line(out: TextIO, item: dict[str, Any]) -> None:
    out.write(json.dumps(item, separators=(",", ":")) + "\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program: DIR, then settings as for `amqpd`."""
    directory, *rest = argv if argv is not None else sys.argv[1:]
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    fixed = ["--cluster.kafka=", "--audit.enabled=false", f"--data-dir={directory}"]
    try:
        loaded = load([*rest, *fixed], {name: value for name, value in os.environ.items() if name != "AMQPD_CONFIG"})
        asyncio.run(dump_directory(loaded.settings, sys.stdout))
    except DataDirectoryInUse:
        return _fail(f"a broker uses {directory}: stop it first", EXIT_UNAVAILABLE)
    except SettingsError as error:
        return _fail("; ".join(error.problems), EXIT_USAGE)
    except (UnreadableDataDirectory, MetadataError, LogUnusable, OSError) as error:
        return _fail(str(error), EXIT_USAGE)
    return 0


def _fail(text: str, code: int) -> int:
    sys.stderr.write(text + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
