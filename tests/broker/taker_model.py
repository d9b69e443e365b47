"""State machine base of test_filters_model.py and test_groups_model.py: a queue with consumers against a model."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from taker import Taker


class TakerMachine(RuleBasedStateMachine):
    """`ready`: the ready messages of the model, in order. `window`: how many messages the queue holds in memory."""

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
        """Update the model after a kill: the consumers are gone, and their unacked messages are ready again."""
        raise NotImplementedError

    def rest(self) -> None:
        """Run the loop until it is idle, then compare the queue with the model."""
        raise NotImplementedError


def beside_a_twin(machine: type[TakerMachine], memory_room: Any, examples: int) -> None:
    """Run the state machine under hypothesis."""
    machine.memory_room = staticmethod(memory_room)
    case = machine.TestCase
    case.settings = settings(
        max_examples=examples, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
    )
    case().runTest()
