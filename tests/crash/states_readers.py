"""Stream readers in the walk: each reads below the high watermark; named readers store the offsets that they acked.

The broker's own `ConsumerOffsets` keeps the offsets, over metadata whose commits are one step, may fail, and are
crashed before and after. A record that was read keeps its offset after any crash, as the ledger knows.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from states_ledger import Violation
from states_life import Life, body_of

from amqpd.broker.vhost.consumer_offsets import WRITE_S, ConsumerOffsets
from amqpd.broker.vhost.pending import Done
from amqpd.storage.log.batch import GZIP, LZ4, SNAPPY, ZSTD
from amqpd.storage.metadata.rows import Change, Put, StoredOffsetRow
from amqpd.storage.metadata.store import WriteFailed
from amqpd.storage.queue_log import Cursor, ReadResult
from amqpd.storage.retention_policy import RetentionPolicy

SIZE_MAX = 2000
CODECS = (0, GZIP, SNAPPY, LZ4, ZSTD)


class Readers:
    """The readers of one life, with the stored offsets of the ledger at its start. failing: share of commits that
    fail.
    """

    def __init__(self, life: Life, rng: random.Random) -> None:
        self.life = life
        self.failing = 0.0
        self._rng = rng
        self._positions: dict[tuple[str, str], int] = {}
        self._unacked: dict[tuple[str, str], list[int]] = {}
        self.stored = ConsumerOffsets(
            self._commit,
            lambda function, *arguments: life.posted.append((function, arguments)),
            life.timers.later,
            life.clock,
        )
        self.stored.load([StoredOffsetRow(*key, offset, 1) for key, offset in life.ledger.stored[-1].items()])

    def _commit(self, changes: Sequence[Change], done: Done) -> None:
        """Commit in one step. A failed commit may have been done or not; the next one decides."""
        ledger, disk = self.life.ledger, self.life.disk
        before = ledger.stored[-1]
        after = dict(before)
        for change in changes:
            assert isinstance(change, Put)
            assert isinstance(change.row, StoredOffsetRow)
            after[change.row.queue_id, change.row.name] = change.row.offset
        ledger.version += 1
        if self._rng.random() < self.failing:
            ledger.stored = [after, before]
            disk.changed()
            done(WriteFailed("disk full"))
            return
        ledger.stored = [before, after]
        disk.changed()
        ledger.version += 1
        ledger.stored = [after]
        done(None)
        for key, offset in after.items():
            ledger.reported[key] = offset
        disk.changed()

    def read(self, queue: str, name: str, *, begin: int = 0) -> None:
        """Read up to the high watermark. A new reader starts at its stored offset, or at `begin`."""
        life, key = self.life, (queue, name)
        if key not in self._positions:
            assert self.stored.admit(queue, name)
            stored = self.stored.get(queue, name)
            self._positions[key] = begin if stored is None else min(stored, life.stores[queue].next_offset)
            self._unacked[key] = []
        known = {message.body: message for message in life.ledger.queues[queue]}
        cursor = life.stores[queue].new_cursor()
        position = self._positions[key]
        while True:
            fetch = self.fetch(cursor, position)
            for record in fetch.records:
                if record.offset < position:
                    raise Violation(f"{queue}: {name} reads at {position} and gets {record.offset}")
                message = known[body_of(record)]
                if message.offset != record.offset or message.gone:
                    raise Violation(f"{queue}: {name} gets {message} at {record.offset}")
                message.seen = True
                self._unacked[key].append(record.offset)
                position = record.offset + 1
            if fetch.waiting:
                life.loop()
            elif not fetch.records:
                break
        skipped = [each for each in known.values() if self._positions[key] <= each.offset < position and not each.seen]
        lost = [each for each in skipped if not each.settled and not each.gone]
        if lost:
            raise Violation(f"{queue}: {name} has passed over {lost}")
        cursor.close()
        self._positions[key] = position
        life.ledger.version += 1
        life.disk.changed()

    def fetch(self, cursor: Cursor, position: int) -> ReadResult:
        return cursor.read_safe(position, SIZE_MAX, _nothing)

    def ack(self, queue: str, name: str) -> None:
        """Ack some records in order; the stored offset is written some seconds later."""
        key = (queue, name)
        unacked = self._unacked[key]
        count = self._rng.randint(0, len(unacked))
        if not count:
            return
        del unacked[:count]
        offset = unacked[0] if unacked else self._positions[key]
        self.life.ledger.acked[key] = max(offset, self.life.ledger.acked.get(key, 0))
        self.life.ledger.version += 1
        self.stored.put(queue, name, offset)

    def wait(self) -> None:
        """Wait until the acked offsets are written, or their commit has failed."""
        self.life.pass_time(round(WRITE_S * 1000))
        self.life.loop()

    def leave(self, queue: str, name: str) -> None:
        """Remove the reader; a later one continues at the stored offset."""
        del self._positions[queue, name], self._unacked[queue, name]
        self.stored.settle(queue, name)
        self.life.loop()


def _nothing() -> None:
    """Do nothing: the reader's loop reads again."""


def streams(life: Life, rng: random.Random) -> Iterator[None]:
    """Two named readers, one without a name, retention, and changing policies."""
    if "s" not in life.stores:
        life.create("s", _policy(rng))
    readers = Readers(life, rng)
    for turn in range(3):
        life.append("s", rng.randint(1, 3), rng.choice((10, 400, 900)))
        readers.read("s", "a")
        life.write()  # written but not safe
        readers.read("s", "b", begin=life.stores["s"].high_watermark)
        yield
        life.loop()
        readers.read("s", "a")
        readers.read("s", "b")
        readers.ack("s", "a")
        readers.ack("s", "b")
        readers.failing = rng.choice((0.0, 0.0, 0.5))
        if rng.random() < 0.5:
            readers.leave("s", "a")
        yield
        life.ledger.policies["s"] = _policy(rng)
        life.storage.set_policy(life.stores["s"], life.ledger.policies["s"])
        life.append("s", 2, rng.choice((300, 700)))
        if turn != 1:
            life.turn()
        life.maintain()
        readers.read("s", f"from its beginning, {turn}")
        yield
        readers.wait()
        yield
    readers.failing = 0.0
    readers.wait()
    readers.stored.flush()
    yield


def _policy(rng: random.Random) -> RetentionPolicy:
    return RetentionPolicy(
        max_bytes=rng.choice((1500, 4000)), file_delete_delay_ms=rng.choice((0, 2000)), codec=rng.choice(CODECS)
    )
