"""What machines of a queue and its takers beside a naive twin share (test_filters_model.py, test_groups_model.py)."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from taker import Taker


class TakerMachine(RuleBasedStateMachine):
    """ready: the twin's messages, in order. window: how many messages the queue holds in memory."""

    memory_room: Any = None
    room: Any
    queue: Any
    durable: bool
    window: int
    ready: list[Any]
    takers: list[Taker]
    unacked: dict[Taker, list[Any]]

    def open(self) -> None:
        self.queue.prepare()
        self.queue.order.memory.count_max = self.window

    def teardown(self) -> None:
        if hasattr(self, "room"):
            self.room.storage.close(clean=False)

    @rule()
    def purge(self) -> None:
        self.rest()
        assert self.queue.purge() == len(self.ready)
        self.ready.clear()
        self.rest()

    @precondition(lambda self: self.durable)
    @rule()
    def kill(self) -> None:
        self.rest()
        self.room.restart()
        self.queue = self.room.vhost.queue("q")
        self.open()
        self.killed()
        self.unacked.clear()
        self.takers.clear()
        self.rest()

    def killed(self) -> None:
        """All who took something have gone, and it is back."""
        raise NotImplementedError

    def rest(self) -> None:
        """Until the loop is at rest; then all is as the twin has it."""
        raise NotImplementedError


def beside_a_twin(machine: type[TakerMachine], memory_room: Any, examples: int) -> None:
    """Runs it."""
    machine.memory_room = staticmethod(memory_room)
    case = machine.TestCase
    case.settings = settings(
        max_examples=examples, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
    )
    case().runTest()
