"""Rewinds beside a naive twin: what is published, taken, acked, given back, purged, rewound, retained, and kills.

The twin knows of each offset whether it is ready, unacked or settled. At rest the queue says the same, gives out what
is ready in the order of offsets, and a rewind brings back exactly what was settled, matches and is still in the log. A
kill makes what was unacked ready; what it had not written of the last turn cannot be, as each step here ends its turn.
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from amqpd.broker.surgery.jobs import Jobs, Request
from amqpd.routing.selector import parse
from amqpd.storage.settle.retained import retained_of

EXAMPLES = int(os.environ.get("REWIND_EXAMPLES", "40"))
WHERE = {"": lambda n: True, "n > 20": lambda n: n > 20, "k = 1": lambda n: n % 3 == 1, "k = 9": lambda n: False}
BODY = b"." * 20_000


class RewindMachine(RuleBasedStateMachine):
    make_room: Any = None
    tmp_path_factory: Any = None

    @initialize(window=st.sampled_from([2, 5, 1000]), retain=st.sampled_from(["1h", 1 << 20]))
    def begin(self, window: int, retain: object) -> None:
        self.room = type(self).make_room(type(self).tmp_path_factory.mktemp("rewind"))
        self.room.queue("q", x_retain=retain)
        self.window = window
        self.state: dict[int, str] = {}
        self.held: dict[int, Any] = {}
        self.open()

    def open(self) -> None:
        self.queue = self.room.vhost.queues["q"]
        self.queue.prepare()
        self.queue.order.count_max = self.window
        self.jobs = Jobs(self.room.republisher, self.room.turn, self.room._soon.append)

    def turns(self) -> None:
        self.room.turn.want()
        self.room.turns()

    @rule(count=st.integers(1, 40))
    def publish(self, count: int) -> None:
        for _ in range(count):
            number = len(self.state)
            self.room.publish("q", BODY, headers={"n": number, "k": number % 3}, turn=False)
            self.state[number] = "ready"
        self.turns()

    @rule(count=st.integers(1, 60))
    def take(self, count: int) -> None:
        for _ in range(count):
            entry = self.queue.get(False)
            ready = [offset for offset, state in self.state.items() if state == "ready"]
            if not ready:
                assert entry is None
                return
            assert entry is not None and entry.offset == min(ready)
            self.state[entry.offset] = "unacked"
            self.held[entry.offset] = entry
        self.turns()

    @rule(share=st.integers(1, 3), back=st.booleans())
    def answer(self, share: int, back: bool) -> None:
        for offset in [each for each in self.held if each % share == 0]:
            entry = self.held.pop(offset)
            if back:
                self.queue.requeue(entry, False)
            else:
                self.queue.settle(entry)
            self.state[offset] = "ready" if back else "settled"
        self.turns()

    @rule()
    def purge(self) -> None:
        self.queue.purge()
        for offset, state in self.state.items():
            if state == "ready":
                self.state[offset] = "settled"
        self.turns()

    @rule(where=st.sampled_from(sorted(WHERE)), first=st.integers(0, 60), length=st.sampled_from([-1, 0, 7, 50]))
    def rewind(self, where: str, first: int, length: int) -> None:
        selector = parse(where) if where else None
        until = -1 if length < 0 else first + length
        job = self.jobs.begin(
            Request("rewind", self.room.vhost, self.queue, selector=selector, begin=first, until=until)
        )
        for _ in range(200):
            self.room.advance(25)
            if job.ended_ms:
                break
        assert job.state == "done", (job.state, job.reason)
        end = until if until >= 0 else len(self.state)
        there = self.there()
        came = {
            offset
            for offset, state in self.state.items()
            if state == "settled" and first <= offset < end and offset in there and WHERE[where](offset)
        }
        assert job.done_count == len(came)
        for offset in came:
            self.state[offset] = "ready"

    def there(self) -> set[int]:
        segments = [each for each in self.queue.store.log.segments if not each.gone]
        return {offset for segment in segments for offset in range(segment.base, segment.end)}

    @rule()
    def upkeep(self) -> None:
        self.room.storage.maintain()
        self.turns()

    @rule()
    def kill(self) -> None:
        self.room.advance(60)  # acks older than 50 ms survive
        self.room.restart()
        self.held.clear()
        for offset, state in self.state.items():
            if state == "unacked":
                self.state[offset] = "ready"
        self.open()

    @invariant()
    def it_says_the_same(self) -> None:
        states = list(self.state.values())
        assert self.queue.ready_count == states.count("ready")
        assert self.queue.unacked_count == states.count("unacked")
        store = self.queue.store
        assert store.record_count == states.count("ready") + states.count("unacked")
        there = self.there()
        assert all(offset in there for offset, state in self.state.items() if state != "settled")
        settled = sum(1 for offset in there if self.state[offset] == "settled")
        assert retained_of(store.log.segments, store.next_offset, store.record_count).messages == settled

    def teardown(self) -> None:
        if hasattr(self, "room"):
            self.take(len(self.state) + 1)
            self.room.storage.close(clean=False)


def test_model(make_room: Any, tmp_path_factory: Any) -> None:
    RewindMachine.make_room = staticmethod(make_room)
    RewindMachine.tmp_path_factory = tmp_path_factory
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        RewindMachine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
