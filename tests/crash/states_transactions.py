"""The walk of states_kafka.py over transactional producers: its workloads, judged by states_transactions_ledger.py."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Final

from states_broker_workloads import BrokerWorkload
from states_kafka import KafkaSearch
from states_kafka_life import GROUPS
from states_transactions_ledger import NOBODY, TransactionLedger, judge_transactions
from states_transactions_life import TransactionLife, look

NAMES: Final = ("one", "two")
TOPICS: Final = ("s", "t")


MOMENTS: Final = 4


class TransactionSearch(KafkaSearch):
    """A `KafkaSearch` over workloads of a `TransactionLife`. These have many steps, so only a quarter is crashed."""

    ledger_type = TransactionLedger
    life_type = TransactionLife
    look_function = staticmethod(look)
    judge_function = staticmethod(judge_transactions)

    def __init__(self, seed: int, seen: set[int], *, moments: float = 1.0, **others: Any) -> None:
        super().__init__(seed, seen, moments=moments / MOMENTS, **others)

    def _work(self, life: Any) -> None:
        _begin(life)
        if all(name in life.vhost.queues for name in TOPICS):
            _go_on(life, self.rng, self.rng.choice(NAMES))


def _begin(life: TransactionLife) -> None:
    """All clients connect and do again what was not answered."""
    life.see()
    life.retry()
    for name in list(life.book.producers):
        life.resume(name)


def _create(life: TransactionLife) -> None:
    for topic in TOPICS:
        life.stream(topic)


def _go_on(life: TransactionLife, rng: random.Random, name: str) -> None:
    """Begin a transaction, or go on with the open one; then it may end."""
    producer = life.producer(name)
    if producer.producer == NOBODY or (producer.last is not None and producer.last.is_fenced):
        life.init(name)
    if producer.last is None:
        life.begin(name)
    for topic in rng.choice((TOPICS, TOPICS, TOPICS[:1])):
        count = len(life.transaction(name).batches.get(life.vhost.queues[topic].id, ()))
        if count == 0:
            life.add(name, topic)
        if count < 4:
            life.write(name, topic, rng.randint(1, 3), rng.choice((20, 300)))
    if rng.random() < 0.4:
        life.book.number += 1
        life.add_offset(name, GROUPS[NAMES.index(name)], rng.choice(TOPICS), life.book.number)
    chance = rng.random()
    if chance < 0.5:
        life.end(name, True)
    elif chance < 0.7:
        life.end(name, False)
    elif chance < 0.8:
        life.init(name)


def committed(life: TransactionLife, rng: random.Random) -> Iterator[None]:
    """Transactions of two producers over two topics, with offsets; idempotent producers and AMQP beside them."""
    _create(life)
    _begin(life)
    for name in NAMES:
        if life.producer(name).last is None and rng.random() < 0.6:
            life.init(name)
    yield
    for turn in range(3):
        for name in NAMES:
            _go_on(life, rng, name)
            yield
        if rng.random() < 0.5:
            life.produce("s", 1 << 61 | turn, rng.randint(1, 2), 50)
            life.publish("", "t", 30)
            life.turns()
            yield


def fenced(life: TransactionLife, rng: random.Random) -> Iterator[None]:
    """Producers that are replaced, transactions that take too long, and the compaction of their states."""
    _create(life)
    _begin(life)
    name = NAMES[0]
    for turn in range(3):
        if life.producer(name).last is None:
            life.init(name)
            life.begin(name)
            life.add(name, "s")
            life.write(name, "s", 2, 100)
        yield
        if turn == 1:
            life.time_out(name)
            yield
        life.init(name)
        yield
        life.begin(name)
        life.add(name, "s")
        life.write(name, "s", 1, 500)
        life.end(name, True)
        yield
        life.leap(1000)
        life.storage.maintain()
        life.turns()
        yield


class TransactionWorkload(BrokerWorkload):
    """A script over a `TransactionLife`."""


TRANSACTION_WORKLOADS: Final = tuple(
    TransactionWorkload(name, script, size, ends=("kill", "stop"), paced=paced)  # type: ignore[arg-type]
    for name, script, size, paced in (
        ("transactions", committed, 60_000, False),
        ("transactions, segments roll", committed, 1200, False),
        ("fenced producers", fenced, 2000, True),
    )
)
