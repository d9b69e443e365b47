"""Whether Kafka keeps up with publishers: what raises the alarm `store`.

Publishers are held while too many bytes are unsynced (`Turn.unsynced_bytes_max`), as for a slow disk. Where that lasts
from one look of the alarms to the next, the alarm is raised, and clients are told by connection.blocked; it ends when
half of the bound is free again.
"""

from __future__ import annotations

from amqpd.broker.flow.loop_turn import Turn


class StoreWaits:
    """Asked once at each look (`Alarms.store_waits`)."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._full = False
        self._raised = False

    def __call__(self) -> bool:
        turn = self._turn
        unsynced = int(turn.commits.unsynced_bytes)
        full = unsynced >= turn.unsynced_bytes_max
        self._raised = (full and self._full) or (self._raised and unsynced >= turn.unsynced_bytes_max // 2)
        self._full = full
        return self._raised
