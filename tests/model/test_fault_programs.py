"""Random programs with failing calls of the disk, full disks, kills and power cuts: no confirmed message is lost.

A program publishes with confirms, in transactions and as a Kafka producer to one of many topologies
(`fault_topologies.py`): delayed, deduplicated, numbered, dead-lettered, moved, copied. Requests come in the middle of
the turns of the event loop. After each life of the broker, every confirmed message must be in its queues, and each
message of the Kafka producer there once.

`-m on_demand` runs 5,000 programs (TEST_PROGRAMS sets another count); TEST_PROGRAMS_SEED sets the first seed.

The broker of 2026-11-29 fails: it answers a batch of the Kafka producer although a full disk refused its middle (seed
2), confirms a delayed message whose sync failed, and drops a dead letter that a full disk does not delay.
"""

from __future__ import annotations

import os

import pytest
from fault_player import BrokenPromise, FaultPlayer

from amqpd.kafka_server import produce, queue_produce

COUNT = 30
SEED = int(os.environ.get("TEST_PROGRAMS_SEED", "1"))


@pytest.fixture(autouse=True)
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "SLICE_S", 0.0)
    monkeypatch.setattr(queue_produce, "SLICE_WORK", 30)


def run(seeds: range) -> None:
    confirmed = refused = 0
    for seed in seeds:
        player = FaultPlayer(seed)
        try:
            player.play()
        except BrokenPromise as error:
            pytest.fail(f"seed {seed}: {error}")
        confirmed += len(player.confirmed)
        refused += len(player.refused)
    print(f"{len(seeds)} programs, {confirmed} messages confirmed, {refused} refused")
    assert confirmed > 10 * len(seeds)
    assert refused > 0


@pytest.mark.slow
def test_confirmed_messages_survive_faults_and_crashes() -> None:
    run(range(SEED, SEED + COUNT))


@pytest.mark.on_demand
@pytest.mark.timeout(3600)
def test_confirmed_messages_survive_thousands_of_programs() -> None:
    run(range(SEED, SEED + int(os.environ.get("TEST_PROGRAMS", "5000"))))
