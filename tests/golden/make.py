"""Make the golden data directory of the current format: `python tests/golden/make.py`, once per format.

    format-N/data/            a data directory as the amqpd of that time left it
    format-N/expected.json    its contents as that amqpd read them

The script does not overwrite a golden directory. The queues: one stopped cleanly (several segments, one of them
removed; acked, returned and delivered messages; a transaction), one left by a kill (a torn tail, a transient message,
no clean mark), one compacted log (a tombstone, gaps). Since format 2 there is a fourth: a log compressed with each
codec, by amqpd and by a Kafka client, whose batches have a time per record. Since format 3 messages wait in two buckets
of a delayed-message exchange, and a fifth queue has batches with producer sequences (a `.snapshot`). Since format 4 a
sixth has transactions of Kafka's producers: committed, aborted and open. Since format 5 there is a journal, with data
that the logs of two queues lack. The metadata has rows of every table.
"""

from __future__ import annotations

import base64
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from foreign_batches import check_batches
from librt.strings import BytesWriter
from simulated_filesystem import SimulatedClock

from amqpd.auth.passwords import hash_password
from amqpd.broker.delayed.bucket import key_for, new_name, read_due_ms, read_keys, read_number, with_delay
from amqpd.protocol.field_table import encode_table
from amqpd.storage.journal import BLOCK_SIZE
from amqpd.storage.local_log import LocalLog
from amqpd.storage.log.batch import GZIP, LZ4, NO_PRODUCER, SNAPPY, ZSTD, marker_batch
from amqpd.storage.log.checkpoint import FORMAT_WITH_JOURNAL
from amqpd.storage.log.producer_state import Producer
from amqpd.storage.log.record import RecordRoute
from amqpd.storage.metadata.rows import (
    BindingRow,
    ExchangeRow,
    PermissionRow,
    Put,
    QueueRow,
    Row,
    SeenCacheRow,
    SeenRow,
    StoredOffsetRow,
    UserLimitsRow,
    UserRow,
    VhostRow,
)
from amqpd.storage.metadata.store import SqlMetadataStore
from amqpd.storage.retention_policy import CleanerPolicy, RetentionPolicy
from amqpd.storage.storage import Storage

HERE = Path(__file__).parent
VHOST_ID = "a" * 32
PROPERTIES = b"\x90\x00\x0atext/plain\x02"
ONCE = encode_table({"x-cache-size": 100, "x-cache-persistence": "disk"})
DELAYS_ID = "d" * 32
JOURNAL_BYTES = 10 * BLOCK_SIZE
DELAYS_MS = (50, 5000, 5100, 7_200_000)
"""Delays of the messages of `reminders`: those of the next seconds are in one bucket, the last one is in another."""


class Maker:
    def __init__(self, path: Path, journal_size_bytes: int = 0) -> None:
        self.posted: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.clock = SimulatedClock()
        self.storage = Storage(
            path,
            post=lambda function, *arguments: self.posted.append((function, arguments)),
            clock=self.clock,
            segment_size_bytes=1200,
            boot_id="1" * 32,
            inline=True,
            journal_size_bytes=journal_size_bytes,
            journal_from=2,
        )

    def end_turn(self) -> None:
        self.storage.commits.end_of_turn()
        while self.posted:
            function, arguments = self.posted.pop(0)
            function(*arguments)
        self.clock.now_ms += 1000

    def sync(self) -> None:
        for _ in range(4):
            self.storage.commits.flush()
            self.end_turn()

    def fill(self, store: LocalLog, count: int, keys: int = 3) -> None:
        for number in range(count):
            route = RecordRoute(b"events", b"key.%d" % (number % keys))
            store.append_parts(route, PROPERTIES, b"body %d " % number + b"\xfe" * 40, True)
            if number % 4 == 3:
                self.end_turn()
        self.end_turn()


