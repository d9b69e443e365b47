"""Readers of streams in the walk: each at its place, below the high watermark; the named ones store what they acked.

The offsets are kept by the broker's own `ConsumerOffsets`, over metadata whose commits are one step, may fail, and are
crashed before and behind it. What a reader has seen stays where it stood, whatever crash follows: the ledger says so.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from states_ledger import Violation
from states_life import Life, body_of

from amqpd.broker.vhost.consumer_offsets import WRITE_S, ConsumerOffsets
from amqpd.broker.vhost.pending import Done
from amqpd.storage.log.batch import GZIP, LZ4, SNAPPY, ZSTD
from amqpd.storage.metadata.store import Change, Put, StoredOffsetRow, WriteFailed
from amqpd.storage.queue_log import Cursor, ReadResult
from amqpd.storage.retention_policy import RetentionPolicy

SIZE_MAX = 2000
CODECS = (0, GZIP, SNAPPY, LZ4, ZSTD)


class Readers:
    """Of one life. What is stored is what the ledger's metadata hold at its beginning. failing: commits do, by lot."""

    def __init__(self, life: Life, chance: random.Random) -> None:
        self.life = life
        self.failing = 0.0
        self._chance = chance
        self._places: dict[tuple[str, str], int] = {}
        self._unacked: dict[tuple[str, str], list[int]] = {}
        self.stored = ConsumerOffsets(
            self._commit,
            lambda function, *arguments: life.posted.append((function, arguments)),
            life.timers.later,
            life.clock,
        )
        self.stored.load([StoredOffsetRow(*key, offset, 1) for key, offset in life.ledger.stored[-1].items()])

    def _commit(self, changes: Sequence[Change], done: Done) -> None:
        """In one step. One that fails may have been done or not: the next one says."""
        ledger, disk = self.life.ledger, self.life.disk
        before = ledger.stored[-1]
        after = dict(before)
        for change in changes:
            assert isinstance(change, Put)
            assert isinstance(change.row, StoredOffsetRow)
            after[change.row.queue_id, change.row.name] = change.row.offset
        ledger.version += 1
        if self._chance.random() < self.failing:
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
            ledger.told[key] = offset
        disk.changed()

    def read(self, queue: str, name: str, *, begin: int = 0) -> None:
        """What comes next below the high watermark; one that has not read yet begins where it has stored, or there."""
        life, key = self.life, (queue, name)
        if key not in self._places:
            assert self.stored.admit(queue, name)
            stored = self.stored.get(queue, name)
            self._places[key] = begin if stored is None else min(stored, life.stores[queue].next_offset)
            self._unacked[key] = []
        known = {message.body: message for message in life.ledger.queues[queue]}
        cursor = life.stores[queue].new_cursor()
        place = self._places[key]
        while True:
            fetch = self.fetch(cursor, place)
            for record in fetch.records:
                if record.offset < place:
                    raise Violation(f"{queue}: {name} reads at {place} and gets {record.offset}")
                message = known[body_of(record)]
                if message.offset != record.offset or message.gone:
                    raise Violation(f"{queue}: {name} gets {message} at {record.offset}")
                message.seen = True
                self._unacked[key].append(record.offset)
                place = record.offset + 1
            if fetch.waiting:
                life.loop()
            elif not fetch.records:
                break
        passed = [each for each in known.values() if self._places[key] <= each.offset < place and not each.seen]
        lost = [each for each in passed if not each.settled and not each.gone]
        if lost:
            raise Violation(f"{queue}: {name} has passed over {lost}")
        cursor.close()
        self._places[key] = place
        life.ledger.version += 1
        life.disk.changed()

    def fetch(self, cursor: Cursor, place: int) -> ReadResult:
        return cursor.read_safe(place, SIZE_MAX, _nothing)

    def ack(self, queue: str, name: str) -> None:
        """Some of what it has, in order; what is stored for it is written some seconds later."""
        key = (queue, name)
        unacked = self._unacked[key]
        count = self._chance.randint(0, len(unacked))
        if not count:
            return
        del unacked[:count]
        offset = unacked[0] if unacked else self._places[key]
        self.life.ledger.acked[key] = max(offset, self.life.ledger.acked.get(key, 0))
        self.life.ledger.version += 1
        self.stored.put(queue, name, offset)

    def wait(self) -> None:
        """Until what was acked is written, or has failed."""
        self.life.pass_time(round(WRITE_S * 1000))
        self.life.loop()

    def leave(self, queue: str, name: str) -> None:
        """It goes on later where it has stored."""
        del self._places[queue, name], self._unacked[queue, name]
        self.stored.settle(queue, name)
        self.life.loop()


def _nothing() -> None:
    """The disk has answered: the loop of the reader sees it."""


def streams(life: Life, chance: random.Random) -> Iterator[None]:
    """Two named readers and one without a name, a head that is cut, policies that change."""
    if "s" not in life.stores:
        life.create("s", _policy(chance))
    readers = Readers(life, chance)
    for turn in range(3):
        life.append("s", chance.randint(1, 3), chance.choice((10, 400, 900)))
        readers.read("s", "a")
        life.write()  # it is in the files, and not safe
        readers.read("s", "b", begin=life.stores["s"].high_watermark)
        yield
        life.loop()
        readers.read("s", "a")
        readers.read("s", "b")
        readers.ack("s", "a")
        readers.ack("s", "b")
        readers.failing = chance.choice((0.0, 0.0, 0.5))
        if chance.random() < 0.5:
            readers.leave("s", "a")
        yield
        life.ledger.policies["s"] = _policy(chance)
        life.storage.set_policy(life.stores["s"], life.ledger.policies["s"])
        life.append("s", 2, chance.choice((300, 700)))
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


def _policy(chance: random.Random) -> RetentionPolicy:
    codec = chance.choice(CODECS)
    if chance.random() < 0.5:
        return RetentionPolicy(max_bytes=chance.choice((1500, 4000)), file_delete_delay_ms=0, codec=codec)
    return RetentionPolicy(max_records=chance.choice((3, 8)), file_delete_delay_ms=2000, codec=codec)
