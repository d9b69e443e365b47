"""All workloads: of the storage (states_workloads.py), a broker (states_broker_workloads.py), and Kafka's clients."""

from __future__ import annotations

from typing import Any, Final

import pytest
from states_broker_search import BrokerSearch
from states_broker_workloads import BROKER_WORKLOADS, BrokerWorkload
from states_disk import Disk
from states_kafka import KAFKA_WORKLOADS, KafkaSearch, KafkaWorkload
from states_search import Search
from states_share import SHARE_WORKLOADS, ShareSearch, ShareWorkload
from states_transactions import TRANSACTION_WORKLOADS, TransactionSearch, TransactionWorkload
from states_workloads import WORKLOADS, Workload

ALL: Final[tuple[Workload | BrokerWorkload, ...]] = (
    *WORKLOADS,
    *BROKER_WORKLOADS,
    *KAFKA_WORKLOADS,
    *TRANSACTION_WORKLOADS,
    *SHARE_WORKLOADS,
)


def walk_through(workload: Workload | BrokerWorkload, seed: int, seen: set[int], **arguments: Any) -> Search:
    """Run the search of one workload and return it. Raises: AssertionError."""
    kind = Search if isinstance(workload, Workload) else BrokerSearch
    for workloads, search_kind in (
        (KafkaWorkload, KafkaSearch),
        (TransactionWorkload, TransactionSearch),
        (ShareWorkload, ShareSearch),
    ):
        if isinstance(workload, workloads):
            kind = search_kind
    search = kind(seed, seen, **arguments)
    search.run(workload)  # type: ignore[arg-type]
    return search


def walk_small(name: str, seeds: int, **arguments: Any) -> None:
    """Search the workload of this name with a few states of each seed. Raises: AssertionError."""
    (workload,) = [each for each in ALL if each.name == name]
    for seed in range(seeds):
        walk_through(workload, seed, set(), share=0.06, draws=1, lived_in=0.002, **arguments)


def skip_syncs(monkeypatch: pytest.MonkeyPatch, directory: str) -> None:
    """Make the disk ignore syncs of the logs in this directory: a defect that a search must find."""
    fdatasync = Disk.fdatasync

    def sync_others(disk: Disk, fd: int) -> None:
        if directory not in disk.path_of(fd) or not disk.path_of(fd).endswith(".log"):
            fdatasync(disk, fd)

    monkeypatch.setattr(Disk, "fdatasync", sync_others)
