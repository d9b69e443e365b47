"""All workloads: of the storage (states_workloads.py), a broker (states_broker_workloads.py), and Kafka's clients."""

from __future__ import annotations

from typing import Any, Final

from states_broker_search import BrokerSearch
from states_broker_workloads import BROKER_WORKLOADS, BrokerWorkload
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