def describe_store(store: LocalLog) -> dict[str, Any]:
    """The contents of a queue's log as JSON values."""
    return {
        "next_offset": int(store.next_offset),
        "record_count": int(store.record_count),
        "delivered_mark": int(store.delivered_mark),
        "returned": {str(offset): count for offset, count in store.returned.items()},
        "redelivered": [
            record.offset for record in store.cursor.read(0, 1 << 40).records if store.redelivered(record.offset)
        ],
        "epochs": [list(each) for each in store.log.epochs],
        "records": [
            {
                "offset": record.offset,
                "timestamp_ms": record.timestamp_ms,
                "exchange": record.exchange.decode(),
                "routing_key": record.routing_key.decode(),
                "properties": base64.b64encode(record.properties).decode(),
                "body": base64.b64encode(record.body).decode(),
                "persistent": record.persistent,
                "delivery_count": record.delivery_count,
                "tombstone": record.tombstone,
            }
            for record in store.cursor.read(0, 1 << 40).records
        ],
    }


def clean_queue(maker: Maker) -> str:
    queue_id, store = maker.storage.create_queue(VHOST_ID, "clean", "/")
    maker.fill(store, 40)
    store.begin_transaction()
    for number in range(70):
        store.append_parts(RecordRoute(b"", b"clean"), b"\x00\x00", b"%d" % number, True)
    store.end_transaction()
    maker.end_turn()
    store.ack_range(8, 23)  # including whole segments in the middle
    for offset in (0, 2, 4, 6, 50):
        store.ack(offset)
    store.mark_delivered(30)
    store.mark_returned(1, 2)
    maker.sync()
    return queue_id


def compacted_queue(maker: Maker) -> str:
    policy = RetentionPolicy(compaction=CleanerPolicy(), file_delete_delay_ms=0)
    queue_id, store = maker.storage.create_queue(VHOST_ID, "compacted", "/", policy)
    maker.fill(store, 20, keys=5)
    store.appender.append_tombstone(RecordRoute(b"events", b"key.1"), b"\x00\x00")
    maker.fill(store, 22, keys=1)
    maker.storage.maintain()
    maker.end_turn()
    maker.sync()
    maker.storage.maintain()
    maker.sync()
    return queue_id


def packed_queue(maker: Maker) -> str:
    queue_id, store = maker.storage.create_queue(VHOST_ID, "packed", "/")
    for codec in (GZIP, SNAPPY, LZ4, ZSTD, 0):
        maker.storage.set_policy(store, RetentionPolicy(codec=codec))
        maker.fill(store, 12)
        for number in range(40):
            store.append_parts(RecordRoute(b"events", b"key.4"), PROPERTIES, b"body %d " % number * 9, True)
        maker.end_turn()
        builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 20)
        for number in range(30):
            headers = [("exchange", b"events"), ("properties", PROPERTIES)]
            builder.append(number, 1_600_000_000_000 + 50 * number, b"key.5", b"theirs %d " % number * 9, headers)
        store.appender.append_checked(check_batches(bytes(builder.build())))
        maker.end_turn()
    store.ack_range(100, 119)
    maker.sync()
    return queue_id


def numbered_queue(maker: Maker) -> str:
    """One producer with a gap in its sequence and a second epoch, and another producer."""
    queue_id, store = maker.storage.create_queue(VHOST_ID, "numbered", "/")
    for producer, epoch, sequence in ((5, 0, 0), (5, 0, 1), (5, 0, 7), (5, 1, 3), (2**40, 0, 9)):
        store.set_producer(producer, epoch, sequence)
        offset = store.append_parts(RecordRoute(b"", b"numbered"), PROPERTIES, b"%d" % sequence, True)
        store.set_producer(NO_PRODUCER, 0, -1)
        store.producers().record(
            Producer(producer, epoch, sequence, offset, maker.clock.time_ms()), store.high_watermark
        )
        maker.end_turn()
    store.ack(1)
    maker.sync()
    return queue_id


