"""Delayed messages against a naive twin: a list of who is due when. Hypothesis finds the order of events.

Messages come, time passes in steps from a millisecond to a month, the clock is set, the broker stops, is killed or
loses power, messages are cancelled, an exchange is deleted and declared again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from delay_room import DAY, HOUR, MINUTE, SECOND, declare, later, leap, restart
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from profiles import examples
from simulated_filesystem import SimulatedFileSystem

from amqpd.broker.consumer import LogNotOpen
from amqpd.broker.delayed.listing import cancel, next_due
from amqpd.broker.vhost import declare as exchanges
from amqpd.protocol.properties import decode_properties

SPANS = st.one_of(
    st.integers(1, 50),
    st.integers(1, 20 * SECOND),
    st.integers(1, 10 * MINUTE),
    st.integers(1, 5 * HOUR),
    st.integers(1, 60 * DAY),
)
NAMES = ("later", "other")


def open_now(room: Any, queue: Any) -> None:
    while True:
        try:
            queue.prepare()
        except LogNotOpen:
            room.turns()
        else:
            return


class Machine(RuleBasedStateMachine):
    make_room: Any

    @initialize()
    def begin(self) -> None:
        self.room = self.make_room(Path("/room"), SimulatedFileSystem())
        self.room.boot_id = "1" * 32
        self.boots = 1
        self.number = 0
        # By exchange: body -> (due, whether it lasts).
        self.waiting: dict[str, dict[bytes, tuple[int, bool]]] = {name: {} for name in NAMES}
        for name in NAMES:
            declare(self.room, name)

    def now(self) -> int:
        return int(self.room.clock.time_ms())

    def wheel(self, name: str) -> Any:
        return self.room.vhost.exchanges[name].wheel

    @rule(name=st.sampled_from(NAMES), span=SPANS, count=st.integers(1, 4), lasts=st.booleans())
    def publish(self, name: str, span: int, count: int, lasts: bool) -> None:
        for _ in range(count):
            body = b"%d" % self.number
            self.number += 1
            due = self.now() + span
            later(self.room, span, body, name, persistent=lasts)
            self.waiting[name][body] = (due, lasts)

    @rule(span=SPANS)
    def time_passes(self, span: int) -> None:
        leap(self.room, span)
        leap(self.room, 10)
        self.come()

    @rule(days=st.sampled_from([-1, 1, -0.01, 0.01]))
    def clock_is_set(self, days: float) -> None:
        self.room.clock.wall_base_ms += int(days * DAY)
        self.room.storage.clock_watch.accept()
        leap(self.room, 510)
        leap(self.room, 10)
        self.come()

    @rule(how=st.sampled_from(["clean", "kill", "cut"]), down=SPANS, seed=st.integers(0, 1000))
    def restarts(self, how: str, down: int, seed: int) -> None:
        for name in NAMES:
            self.waiting[name] = {body: each for body, each in self.waiting[name].items() if each[1]}
        if how == "cut":
            self.boots += 1
            self.room.boot_id = f"{self.boots:032x}"
            self.room.filesystem = self.room.filesystem.crashed(seed)
        elif how == "kill":
            self.room.filesystem = self.room.filesystem.killed()
        restart(self.room, down, clean=how == "clean")
        leap(self.room, 10)
        self.come()

    @rule(name=st.sampled_from(NAMES), data=st.data())
    def cancelled(self, name: str, data: st.DataObject) -> None:
        *_, found = next_due([self.wheel(name)], 1000)
        assert found is not None
        known = sorted((due, int(body)) for body, (due, _) in self.waiting[name].items())
        assert [each.due_ms for each in found] == [due for due, _ in known]
        if not found:
            return
        index = data.draw(st.integers(0, len(found) - 1))
        *_, done = cancel([self.wheel(name)], found[index].due_ms, found[index].number)
        assert done is True
        del self.waiting[name][b"%d" % known[index][1]]
        self.room.turns()
        self.room.advance(60)
        self.come()

    @rule(name=st.sampled_from(NAMES))
    def exchange_goes(self, name: str) -> None:
        exchanges.delete_exchange(self.room.vhost, self.room.vhost.exchanges[name], False)
        self.room.turns()
        self.waiting[name].clear()
        declare(self.room, name)

    def come(self) -> None:
        """What is in the queues is what was due, in its order."""
        self.room.advance(2)
        for name in NAMES:
            queue = self.room.vhost.queues[name]
            open_now(self.room, queue)
            came: list[tuple[bytes, bool]] = []
            while (entry := queue.get(True)) is not None:
                headers = decode_properties(entry.message.properties()).headers or {}
                came.append((entry.message.body(), "x-delayed-redelivered" in headers or entry.redelivered))
                self.room.turn.schedule()
                self.room.turns()
            now = self.now()
            dues = []
            for body, again in came:
                known = self.waiting[name].pop(body, None)
                if known is None:
                    assert again, (name, body, "came, and nobody waited for it")
                    continue
                assert known[0] <= now, (name, body, "came too early")
                dues.append(known[0])
            assert dues == sorted(dues), "in the order of their time"
            late = {body: now - due for body, (due, _) in self.waiting[name].items() if due <= now - 5}
            assert not late, (name, late, "should have come")

    @invariant()
    def counts(self) -> None:
        for name in NAMES:
            assert self.wheel(name).count() == len(self.waiting[name])

    def teardown(self) -> None:
        if hasattr(self, "room"):
            self.room.storage.close(clean=False)


def test_against_a_twin(make_room: Any) -> None:
    class Bound(Machine):
        pass

    Bound.make_room = staticmethod(make_room)
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Bound,
        settings=settings(
            max_examples=examples(60), stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


@pytest.mark.parametrize("seed", range(3))
def test_the_twin_sees_what_is_wrong(make_room: Any, seed: int) -> None:
    """A message that is lost, one that comes early."""
    machine = Machine()
    machine.make_room = make_room
    machine.begin()
    machine.publish("later", 1000, 1, True)
    if seed == 0:
        machine.waiting["later"][b"lost"] = (machine.now(), True)
    elif seed == 1:
        machine.waiting["later"][b"0"] = (machine.now() + DAY, True)
    else:
        machine.waiting["later"].clear()
    with pytest.raises(AssertionError):
        machine.time_passes(2000)
    machine.teardown()
