"""What the walk of states_broker_search.py walks through: a broker's queues and exchanges, a feature or two at a time,
beside plain publishing and consuming.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Final

from states_broker_life import BrokerLife
from states_broker_transaction import Committed

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


def plain(life: BrokerLife, chance: random.Random, queue: str) -> None:
    """What goes on beside: publishes, some of them taken and acked."""
    for _ in range(chance.randint(0, 2)):
        life.publish("", queue, chance.choice((20, 600)))
    if chance.random() < 0.4:
        taken = life.take(queue, chance.randint(1, 2))
        life.ack(taken[:1])
        life.turns()
        life.requeue([each for each in taken[1:] if each.body in life.held])


def delayed(life: BrokerLife, chance: random.Random) -> Iterator[None]:
    """Messages that are due soon and late, in buckets that go down, are released and cancelled."""
    life.queue("q")
    life.exchange("later", "x-delayed-message", "q", x_delayed_type="fanout")
    yield
    spans = [200, 900, chance.choice((20 * MINUTE, 7 * MINUTE)), 20 * MINUTE + 7, 20 * MINUTE + 9, 5 * HOUR + 1]
    sent = [life.publish("later", "q", chance.choice((20, 300)), delay_ms=span) for span in spans]
    plain(life, chance, "q")
    life.turns()
    yield
    life.pass_time(300)
    yield
    life.cancel("later", sent[3])
    life.publish("later", "q", delay_ms=chance.choice((1, 50)))
    life.turns()
    yield
    life.leap(2 * SECOND)
    life.ack(life.take("q", chance.randint(1, 3)))
    life.turns()
    yield
    life.leap(chance.choice((5, 19)) * MINUTE)  # buckets go down
    yield
    life.leap(16 * MINUTE)
    life.rest()
    life.ack(life.take("q", 2))
    life.rest()
    yield


def delayed_and_deleted(life: BrokerLife, chance: random.Random) -> Iterator[None]:
    """An exchange that goes with what waits in it, and comes back under its name."""
    life.queue("q")
    for _ in range(2):
        life.exchange("later", "x-delayed-message", "q", x_delayed_type="fanout")
        for span in (300, 2 * MINUTE, 30 * MINUTE):
            life.publish("later", "q", delay_ms=span)
        life.turns()
        yield
        life.pass_time(400)
        plain(life, chance, "q")
        life.turns()
        yield
        life.delete_exchange("later")
        yield
    life.exchange("later", "x-delayed-message", "q", x_delayed_type="fanout")
    life.publish("later", "q", delay_ms=3 * MINUTE)
    life.turns()
    yield


def retries(life: BrokerLife, chance: random.Random) -> Iterator[None]:
    """What comes back waits, longer each time."""
    wait_ms = 2000
    life.queue("q", x_delayed_retry_type="all", x_delayed_retry_min=wait_ms, x_delayed_retry_max=100 * wait_ms)
    for _ in range(3):
        for _ in range(chance.randint(2, 3)):
            life.publish("", "q", chance.choice((20, 500)))
        life.turns()
        yield
        taken = life.take("q", 3)
        life.turns()
        life.requeue(taken[:2], wait_ms)
        yield
        life.ack(taken[2:])
        life.turns()
        yield
        life.pass_time(chance.choice((500, wait_ms + 10)))
        yield
    life.leap(5 * wait_ms)
    life.ack(life.take("q", 1))
    life.rest()
    yield


def moved(life: BrokerLife, chance: random.Random) -> Iterator[None]:
    """Moved, copied, deleted, by where; beside consumers and a plain queue."""
    levels = chance.choice(({}, {"x_max_priority": 3}))
    life.queue("q", **levels)
    life.queue("to")
    for _ in range(4):
        life.publish("", "q", chance.choice((20, 500)))
    life.publish("", "to", 300)
    life.turns()
    held = life.take("q", 1)
    life.turns()
    yield
    life.job("move", "q", "to", chance.choice(("", "n = 1")))
    life.rest()
    yield
    plain(life, chance, "q")
    life.turns()
    life.queue("other")
    life.job(chance.choice(("copy", "move")), "q", "other", "n = 0")
    life.rest()
    yield
    life.ack([each for each in held if each.body in life.held])
    life.job("delete", "to", None, "n = 1")
    life.rest()
    yield
    life.ack(life.take("to", 2))
    life.rest()
    yield


def redriven(life: BrokerLife, chance: random.Random) -> Iterator[None]:
    """Rejected, dead-lettered, and sent back."""
    life.queue("dead")
    life.queue("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    for _ in range(2):
        for _ in range(4):
            life.publish("", "q", chance.choice((20, 500)))
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
        plain(life, chance, "q")
        life.rest()
        yield


def rewound(life: BrokerLife, chance: random.Random) -> Iterator[None]:
    """Acked, and made ready again as one."""
    levels = chance.choice(({}, {"x_max_priority": 3}))
    life.queue("q", x_retain="7D", **levels)
    for _ in range(2):
        for _ in range(5):
            life.publish("", "q", chance.choice((20, 700)))
        life.turns()
        taken = life.take("q", 4)
        life.ack(taken[: chance.randint(2, 4)])
        life.rest()
        life.flush()
        yield
        life.rewind("q")
        yield
        life.ack([each for each in taken if each.body in life.held])
        life.ack(life.take("q", chance.randint(1, 3)))
        life.rest()
        life.flush()
        yield


def grouped(life: BrokerLife, chance: random.Random) -> Iterator[None]:
    """Messages of three groups and of none, taken, acked, given back."""
    life.queue("g", x_group_by="header:group")
    for _ in range(3):
        for _ in range(chance.randint(3, 5)):
            life.publish("", "g", chance.choice((20, 500)), group=chance.choice(("a", "b", "c", "")))
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


def numbered(life: BrokerLife, chance: random.Random) -> Iterator[None]:
    """Two producers number what they publish, one of them is replaced; beside one who does not."""
    life.queue("q")
    if not life.ledger.sent:
        for sequence in range(3):  # a segment is rolled in one of these turns: from then on there is a snapshot
            life.publish("", "q", 1000, numbers=(7, 0, sequence))
            life.turns()
    life.repeat()
    known = [each.numbers for each in life.ledger.sent.values() if each.numbers is not None]
    epoch = max((each[1] for each in known), default=-1) + 1
    for turn in range(4):
        for producer in (7, 8):
            sequence = 10 * turn
            for step in range(chance.randint(1, 3)):
                sent = life.publish("", "q", chance.choice((20, 400)), numbers=(producer, epoch, sequence + step))
                if chance.random() < 0.3:
                    life.send(sent, other=True)
                if chance.random() < 0.3:
                    life.publish("", "q", 20)
        life.turns()
        yield
        life.ack(life.take("q", chance.randint(0, 4)))
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


def remembered(life: BrokerLife, chance: random.Random) -> Iterator[None]:
    """An exchange that lets each id through once, and remembers them on disk; it is deleted and declared again."""
    life.queue("q")
    told = {"x_cache_size": 1000, "x_cache_persistence": "disk"}
    life.exchange("once", "x-message-deduplication", "q", **told)
    life.repeat()
    for _ in range(3):
        for _ in range(chance.randint(1, 3)):
            life.publish("once", "q", chance.choice((20, 400)), known=True)
        plain(life, chance, "q")
        life.turns()
        yield
        life.ack(life.take("q", chance.randint(0, 2)))
        life.turns()
        life.repeat()
        yield
    life.rest()
    yield


def transacted(life: BrokerLife, chance: random.Random) -> Iterator[None]:
    """Taken from one queue, published to three, acked: in one transaction each, beside plain publishes."""
    life.queue("in")
    life.queue("a")
    life.queue("b", x_max_priority=3)
    life.queue("c", x_max_length=1000)
    for turn in range(3):
        for _ in range(3):
            life.publish("", "in", chance.choice((20, 600)))
        life.turns()
        taken = life.take("in", 3)
        life.turns()
        yield
        counts = {name: chance.choice((1, 2, 5)) for name in "abc"}
        if turn == 1:
            counts["a"] = 70  # two batches and a marker
        Committed(life, counts, chance.choice((20, 400)), taken[: chance.randint(0, 2)]).commit()
        if chance.random() < 0.5:
            life.publish("", "a")
        life.turns()
        yield
        plain(life, chance, "b")
        life.ack([each for each in taken if each.body in life.held])
        life.ack(life.take("a", chance.randint(0, 3)))
        life.turns()
        yield
    life.rest()
    yield


def all_together(life: BrokerLife, chance: random.Random) -> Iterator[None]:
    """Delayed, retried, rejected, redriven and moved in one broker."""
    life.queue("dead")
    retry = {"x_delayed_retry_type": "failed", "x_delayed_retry_min": 1000, "x_delayed_retry_max": 100_000}
    life.queue("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead", **retry)
    life.queue("to")
    life.exchange("later", "x-delayed-message", "q", x_delayed_type="fanout")
    for _ in range(2):
        for delay_ms in (30, 700, 9 * MINUTE):
            life.publish("later", "q", chance.choice((20, 300)), delay_ms=delay_ms)
            life.publish("", "q", chance.choice((20, 300)))
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
