"""The walk of a broker's lives: nothing is broken, and what breaks its promises is seen."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from states_broker_search import BrokerSearch
from states_broker_workloads import BROKER_WORKLOADS


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
