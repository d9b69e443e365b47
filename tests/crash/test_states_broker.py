"""The walk of a broker's lives: nothing is broken, and what breaks its promises is seen."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from typing import Any

import pytest
from states_broker_search import BrokerSearch
from states_broker_workloads import BROKER_WORKLOADS

from amqpd.channel import on_tx
from amqpd.channel.channel import Channel
from amqpd.channel.commit import answer
from amqpd.channel.on_basic import settle_collected


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def walk(name: str, seeds: int = 2, share: float = 0.05) -> None:
    (workload,) = [each for each in BROKER_WORKLOADS if name in each.name]
    for seed in range(seeds):
        BrokerSearch(seed, set(), share=share, draws=1, lived_in=0.002).run(workload)  # type: ignore[arg-type]


@pytest.mark.parametrize("workload", [each.name for each in BROKER_WORKLOADS])
def test_nothing_is_broken(workload: str) -> None:
    walk(workload, 1)


class SettlesAtOnce:
    """A commit that does not wait with its acks for what it has published."""

    def __init__(self, channel: Channel, _transaction: object, _publishes: object, settlements: list[Any]) -> None:
        self.channel = channel
        self.settlements = settlements

    def settle_behind(self, logs: Collection[Any]) -> None:
        for tag, entry, action in self.settlements:
            entry.in_transaction = False
            self.channel.deliveries.unacked.take_one(tag)
            settle_collected(self.channel, entry, action)
        self.channel.busy = True
        answer(self.channel, logs, [])


def test_acks_before_the_publishes_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_tx, "Commit", SettlesAtOnce)
    with pytest.raises(AssertionError, match="was acked by transaction"):
        walk("transactions over three")
