"""A data directory to damage, what it holds, and what may be found in it afterwards.

`Specimen` is the image of a disk after a life that has rolled segments, settled, delivered, given back and stopped or
been killed. `examine` opens a damaged copy with the real recovery, reads everything, appends, kills, opens once more,
and says what was found. Verdict: no byte that was not published, nothing twice, in order; the rest is the caller's.
"""

from __future__ import annotations

import random
from typing import Final, NamedTuple

from states_disk import Disk, Image
from states_ledger import Ledger, Message
from states_life import ROUTE, Life

from amqpd.storage.log.batch import HEADER_SIZE, BatchHeader

QUEUE: Final = "/data/vhosts/v/queues/q"


class Specimen:
    """messages: all that were published, by body. unsettled: bodies that must be there if nothing is damaged."""

    def __init__(
        self, *, clean: bool, segment_size_bytes: int, turns: int, size: int, settle: bool = True, seed: int = 1
    ) -> None:
        chance = random.Random(seed)
        self.segment_size_bytes = segment_size_bytes
        self.disk = Disk({"/data": None, "/data/vhosts": None, "/data/vhosts/v": None, "/data/vhosts/v/queues": None})
        ledger = Ledger()
        life = Life(self.disk, ledger, 1, segment_size_bytes=segment_size_bytes)
        life.create("q")
        for turn in range(turns):
            life.append("q", chance.randint(1, 3), chance.choice((size, size // 2, 20)))
            life.turn()
            if settle and turn % 3 == 2:
                live = life.live("q")
                life.deliver("q", live[:3])
                life.settle("q", live[1:3])
                life.give_back("q", live[:1])
                life.turn()
        life.storage.commits.flush()
        life.loop()
        if clean:
            life.stop()
        self.image = self.disk.image()
        self.messages = {message.body: message for message in ledger.queues["q"]}
        self.unsettled = [message.body for message in ledger.queues["q"] if not message.settled]

    def files(self) -> list[str]:
        return sorted(path for path, data in self.image.items() if data is not None)

    def logs(self) -> list[str]:
        return [path for path in self.files() if path.endswith(".log")]

    def data(self, path: str) -> bytes:
        data = self.image[path]
        assert data is not None
        return data

    def batches(self, path: str) -> list[tuple[int, int, int, int]]:
        """(position, end, first offset, last offset) of each batch in a log."""
        data = self.data(path)
        found = []
        position = 0
        while position + HEADER_SIZE <= len(data):
            header = BatchHeader(data, position)
            found.append((position, position + header.size, header.base_offset, header.last_offset))
            position += header.size
        return found

    def with_file(self, path: str, data: bytes | None) -> Image:
        """The image with another file at `path`, or without it."""
        image = dict(self.image)
        if data is None:
            del image[path]
        else:
            image[path] = data
        return image


class Finding(NamedTuple):
    """bodies: in order. lost: offset ranges the store says are lost. count: what it counts."""

    bodies: list[bytes]
    offsets: list[int]
    lost: list[tuple[int, int]]
    degraded: bool
    next_offset: int


def examine(specimen: Specimen, image: Image, *, go_on: bool = True) -> Finding:
    """Opens the damaged copy, reads, appends, kills, opens again, and says what was found. Raises: AssertionError."""
    finding = _open(specimen, Disk(image), b"")
    if go_on:
        disk = Disk(image)
        _open(specimen, disk, b"new")
        again = _open(specimen, disk.killed(), b"")
        fresh = [body for body in again.bodies if body == b"new"]
        assert len(fresh) == 1 and again.bodies[-1] == b"new", "what is appended after the damage is not there"
        assert set(finding.bodies) - set(again.bodies) == set(), "what was found once is gone"
        assert again.offsets[-1] >= finding.next_offset, "an offset is used again"
    return finding


def _open(specimen: Specimen, disk: Disk, new: bytes) -> Finding:
    ledger = Ledger()
    ledger.rows = [{"q": "live"}]
    life = Life(disk, ledger, 1, segment_size_bytes=specimen.segment_size_bytes)
    store = life.stores["q"]
    store.recover()
    records = store.cursor.read(0, 1 << 30).records
    last = -1
    for record in records:
        if record.body == b"new":
            continue
        message: Message | None = specimen.messages.get(record.body)
        assert message is not None, f"wrong bytes at offset {record.offset}: {record.body[:60]!r}"
        assert message.number > last, f"message {message.number} comes after {last}"
        last = message.number
    assert store.record_count == len(records), f"{store.record_count} are counted, {len(records)} are there"
    if new:
        ledger.queues["q"] = []
        store.append_parts(ROUTE, b"", new, True)
        life.turn()
    offsets = [record.offset for record in records]
    assert offsets == sorted(set(offsets))
    bodies = [record.body for record in records]
    return Finding(bodies, offsets, list(store.lost), store.has_lost_offsets, store.next_offset)
