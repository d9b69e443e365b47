"""Of a cluster: publishers that Kafka does not keep up with are held, and told when it lasts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from amqpd.cluster.node import ReplicationAlarm


def test_raised_where_it_lasts_and_over_at_half() -> None:
    turn: Any = SimpleNamespace(commits=SimpleNamespace(unsynced_bytes=0), unsynced_bytes_max=100)
    waits = ReplicationAlarm(turn)
    found = []
    for unsynced in (0, 100, 99, 100, 120, 99, 50, 49, 100):
        turn.commits.unsynced_bytes = unsynced
        found.append(waits())
    assert found == [False, False, False, False, True, True, True, False, False]
