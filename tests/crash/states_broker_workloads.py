"""The workloads of states_broker_search.py: one or two features of a broker each, besides plain publishes and
consumers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Final

from states_broker_life import BrokerLife
from states_broker_transaction import WalkTransaction

SECOND, MINUTE, HOUR = 1000, 60_000, 3_600_000
Steps = Callable[[BrokerLife, random.Random], Iterator[None]]


class BrokerWorkload:
    """A script, run once for each life; see `Workload`."""

    def __init__(
        self,
        name: str,
        script: Steps,
        segment_size_bytes: int = 4000,
        ends: tuple[str, ...] = (),
        *,
        paced: bool = False,
    ) -> None:
        self.name = name
        self.script = script
        self.segment_size_bytes = segment_size_bytes
        self.ends = ends
        self.paced = paced
        self.journal_size_bytes = 0


def plain(life: BrokerLife, rng: random.Random, queue: str) -> None:
    """Run other traffic: publish some messages, and get and ack some."""
    for _ in range(rng.randint(0, 2)):
        life.publish("", queue, rng.choice((20, 600)))
    if rng.random() < 0.4:
        taken = life.take(queue, rng.randint(1, 2))
        life.ack(taken[:1])
        life.turns()
        life.requeue([each for each in taken[1:] if each.body in life.held])


def delayed(life: BrokerLife, rng: random.Random) -> Iterator[None]:
    """Messages that are due soon and late; buckets cascade; messages are released and cancelled."""
    life.queue("q")
    life.exchange("later", "x-delayed-message", "q", x_delayed_type="fanout")
    yield
    spans = [200, 900, rng.choice((20 * MINUTE, 7 * MINUTE)), 20 * MINUTE + 7, 20 * MINUTE + 9, 5 * HOUR + 1]
    sent = [life.publish("later", "q", rng.choice((20, 300)), delay_ms=span) for span in spans]
    plain(life, rng, "q")
    life.turns()
    yield
    life.pass_time(300)
    yield
    life.cancel("later", sent[3])
    life.publish("later", "q", delay_ms=rng.choice((1, 50)))
    life.turns()
    yield
    life.leap(2 * SECOND)
    life.ack(life.take("q", rng.randint(1, 3)))
    life.turns()
    yield
    life.leap(rng.choice((5, 19)) * MINUTE)  # buckets cascade
    yield
    life.leap(16 * MINUTE)
    life.rest()
    life.ack(life.take("q", 2))
    life.rest()
    yield


def delayed_and_deleted(life: BrokerLife, rng: random.Random) -> Iterator[None]:
    """An exchange that is deleted with its delayed messages, and declared again."""
    life.queue("q")
    for _ in range(2):
        life.exchange("later", "x-delayed-message", "q", x_delayed_type="fanout")
        for span in (300, 2 * MINUTE, 30 * MINUTE):
            life.publish("later", "q", delay_ms=span)
        life.turns()
        yield
        life.pass_time(400)
        plain(life, rng, "q")
        life.turns()
        yield
        life.delete_exchange("later")
        yield
    life.exchange("later", "x-delayed-message", "q", x_delayed_type="fanout")
    life.publish("later", "q", delay_ms=3 * MINUTE)
    life.turns()
    yield


def retries(life: BrokerLife, rng: random.Random) -> Iterator[None]:
    """Returned messages wait, longer each time."""
    wait_ms = 2000
    life.queue("q", x_delayed_retry_type="all", x_delayed_retry_min=wait_ms, x_delayed_retry_max=100 * wait_ms)
    for _ in range(3):
        for _ in range(rng.randint(2, 3)):
            life.publish("", "q", rng.choice((20, 500)))
        life.turns()
        yield
        taken = life.take("q", 3)
        life.turns()
        life.requeue(taken[:2], wait_ms)
        yield
        life.ack(taken[2:])
        life.turns()
        yield
        life.pass_time(rng.choice((500, wait_ms + 10)))
        yield
    life.leap(5 * wait_ms)
    life.ack(life.take("q", 1))
    life.rest()
    yield


def moved(life: BrokerLife, rng: random.Random) -> Iterator[None]:
    """Moves, copies and deletions with a selector, besides consumers and a plain queue."""
    levels = rng.choice(({}, {"x_max_priority": 3}))
    life.queue("q", **levels)
    life.queue("to")
    for _ in range(4):
        life.publish("", "q", rng.choice((20, 500)))
    life.publish("", "to", 300)
    life.turns()
    held = life.take("q", 1)
    life.turns()
    yield
    life.job("move", "q", "to", rng.choice(("", "n = 1")))
    life.rest()
    yield
    plain(life, rng, "q")
    life.turns()
    life.queue("other")
    life.job(rng.choice(("copy", "move")), "q", "other", "n = 0")
    life.rest()
    yield
    life.ack([each for each in held if each.body in life.held])
    life.job("delete", "to", None, "n = 1")
    life.rest()
    yield
    life.ack(life.take("to", 2))
    life.rest()
    yield


def redriven(life: BrokerLife, rng: random.Random) -> Iterator[None]:
    """Messages that are rejected, dead-lettered and redriven."""
    life.queue("dead")
    life.queue("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    for _ in range(2):
        for _ in range(4):
            life.publish("", "q", rng.choice((20, 500)))
        life.turns()
        taken = life.take("q", 3)
        life.turns()
        life.reject([each for each in taken if len(each.places) == 1], "dead")
        yield
        life.rest()
        life.flush()
        life.job("redrive", "dead")
        life.rest()
        yield
        life.ack([each for each in taken if each.body in life.held])
        plain(life, rng, "q")
        life.rest()
        yield


def rewound(life: BrokerLife, rng: random.Random) -> Iterator[None]:
    """Messages that are acked and rewound in one step."""
    levels = rng.choice(({}, {"x_max_priority": 3}))
    life.queue("q", x_retain="7D", **levels)
    for _ in range(2):
        for _ in range(5):
            life.publish("", "q", rng.choice((20, 700)))
        life.turns()
        taken = life.take("q", 4)
        life.ack(taken[: rng.randint(2, 4)])
        life.rest()
        life.flush()
        yield
        life.rewind("q")
        yield
        life.ack([each for each in taken if each.body in life.held])
        life.ack(life.take("q", rng.randint(1, 3)))
        life.rest()
        life.flush()
        yield


def grouped(life: BrokerLife, rng: random.Random) -> Iterator[None]:
    """Messages of three groups and of none that are delivered, acked and requeued."""
    life.queue("g", x_group_by="header:group")
    for _ in range(3):
        for _ in range(rng.randint(3, 5)):
            life.publish("", "g", rng.choice((20, 500)), group=rng.choice(("a", "b", "c", "")))
        life.turns()
        yield
        taken = life.take("g", 3)
        life.turns()
        yield
        life.ack(taken[:1])
        life.turns()
        life.requeue(taken[1:2])
        yield
        life.ack([each for each in taken if each.body in life.held])
        life.rest()
        yield


def numbered(life: BrokerLife, rng: random.Random) -> Iterator[None]:
    """Two producers with sequence numbers, one of which is replaced, besides a producer without."""
    life.queue("q")
    if not life.ledger.sent:
        for sequence in range(3):  # one of these turns rolls a segment; from then on there is a snapshot
            life.publish("", "q", 1000, numbers=(7, 0, sequence))
            life.turns()
    life.repeat()
    known = [each.numbers for each in life.ledger.sent.values() if each.numbers is not None]
    epoch = max((each[1] for each in known), default=-1) + 1
    for turn in range(4):
        for producer in (7, 8):
            sequence = 10 * turn
            for step in range(rng.randint(1, 3)):
                sent = life.publish("", "q", rng.choice((20, 400)), numbers=(producer, epoch, sequence + step))
                if rng.random() < 0.3:
                    life.send(sent, other=True)
                if rng.random() < 0.3:
                    life.publish("", "q", 20)
        life.turns()
        yield
        life.ack(life.take("q", rng.randint(0, 4)))
        life.turns()
        yield
        life.repeat()
        if turn == 1:
            life.rest()
            life.storage.maintain()
            life.turns()
            epoch += 1
        yield
    life.ack(life.take("q"))
    life.rest()
    yield


def remembered(life: BrokerLife, rng: random.Random) -> Iterator[None]:
    """A deduplicating exchange with its cache on disk, which is deleted and declared again."""
    life.queue("q")
    arguments = {"x_cache_size": 1000, "x_cache_persistence": "disk"}
    life.exchange("once", "x-message-deduplication", "q", **arguments)
    life.repeat()
    for _ in range(3):
        for _ in range(rng.randint(1, 3)):
            life.publish("once", "q", rng.choice((20, 400)), known=True)
        plain(life, rng, "q")
        life.turns()
        yield
        life.ack(life.take("q", rng.randint(0, 2)))
        life.turns()
        life.repeat()
        yield
    life.rest()
    yield


def transacted(life: BrokerLife, rng: random.Random) -> Iterator[None]:
    """Transactions that get from one queue, publish to three and ack, besides plain publishes."""
    life.queue("in")
    life.queue("a")
    life.queue("b", x_max_priority=3)
    life.queue("c", x_max_length=1000)
    for turn in range(3):
        for _ in range(3):
            life.publish("", "in", rng.choice((20, 600)))
        life.turns()
        taken = life.take("in", 3)
        life.turns()
        yield
        counts = {name: rng.choice((1, 2, 5)) for name in "abc"}
        if turn == 1:
            counts["a"] = 70  # two batches and a marker
        WalkTransaction(life, counts, rng.choice((20, 400)), taken[: rng.randint(0, 2)]).commit()
        if rng.random() < 0.5:
            life.publish("", "a")
        life.turns()
        yield
        plain(life, rng, "b")
        life.ack([each for each in taken if each.body in life.held])
        life.ack(life.take("a", rng.randint(0, 3)))
        life.turns()
        yield
    life.rest()
    yield


def all_together(life: BrokerLife, rng: random.Random) -> Iterator[None]:
    """Delays, retries, rejects, redrives and moves in one broker."""
    life.queue("dead")
    retry = {"x_delayed_retry_type": "failed", "x_delayed_retry_min": 1000, "x_delayed_retry_max": 100_000}
    life.queue("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead", **retry)
    life.queue("to")
    life.exchange("later", "x-delayed-message", "q", x_delayed_type="fanout")
    for _ in range(2):
        for delay_ms in (30, 700, 9 * MINUTE):
            life.publish("later", "q", rng.choice((20, 300)), delay_ms=delay_ms)
            life.publish("", "q", rng.choice((20, 300)))
        life.turns()
        yield
        life.pass_time(1000)
        taken = life.take("q", 4)
        life.turns()
        life.requeue(taken[:1], 1000)
        life.reject([each for each in taken[1:2] if "dead" not in each.places], "dead")
        life.ack(taken[2:3])
        life.turns()
        yield
        life.job("move", "q", "to", "n = 0")
        life.rest()
        yield
        life.leap(10 * MINUTE)
        life.ack([each for each in taken if each.body in life.held])
        life.flush()
        yield
    life.job("redrive", "dead")
    life.rest()
    yield


BROKER_WORKLOADS: Final = (
    BrokerWorkload("delayed messages", delayed, ends=("kill", "stop")),
    BrokerWorkload("delayed, and the exchange goes", delayed_and_deleted, ends=("kill",)),
    BrokerWorkload("retries with delay", retries, ends=("kill", "stop")),
    BrokerWorkload("moved, copied, deleted", moved, ends=("kill",)),
    BrokerWorkload("dead letters sent back", redriven, ends=("kill",)),
    BrokerWorkload("rewound", rewound, 2000, ends=("kill", "stop")),
    BrokerWorkload("groups", grouped, ends=("kill",)),
    BrokerWorkload("numbers of producers", numbered, 60_000, ends=("kill", "stop")),
    BrokerWorkload("numbers, segments roll", numbered, 2000, ends=("kill", "stop")),
    BrokerWorkload("ids that are remembered", remembered, ends=("kill",)),
    BrokerWorkload("transactions over three queues", transacted, ends=("kill",)),
    BrokerWorkload("transactions, settled later", transacted, ends=("kill",), paced=True),
    BrokerWorkload("all of it in one broker", all_together, 3000, ends=("kill",), paced=True),
)