def transactional_queue(maker: Maker) -> str:
    """Three transactions side by side: one is committed, one aborted, one open, with plain messages between them."""
    maker.storage.require_transaction_format()
    queue_id, store = maker.storage.create_queue(VHOST_ID, "changes", "/")
    maker.storage.set_policy(store, RetentionPolicy())
    for number in range(4):
        for producer in (1 << 62, (1 << 62) + 1, *([(1 << 62) + 2] if number == 3 else [])):
            sequence = 0 if number == 3 and producer == (1 << 62) + 2 else number
            builder = DefaultRecordBatchBuilder(
                magic=2,
                compression_type=0,
                is_transactional=1,
                producer_id=producer,
                producer_epoch=0,
                base_sequence=sequence,
                batch_size=1 << 16,
            )
            builder.append(0, timestamp=1_700_000_000_000, key=b"k", value=b"%d.%d" % (producer, number), headers=[])
            store.appender.append_checked(check_batches(bytes(builder.build()), transactional=True))
        store.append_parts(RecordRoute(b"", b"changes"), PROPERTIES, b"plain %d" % number, True)
        maker.end_turn()
    for producer, commits in ((1 << 62, True), ((1 << 62) + 1, False)):
        marker = marker_batch(BytesWriter(), producer, 0, commits, maker.clock.time_ms())
        store.appender.append_checked([marker])
        maker.end_turn()
    maker.sync()
    return queue_id


def make_delayed(maker: Maker) -> None:
    """Messages of `reminders` as the delay scheduler stores them (broker/delayed); one was released before a crash."""
    maker.storage.require_delay_format()
    stores: dict[object, LocalLog] = {}
    now_ms = maker.clock.time_ms()
    for number, delay_ms in enumerate(DELAYS_MS):
        due_ms = now_ms + delay_ms
        place = key_for(due_ms, now_ms, 4)
        store = stores.get(place)
        if store is None:
            chain = maker.storage.delay_chain(VHOST_ID, DELAYS_ID, new_name(place, ""))
            store = stores[place] = maker.storage.create_log(chain, "reminders", "/", VHOST_ID)
        keys = ["mail", "audit"] if number == 1 else None
        properties = with_delay(PROPERTIES, {"x-delay": -delay_ms}, due_ms, (now_ms << 20) + number, keys)
        store.append_parts(RecordRoute(b"reminders", b"mail"), properties, b"after %d ms" % delay_ms, True)
    maker.end_turn()
    min(stores.items())[1].mark_delivered(0)
    maker.sync()


def describe_delayed(maker: Maker) -> list[dict[str, Any]]:
    """The waiting messages in the order of their time."""
    root = Path(maker.storage.delay_chain(VHOST_ID, DELAYS_ID)[-1])
    found = []
    for directory in sorted(root.iterdir()) if root.exists() else []:
        chain = maker.storage.delay_chain(VHOST_ID, DELAYS_ID, directory.name)
        store = maker.storage.open_log(chain, "reminders", "/", VHOST_ID)
        store.recover()
        found += [
            {
                "due_ms": int(read_due_ms(record.properties)),
                "number": int(read_number(record.properties)),
                "keys": read_keys(record.properties),
                "body": record.body.decode(),
                "released": bool(store.redelivered(record.offset)),
                "level": int(directory.name.partition(".")[0]),
            }
            for record in store.cursor.read(0, 1 << 40).records
        ]
    return sorted(found, key=lambda each: each["due_ms"])


def killed_queue(maker: Maker) -> str:
    queue_id, store = maker.storage.create_queue(VHOST_ID, "killed", "/")
    maker.fill(store, 10)
    store.append_parts(RecordRoute(b"", b"killed"), b"\x00\x00", b"transient", False)
    maker.end_turn()
    store.ack(3)
    store.mark_delivered(5)
    maker.sync()
    return queue_id


def journaled_queues(maker: Maker) -> list[str]:
    """Two queues. A power cut took from their logs what only the journal has."""
    queues = [maker.storage.create_queue(VHOST_ID, name, "/") for name in ("journaled", "beside")]
    sizes: list[dict[Path, int]] = []
    for number in range(5):
        for _, store in queues:
            store.append_parts(RecordRoute(b"", b"journaled"), PROPERTIES, b"commit %d" % number, True)
        maker.end_turn()
        maker.clock.now_ms -= 1000  # no time passes, so the logs are not synced
        sizes.append({log: log.stat().st_size for _, store in queues for log in Path(store.directory).glob("*.log")})
    maker.storage.close(clean=False)
    for log, size in sizes[1].items():  # the commits after the second one use the journal
        with log.open("r+b") as file:
            file.truncate(size)
    return [queue_id for queue_id, _ in queues]


