"""The walk of states_broker_search.py over clients of Kafka: its workloads, judged by states_kafka_ledger.py."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Final
from unittest.mock import patch

from states_broker_search import BrokerSearch
from states_broker_workloads import SECOND, BrokerWorkload
from states_disk import Disk, Image
from states_kafka_ledger import KafkaLedger, judge_kafka
from states_kafka_life import GROUPS, KafkaLife, look

from amqpd.kafka_server import compacted_log

OFFSETS_SEGMENT_BYTES: Final = 1500
FIRST: Final = 3
PRODUCERS: Final = (1 << 62 | 5, 1 << 62 | 6)


class KafkaSearch(BrokerSearch):
    """A `BrokerSearch` over workloads of a `KafkaLife`. Subclasses have other lives.

    Attributes:
        ledger_type, life_type: the expected state, and the clients that change it.
        look_function: returns what a start on an image finds.
        judge_function: raises Violation if that is not what the ledger expects.
    """

    ledger_type: ClassVar[Any] = KafkaLedger
    life_type: ClassVar[Any] = KafkaLife
    look_function: ClassVar[Any] = staticmethod(look)
    judge_function: ClassVar[Any] = staticmethod(judge_kafka)

    @contextmanager
    def _own_randomness(self) -> Iterator[None]:
        small = patch.object(compacted_log, "SEGMENT_BYTES", OFFSETS_SEGMENT_BYTES)
        ids = patch("secrets.randbits", self.rng.getrandbits)
        with super()._own_randomness(), small, ids:
            yield

    def _new_ledger(self) -> Any:
        return self.ledger_type()

    def _life_of(self, disk: Disk, ledger: Any, boot: int, **arguments: Any) -> Any:
        return self.life_type(disk, ledger, boot, **arguments)

    def _judge(self, outcome: Any, ledger: Any, kind: str) -> None:
        self.judge_function(outcome, ledger)

    def _look_at(self, image: Image, rows: Any, boot: int, ledger: Any) -> Any:
        return self._looked(lambda: self.look_function(image, rows, boot, self._segment_size_bytes, ledger))

    def _go_on(self, disk: Disk, ledger: Any, boot: int, *, safe: bool) -> None:
        """Judge what a start finds on this disk. The ledger has nothing to adopt."""
        self.judge_function(self._look_at(disk.image(), ledger.rows[-1], boot, ledger), ledger)

    def _live_on(self, disk: Disk, rows: Any, ledger: Any, boot: int, depth: int, kind: str) -> None:
        """Start on this disk under watch; then clients go on for a while."""
        self.lives += 1
        ledger = ledger.copy()
        ledger.rows = [rows]
        self._go_on(disk, ledger, boot, safe=kind == "cut")
        life: Any = self._life(disk, ledger, boot, depth)
        self._work(life)
        if self.rng.random() < 0.3:
            life.flush()
        if self.rng.random() < 0.3:
            life.stop()
        disk.watch = None

    def _work(self, life: Any) -> None:
        """All clients connect after a start, and do something."""
        _begin(life)
        ledger = life.ledger
        for name in [topic.name for topic in ledger.topics.values() if not topic.is_deleting]:
            if len(life.topic(name).batches) > FIRST:  # there is a snapshot
                _traffic(life, self.rng, name)
            if self.rng.random() < 0.5:
                life.commit(self.rng.choice(GROUPS), name, ledger.number)
            life.turns()


def _begin(life: KafkaLife) -> None:
    """All clients connect: groups fetch their offsets, producers send again what may not have been answered."""
    life.see()
    life.retry()


def _create(life: KafkaLife, name: str) -> None:
    """Create a topic, if it does not exist. One of its first turns rolls a segment: from then on there is a snapshot
    of the producers, without which a start does not know that a power cut has removed a segment's name.
    """
    if name not in life.vhost.queues:
        life.stream(name)
        for _ in range(FIRST):
            life.produce(name, PRODUCERS[0], 1, 1000)
            life.turns()


def _traffic(life: KafkaLife, rng: random.Random, name: str) -> None:
    """Send batches of two producers and a message of AMQP in one turn; some batches twice."""
    for producer in PRODUCERS:
        for number in range(rng.randint(0, 3)):
            batch = life.produce(name, producer, rng.randint(1, 4), rng.choice((20, 300)), new_epoch=number == 2)
            if rng.random() < 0.3:
                life.send_batch(name, batch)
    if rng.random() < 0.5:
        life.publish("", name, rng.choice((20, 600)))


def produced(life: KafkaLife, rng: random.Random) -> Iterator[None]:
    """Idempotent producers and a publisher of AMQP; batches that are sent again; retention."""
    _create(life, "s")
    _begin(life)
    for turn in range(4):
        _traffic(life, rng, "s")
        life.turns()
        yield
        life.retry()
        if turn == 2:
            life.trim("s")
            life.storage.maintain()
            life.turns()
        yield


def committed(life: KafkaLife, rng: random.Random) -> Iterator[None]:
    """Commits of two groups, removals, compaction, a topic that is deleted and created again."""
    _begin(life)
    for turn in range(5):
        for name in ("s", "t"):
            life.stream(name)
            for _ in range(rng.randint(1, 3)):
                life.commit(rng.choice(GROUPS), name, life.ledger.number)
        life.turns()
        yield
        if turn in (1, 3):
            group = rng.choice(GROUPS)
            if life.told.possible(group, life.vhost.queues["s"].id) != [-1]:
                life.commit(group, "s", -1)
                life.turns()
                yield
            life.delete("t")
            yield
        if turn >= 2:
            life.leap(120 * SECOND)
            life.storage.maintain()
            life.turns()
            yield


def consumed(life: KafkaLife, rng: random.Random) -> Iterator[None]:
    """Producers, groups that commit, and retention in one broker."""
    _begin(life)
    for turn in range(2):
        for name in ("s", "t"):
            _create(life, name)
            _traffic(life, rng, name)
            life.commit(rng.choice(GROUPS), name, life.ledger.number)
        life.turns()
        yield
        life.retry()
        if turn == 0:
            life.trim("s")
            life.delete("t")
            life.rest()
            life.storage.maintain()
            life.turns()
        yield


class KafkaWorkload(BrokerWorkload):
    """A script over a `KafkaLife`."""


KAFKA_WORKLOADS: Final = tuple(
    KafkaWorkload(name, script, size, ends=("kill", "stop"), paced=paced)  # type: ignore[arg-type]
    for name, script, size, paced in (
        ("batches of Kafka's producers", produced, 60_000, False),
        ("batches, segments roll", produced, 2000, False),
        ("committed offsets", committed, 4000, False),
        ("producers and groups", consumed, 2000, True),
    )
)
