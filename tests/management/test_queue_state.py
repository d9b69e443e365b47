"""State and reason that `/api/queues` shows for a queue that is unavailable."""

from __future__ import annotations

from typing import Any

import pytest

from amqpd.management import queues
from amqpd.management.queues import is_refilling, state_item


class FakeLog:
    """The attributes of a log that `state_item` reads."""

    def __init__(
        self, local: bool = False, ready: bool = True, failed: bool = False, refused: str | None = None
    ) -> None:
        self.local, self.ready, self.failed, self.refused = local, ready, failed, refused

    def location(self) -> dict[str, object]:
        return {"refused": self.refused}


REFILLING = "its messages are being read back from Kafka"


@pytest.mark.parametrize(
    ("store", "opened", "state", "reason"),
    [
        (None, True, "running", None),
        (FakeLog(local=True), True, "running", None),
        (FakeLog(), True, "running", None),
        (FakeLog(ready=False), False, "syncing", REFILLING),
        (FakeLog(local=True, ready=False), True, "running", None),
        (FakeLog(local=True, ready=False), False, "down", "its log cannot be used; see the broker's log"),
        (FakeLog(failed=True, refused="its topic is gone"), True, "down", "its topic is gone"),
        (FakeLog(failed=True, ready=False, refused="its topic is gone"), False, "down", "its topic is gone"),
    ],
)
def test_state_and_reason_of_queue(
    store: Any, opened: bool, state: str, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "LocalLog", FakeLog)
    assert state_item(store, opened) == {"state": state, "state_reason": reason}
    assert is_refilling(store) == (state == "syncing")