def make(target: Path) -> None:
    path = target / "data"
    path.mkdir()
    first: list[Row] = [
        VhostRow("/", VHOST_ID),
        UserRow("guest", hash_password(b"guest"), "argon2id", ("administrator",)),
    ]
    metadata = SqlMetadataStore("", path, lambda function, *arguments: function(*arguments))
    metadata.open(lambda: first)
    maker = Maker(path)
    ids = {"clean": clean_queue(maker), "compacted": compacted_queue(maker), "packed": packed_queue(maker)}
    ids["numbered"] = numbered_queue(maker)
    ids["changes"] = transactional_queue(maker)
    maker.storage.close(clean=True)
    killed = Maker(path)
    ids["killed"] = killed_queue(killed)
    make_delayed(killed)
    killed.storage.close(clean=False)
    log = max((path / "vhosts" / VHOST_ID / "queues" / ids["killed"]).glob("*.log"))
    log.write_bytes(log.read_bytes() + log.read_bytes()[:70])  # the part of a batch that the kill left
    ids["journaled"], ids["beside"] = journaled_queues(Maker(path, JOURNAL_BYTES))
    rows: list[Row] = [
        PermissionRow("guest", "/", ".*", ".*", ".*"),
        ExchangeRow("/", "events", "topic"),
        ExchangeRow("/", "reminders", "x-delayed-message", arguments=encode_table({"x-delayed-type": "topic"})),
        ExchangeRow("/", "once", "x-message-deduplication", arguments=ONCE),
        *(QueueRow("/", name, queue_id) for name, queue_id in ids.items()),
        BindingRow("/", "events", "clean", "queue", "key.*"),
        BindingRow("/", "reminders", "numbered", "queue", "#"),
        StoredOffsetRow(ids["packed"], "reader", 42, 1_700_000_000_000),
        UserLimitsRow("guest", '{"max-channels":100}'),
        SeenCacheRow("c" * 32, "/", "once"),
        SeenRow("c" * 32, b"order 1", 1, 0),
    ]
    metadata.submit([Put(row) for row in rows], _done)
    metadata.close()
    for name in ("reserve", ".lock"):
        (path / name).unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as copy:  # read from a copy, because opening changes the directory
        expected = read(Path(shutil.copytree(path, Path(copy) / "data")), ids)
    (target / "expected.json").write_text(json.dumps(expected, indent=1) + "\n", "utf-8")


def read(path: Path, ids: dict[str, str]) -> dict[str, Any]:
    """The contents of a data directory, read by the broker's storage."""
    maker = Maker(path)
    stores = {name: maker.storage.open_queue(VHOST_ID, queue_id, name, "/") for name, queue_id in ids.items()}
    for store in stores.values():
        store.recover()
    found: dict[str, Any] = {"queues": ids, "stores": {name: describe_store(store) for name, store in stores.items()}}
    found["delayed"] = describe_delayed(maker)
    found["producers"] = {
        str(name): [producer.epoch, producer.sequence, producer.offset]
        for name in (5, 2**40)
        if "numbered" in stores and (producer := stores["numbered"].producers().find(name, maker.clock.time_ms()))
    }
    found["last_stable_offsets"] = {
        name: int(store.last_stable_offset) for name, store in stores.items() if name == "changes"
    }
    maker.storage.close(clean=False)
    metadata = SqlMetadataStore("", path, lambda function, *arguments: function(*arguments))
    state = metadata.open()
    metadata.close()
    lists = [value for value in state if isinstance(value, list)]
    found["metadata"] = [
        {"row": type(row).__name__, **{name: _plain(value) for name, value in row._asdict().items()}}
        for rows in lists
        for row in rows
    ]
    return found


def _plain(value: object) -> object:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _done(error: BaseException | None) -> None:
    if error is not None:
        raise error


if __name__ == "__main__":
    target = HERE / f"format-{FORMAT_WITH_JOURNAL}"
    if target.exists():
        sys.exit(f"{target} is there: a golden directory is never made anew")
    target.mkdir()
    make(target)
    print(f"{target}: {sum(each.stat().st_size for each in target.rglob('*') if each.is_file())} bytes")
