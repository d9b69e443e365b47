"""Workloads for the time between an action and its write, which only paced lives have."""

from __future__ import annotations

import random
from collections.abc import Iterator

from states_life import Life


def settled_and_not_written(life: Life, rng: random.Random) -> Iterator[None]:
    if "q" not in life.stores:
        life.create("q")
        life.create("r")
    life.append("q", 6, rng.choice((40, 200)))
    life.append("r", 2)
    life.turn()
    life.deliver("q", life.live("q")[:5])
    life.settle("q", life.live("q")[:2])
    life.write()
    yield
    life.settle("q", life.live("q")[1:2])
    life.settle("r", life.live("r")[:1])
    life.turn()
    yield
    life.append("q", 1, rng.choice((40, 700)))
    life.pass_time(rng.choice((0, 10, 30)))  # the tick falls into a turn with an append
    life.write()
    yield
    life.settle("q", life.live("q")[:1], with_turn=True)
    life.settle("q", life.live("q")[1:2])  # is written along without a promise
    life.write()
    yield
    life.loop()
    life.append("q", 3, 650)  # segments are sealed while their settlements wait
    life.turn()
    live = life.live("q")
    life.settle("q", live[: len(live) - 1])
    life.write()
    yield
    life.append("q", 2, rng.choice((30, 1200)))
    life.turn()
    yield
    life.pass_time(60)  # and the segments are removed
    life.loop()
    life.settle("r", life.live("r"))
    life.turn()
    yield
    life.pass_time(60)
    yield
    life.append("q", 2, 40)
    life.turn()
    life.deliver("q", life.live("q")[-2:])
    life.settle("q", life.live("q")[-1:])
    life.write()
    yield


def marks_ahead(life: Life, rng: random.Random) -> Iterator[None]:
    if "q" not in life.stores:
        life.create("q")
    size, lazy = rng.choice(
        ((20, True), (150, False))
    )  # not lazy: all messages are acked, so that segments are removed
    unacked = []
    for turn in range(20):
        count = rng.randint(2, 5)
        life.append("q", count, size)
        going = [each for each in life.live("q") if not each.delivered][-count:]
        life.deliver("q", going)
        unacked += going
        rng.shuffle(unacked)
        stay = len(unacked) // 2 if lazy else 0
        life.settle("q", unacked[stay:])
        unacked = unacked[:stay]
        if turn % 3 == 2:
            yield
    life.append("q", 20, 20)  # most of them covered by the present mark
    life.turn()
    yield
    life.pass_time(400)
    life.loop()
    life.give_back("q", [each for each in life.live("q") if each.delivered][:2])
    life.append("q", 60, 20)
    life.turn()
    yield
    fresh = [each for each in life.live("q") if not each.delivered]
    life.deliver("q", fresh[:10])  # a burst, another one three turns later
    life.deliver("q", fresh[10:25])
    life.settle("q", fresh[:5])
    life.turn()
    yield
    life.settle("q", [each for each in life.live("q") if each.delivered])
    life.turn()


def bursts_with_commits(life: Life, rng: random.Random) -> Iterator[None]:
    """A tx.commit with acks leaves nothing for later; deliveries between many commits are not continuous."""
    if "q" not in life.stores:
        life.create("q")
        life.create("r")
    life.append("q", 40, 20)
    life.turn()
    yield
    for _ in range(6):
        taken = [each for each in life.live("q") if each.delivered]
        life.settle("q", taken[:2])
        life.transaction("r", rng.choice((2, 66)), 12)
        life.deliver("q", [each for each in life.live("q") if not each.delivered][:3], urgent=True)
        if rng.random() < 0.5:
            yield
    yield
    life.settle("q", life.live("q")[:2])
    life.settle("r", life.live("r")[:70])
    life.write()
    yield


def many_paced(life: Life, rng: random.Random) -> Iterator[None]:
    """So many queues that one syncfs syncs all, and other readers are notified later."""
    names = [f"q{number}" for number in range(9)]
    watch, life.disk.watch = life.disk.watch, None  # another workload covers the creation of many queues
    for name in names:
        if name not in life.stores:
            life.create(name)
        life.append(name, 1, 40)
    life.turn()
    life.flush()
    life.disk.watch = watch
    yield
    for name in names:
        life.deliver(name, life.live(name)[:1])
        if rng.random() < 0.7:
            life.settle(name, life.live(name)[:1])
        if rng.random() < 0.3:
            life.append(name, 1, 40)
    life.write()
    yield
    life.loop()
    life.pass_time(50)
    yield
    life.loop()
    life.pass_time(250)
    yield


def letters_and_purges(life: Life, rng: random.Random) -> Iterator[None]:
    """Delayed settlements besides immediate ones: a purge, requeues, a deleted queue."""
    for name in ("q", "dead"):
        if name not in life.stores:
            life.create(name)
    life.append("q", 6, 60)
    life.turn()
    taken = life.live("q")[:2]
    life.deliver("q", taken)
    life.append("dead", len(taken), 60)
    life.write()
    yield
    life.loop()
    life.settle("q", taken)
    life.turn()
    life.deliver("q", life.live("q")[:3])
    life.give_back("q", life.live("q")[1:3])
    life.settle("q", life.live("q")[:1])
    life.write()
    yield
    life.settle("dead", life.live("dead")[:1])
    life.turn()
    life.purge(rng.choice(("q", "dead")))
    life.write()
    yield
    life.loop()
    life.append("q", 2, 900)
    life.settle("q", life.live("q")[:1])
    life.turn()
    yield
    life.settle("dead", life.live("dead"))
    life.write()
    life.delete("dead", row_first=rng.random() < 0.5)  # with waiting settlements
    life.pass_time(60)
    life.loop()
    yield
