"""All workloads: of the storage (states_workloads.py) and of a broker (states_broker_workloads.py)."""

from __future__ import annotations

from typing import Any, Final

from states_broker_search import BrokerSearch
from states_broker_workloads import BROKER_WORKLOADS, BrokerWorkload
from states_search import Search
from states_workloads import WORKLOADS, Workload

ALL: Final[tuple[Workload | BrokerWorkload, ...]] = (*WORKLOADS, *BROKER_WORKLOADS)


def walk_through(workload: Workload | BrokerWorkload, seed: int, seen: set[int], **arguments: Any) -> Search:
    """Run the search of one workload and return it. Raises: AssertionError."""
    kind = BrokerSearch if isinstance(workload, BrokerWorkload) else Search
    search = kind(seed, seen, **arguments)
    search.run(workload)  # type: ignore[arg-type]
    return search
