"""The walk of states_kafka.py over share groups of streams: its workloads, judged by states_share_ledger.py."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Final

from states_broker_workloads import BrokerWorkload
from states_kafka import PRODUCERS, KafkaSearch
from states_kafka_life import GROUPS
from states_share_ledger import ShareLedger, judge_share
from states_share_life import Member, ShareLife, look

from amqpd.kafka_server.share_wire import ACCEPT, REJECT, RELEASE

TOPICS: Final = ("s", "t")


class ShareSearch(KafkaSearch):
    """A `KafkaSearch` over workloads of a `ShareLife`."""

    ledger_type = ShareLedger
    life_type = ShareLife
    look_function = staticmethod(look)
    judge_function = staticmethod(judge_share)

    def _work(self, life: Any) -> None:
        life.retry()
        for topic in TOPICS:
            if topic in life.vhost.queues:
                life.stream(topic)  # the ledger has it even if its creation was not answered
                _write(life, self.rng, topic)
                _work(life, self.rng, (self.rng.choice(GROUPS), topic, "c"))


def _write(life: ShareLife, rng: random.Random, topic: str) -> None:
    """Send records of both protocols."""
    life.produce(topic, PRODUCERS[0], rng.randint(1, 4), rng.choice((20, 300)))
    if rng.random() < 0.4:
        life.publish("", topic, 30)
    life.turns()


def _work(life: ShareLife, rng: random.Random, member: Member) -> None:
    """Acquire some records, and acknowledge or release some."""
    if member not in life.sources:
        life.join(member)
    life.take(member, rng.randint(1, 5))
    for kind in (ACCEPT, RELEASE, REJECT):
        has = list(life.has[member])
        if has and rng.random() < 0.6:
            life.acknowledge(member, rng.sample(has, rng.randint(1, min(2, len(has)))), kind)


def shared(life: ShareLife, rng: random.Random) -> Iterator[None]:
    """Members of two groups over two streams: some leave, locks expire, retention removes records."""
    life.retry()
    for topic in TOPICS:
        life.stream(topic)
        _write(life, rng, topic)
    yield
    for turn in range(4):
        for topic in TOPICS:
            _write(life, rng, topic)
            for group in GROUPS:
                _work(life, rng, (group, topic, "ab"[rng.random() < 0.4]))
        yield
        if turn == 1:
            member = rng.choice(list(life.sources))
            life.leave(member)
            yield
        if turn == 2:
            if rng.random() < 0.5:
                life.expire()
            else:
                life.trim("s")
            life.storage.maintain()
            life.turns()
            yield


def deleted(life: ShareLife, rng: random.Random) -> Iterator[None]:
    """A stream that is deleted while members have its records, and created again; attempts that are used up."""
    life.retry()
    member = ("a", "s", "a")
    for turn in range(3):
        life.stream("s")
        if member not in life.sources:
            life.join(member)
        _write(life, rng, "s")
        yield
        for _ in range(rng.choice((2, 6))):
            life.take(member, 3)
            has = list(life.has[member])
            if has:
                life.acknowledge(member, has[:2], RELEASE)
        yield
        _work(life, rng, member)
        yield
        if turn == 1:
            life.delete("s")
            yield
        life.expire()
        life.storage.maintain()
        life.turns()
        yield


class ShareWorkload(BrokerWorkload):
    """A script over a `ShareLife`."""


SHARE_WORKLOADS: Final = tuple(
    ShareWorkload(name, script, size, ends=("kill", "stop"), paced=paced)  # type: ignore[arg-type]
    for name, script, size, paced in (
        ("share groups", shared, 2000, False),
        ("share groups of deleted streams", deleted, 4000, True),
    )
)
