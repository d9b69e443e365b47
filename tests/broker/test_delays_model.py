"""Delayed messages against a model: the due time of each message. Hypothesis finds the order of events.

Messages are published and cancelled. Time passes, in steps from a millisecond to 60 days, and the clock is set. The
broker stops, is killed or loses power. An exchange is deleted and declared again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from delay_room import DAY, HOUR, MINUTE, SECOND, declare, jump, publish_delayed, restart
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


def wait_until_open(room: Any, queue: Any) -> None:
    while True:
        try:
            queue.prepare()
        except LogNotOpen:
            room.turns()
        else:
            return


class DelayMachine(RuleBasedStateMachine):
    make_room: Any

    @initialize()
    def begin(self) -> None:
        self.room = self.make_room(Path("/room"), SimulatedFileSystem())
        self.room.boot_id = "1" * 32
        self.boots = 1
        self.number = 0
        # By exchange: body -> (due time, persistent).
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
            publish_delayed(self.room, span, body, name, persistent=lasts)
            self.waiting[name][body] = (due, lasts)

    @rule(span=SPANS)
    def time_passes(self, span: int) -> None:
        jump(self.room, span)
        jump(self.room, 10)
        self.check_released()

    @rule(days=st.sampled_from([-1, 1, -0.01, 0.01]))
    def set_clock(self, days: float) -> None:
        self.room.clock.wall_base_ms += int(days * DAY)
        self.room.storage.clock_watch.accept()
        jump(self.room, 510)
        jump(self.room, 10)
        self.check_released()

    @rule(how=st.sampled_from(["clean", "kill", "cut"]), down=SPANS, seed=st.integers(0, 1000))
    def restart_broker(self, how: str, down: int, seed: int) -> None:
        for name in NAMES:
            self.waiting[name] = {body: each for body, each in self.waiting[name].items() if each[1]}
        if how == "cut":
            self.boots += 1
            self.room.boot_id = f"{self.boots:032x}"
            self.room.filesystem = self.room.filesystem.crashed(seed)
        elif how == "kill":
            self.room.filesystem = self.room.filesystem.killed()
        restart(self.room, down, clean=how == "clean")
        jump(self.room, 10)
        self.check_released()

    @rule(name=st.sampled_from(NAMES), data=st.data())
    def cancel_one(self, name: str, data: st.DataObject) -> None:
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
        self.check_released()

    @rule(name=st.sampled_from(NAMES))
    def recreate_exchange(self, name: str) -> None:
        exchanges.delete_exchange(self.room.vhost, self.room.vhost.exchanges[name], False)
        self.room.turns()
        self.waiting[name].clear()
        declare(self.room, name)

    def check_released(self) -> None:
        """Check that the queues got the due messages, in order of due times."""
        self.room.advance(2)
        for name in NAMES:
            queue = self.room.vhost.queues[name]
            wait_until_open(self.room, queue)
            consumed: list[tuple[bytes, bool]] = []
            while (entry := queue.get(True)) is not None:
                headers = decode_properties(entry.message.properties()).headers or {}
                consumed.append((entry.message.body(), "x-delayed-redelivered" in headers or entry.redelivered))
                self.room.turn.schedule()
                self.room.turns()
            now = self.now()
            dues = []
            for body, redelivered in consumed:
                known = self.waiting[name].pop(body, None)
                if known is None:
                    assert redelivered, (name, body, "an unexpected message, not marked as redelivered")
                    continue
                assert known[0] <= now, (name, body, "released too early")
                dues.append(known[0])
            assert dues == sorted(dues), "not in order of due times"
            overdue = {body: now - due for body, (due, _) in self.waiting[name].items() if due <= now - 5}
            assert not overdue, (name, overdue, "not released in time")

    @invariant()
    def counts_match(self) -> None:
        for name in NAMES:
            assert self.wheel(name).count() == len(self.waiting[name])

    def teardown(self) -> None:
        if hasattr(self, "room"):
            self.room.storage.close(clean=False)


def test_delays_against_model(make_room: Any) -> None:
    class Bound(DelayMachine):
        pass

    Bound.make_room = staticmethod(make_room)
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Bound,
        settings=settings(
            max_examples=examples(60), stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


@pytest.mark.parametrize("seed", range(3))
def test_model_detects_violations(make_room: Any, seed: int) -> None:
    """A lost message, an early one, and an unexpected one."""
    machine = DelayMachine()
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
