"""Workloads whose commits use the journal: the logs are synced later, or never before the crash."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

from states_life import Life

from amqpd.storage.journal import BLOCK_SIZE
from amqpd.storage.retention_policy import CleanerPolicy, RetentionPolicy

JOURNAL_BYTES: Final = 6 * BLOCK_SIZE
"""Two frames in each half: halves are used again after a few commits."""


def journaled(life: Life, rng: random.Random) -> Iterator[None]:
    """Commits of several queues, of one, and of none; acks, deletions, and background syncs."""
    watch, life.disk.watch = life.disk.watch, None  # other workloads cover the creation of queues
    names = [f"q{number}" for number in range(3)]
    for name in names:
        if name not in life.stores:
            life.create(name)
        life.append(name, 1, 40)
    life.turn()
    for name in names:  # the journal is created
        life.append(name, 1, 40)
    life.turn()
    life.disk.watch = watch
    yield
    for _ in range(5):
        for name in rng.sample(names, rng.choice((1, 2, 3, 3))):
            life.append(name, rng.randint(1, 2), rng.choice((20, 500)), persistent=rng.random() < 0.9)
        life.write()
        yield
        life.loop()
        if rng.random() < 0.5:
            life.deliver("q0", life.live("q0")[:1])
            life.settle("q0", life.live("q0")[:1])
        if rng.random() < 0.2:
            life.pass_time(600)
        yield
    life.transaction("q1", 3, 30)
    life.append("q2", 1, 30)
    life.turn()
    yield
    life.purge("q1")
    life.append("q2", 1, 30)
    life.write()
    yield
    life.loop()
    number = len(life.ledger.deleted)
    doomed = f"doomed{number}"
    life.create(doomed)
    for _ in range(2):
        life.append(doomed, 1, 30)
        life.append("q2", 1, 30)
        life.turn()
    yield
    life.delete(doomed, row_first=rng.random() < 0.5)
    life.append("q0", 1, 30)
    life.append("q2", 1, 30)
    life.turn()
    yield
    life.flush()
    life.append("q0", 1, 30)
    life.append("q1", 1, 30)
    life.turn()
    yield


def compacted(life: Life, rng: random.Random) -> Iterator[None]:
    """A compacted segment takes the name of one that the journal has data of."""
    watch, life.disk.watch = life.disk.watch, None
    cleaner = CleanerPolicy(min_dirty_ratio=0.0, tombstone_retention_ms=4000)
    for name in ("q", "r"):
        if name not in life.stores:
            life.create(name, RetentionPolicy(file_delete_delay_ms=rng.choice((0, 2000)), compaction=cleaner))
        life.append(name, 1, 20, key=b"k0")
    life.turn()
    life.disk.watch = watch
    for _ in range(2):
        for _ in range(6):
            for name in ("q", "r"):
                life.append(name, 1, rng.choice((60, 700)), key=b"k%d" % rng.randrange(3))
            life.turn()
        yield
        life.maintain()
        yield
        for name in ("q", "r"):
            life.append(name, 1, 60, key=b"k9")
        life.turn()
        yield
