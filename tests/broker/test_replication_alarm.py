"""The alarm of a cluster node when Kafka does not keep up with the publishers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from amqpd.cluster.node import ReplicationAlarm


def test_alarm_raised_at_second_full_check_and_cleared_below_half() -> None:
    turn: Any = SimpleNamespace(commits=SimpleNamespace(unsynced_bytes=0), unsynced_bytes_max=100)
    alarm = ReplicationAlarm(turn)
    found = []
    for unsynced in (0, 100, 99, 100, 120, 99, 50, 49, 100):
        turn.commits.unsynced_bytes = unsynced
        found.append(alarm())
    assert found == [False, False, False, False, True, True, True, False, False]
