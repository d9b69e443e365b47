"""Rewinds against a naive twin: random publishes, gets, acks, requeues, purges, rewinds, retention and kills.

The twin knows for each offset whether it is ready, unacked or settled (acked or purged). When the loop is idle, the
queue agrees and delivers ready messages in the order of offsets. A rewind makes exactly the settled, matching messages
that are still in the log ready again. The queue works meanwhile, and no rewound message is ready before all are. A kill
makes unacked messages and those a rewind has found ready; each step ends its turn, so no write is missing.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from profiles import examples

from amqpd.broker.jobs.jobs import JobManager, JobRequest
from amqpd.errors import PreconditionFailed
from amqpd.routing.selector import parse_selector
from amqpd.storage.acks.retained import retained_of

EXAMPLES = int(os.environ.get("REWIND_EXAMPLES", examples(40)))
SELECTORS = {"": lambda n: True, "n > 20": lambda n: n > 20, "k = 1": lambda n: n % 3 == 1, "k = 9": lambda n: False}
BODY = b"." * 20_000


class RewindMachine(RuleBasedStateMachine):
    make_room: Any = None
    tmp_path_factory: Any = None

    @initialize(window=st.sampled_from([2, 5, 1000]), retain=st.sampled_from(["1h", 1 << 20]), share=st.integers(0, 3))
    def begin(self, window: int, retain: object, share: int) -> None:
        self.room = type(self).make_room(type(self).tmp_path_factory.mktemp("rewind"))
        self.room.queue("q", x_retain=retain)
        self.window = window
        self.state: dict[int, str] = {}
        self.unacked: dict[int, Any] = {}
        self.job: Any = None
        self.rewound: set[int] = set()
        self.open()
        if share:  # messages acked out of order are before the window
            self.publish(40)
            self.take(40)
            self.ack_or_requeue(share, requeue=False)
            self.kill()

    def open(self) -> None:
        self.queue = self.room.vhost.queues["q"]
        self.queue.prepare()
        self.queue.order.memory.count_max = self.window
        self.jobs = JobManager(self.room.republisher, self.room.turn, self.room._soon.append)

    def turns(self) -> None:
        self.room.turn.schedule()
        self.room.turns()
        self.check_job()

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
            entry = self.get()
            ready = [offset for offset, state in self.state.items() if state == "ready"]
            if not ready:
                assert entry is None
                return
            assert entry is not None and entry.offset == min(ready)
            self.state[entry.offset] = "unacked"
            self.unacked[entry.offset] = entry
        self.turns()

    def get(self) -> Any:
        """Get a message. As channels do, ask again while the queue still reads its log."""
        entry = self.queue.get(False)
        while entry is None and self.queue.must_wait():
            self.turns()
            entry = self.queue.get(False)
        return entry

    @rule(share=st.integers(1, 3), requeue=st.booleans())
    def ack_or_requeue(self, share: int, requeue: bool) -> None:
        for offset in [each for each in self.unacked if each % share == 0]:
            entry = self.unacked.pop(offset)
            if requeue:
                self.queue.requeue(entry, False)
            else:
                self.queue.ack(entry)
            self.state[offset] = "ready" if requeue else "settled"
        self.turns()

    @rule()
    def purge(self) -> None:
        self.queue.purge()
        for offset, state in self.state.items():
            if state == "ready":
                self.state[offset] = "settled"
        self.turns()

    @rule(
        where=st.sampled_from(["", "", "", *SELECTORS]),
        first=st.sampled_from([0, 0, 0, 7, 30, 60]),
        length=st.sampled_from([-1, -1, 0, 7, 50]),
        ms=st.sampled_from([0, 20, 20, 300]),
    )
    def rewind(self, where: str, first: int, length: int, ms: int) -> None:
        """Begin a rewind and run it for `ms` milliseconds, so that it is in any of its stages or has ended."""
        selector = parse_selector(where) if where else None
        until = -1 if length < 0 else first + length
        request = JobRequest("rewind", self.room.vhost, self.queue, selector=selector, begin=first, until=until)
        if self.job is not None:
            with pytest.raises(PreconditionFailed):
                self.jobs.begin(request)
            return
        job = self.jobs.begin(request)
        self.turns()
        end = until if until >= 0 else len(self.state)
        offsets_in_log = self.offsets_in_log()
        self.rewound = {
            offset
            for offset, state in self.state.items()
            if state == "settled" and first <= offset < end and offset in offsets_in_log and SELECTORS[where](offset)
        }
        self.job = job
        self.wait(ms)

    @rule(ms=st.sampled_from([1, 20, 300]))
    def wait(self, ms: int) -> None:
        self.room.advance(ms)
        self.check_job()

    def check_job(self) -> None:
        """If the rewind has ended, mark its messages as ready, except those that have left the log meanwhile."""
        job = self.job
        if job is None or not job.ended_ms:
            return
        assert job.state == "done", (job.state, job.reason)
        offsets_in_log = self.offsets_in_log()
        rewound_in_log = {offset for offset in self.rewound if offset in offsets_in_log}
        assert job.done_count == len(rewound_in_log)
        for offset in rewound_in_log:
            self.state[offset] = "ready"
        self.job = None

    def offsets_in_log(self) -> set[int]:
        segments = [each for each in self.queue.store.log.segments if not each.is_removed]
        return {offset for segment in segments for offset in range(segment.base, segment.end)}

    @rule()
    def run_maintenance(self) -> None:
        self.room.storage.maintain()
        self.turns()

    @rule()
    def delete(self) -> None:
        """Delete ready, matching messages with a job. A running rewind makes no progress, because no time passes."""
        job = self.jobs.begin(JobRequest("delete", self.room.vhost, self.queue, selector=parse_selector("k = 2")))
        self.turns()
        assert job.state == "done", (job.state, job.reason)
        for offset, state in self.state.items():
            if state == "ready" and offset % 3 == 2:
                self.state[offset] = "settled"

    @rule()
    def kill(self) -> None:
        self.room.advance(60)  # acks older than 50 ms survive
        self.check_job()
        self.room.restart()
        self.unacked.clear()
        for offset, state in self.state.items():
            if state == "unacked":
                self.state[offset] = "ready"
        self.open()
        if self.job is not None:
            for offset in self.rewound & self.offsets_in_log():
                self.state[offset] = "ready"
            self.job = None

    @invariant()
    def queue_matches_twin(self) -> None:
        states = list(self.state.values())
        assert self.queue.ready_count == states.count("ready")
        assert self.queue.unacked_count == states.count("unacked")
        if self.job is not None:
            return  # rewound messages in the log are not ready yet
        store = self.queue.store
        assert store.record_count == states.count("ready") + states.count("unacked")
        offsets_in_log = self.offsets_in_log()
        assert all(offset in offsets_in_log for offset, state in self.state.items() if state != "settled")
        settled = sum(1 for offset in offsets_in_log if self.state[offset] == "settled")
        assert retained_of(store.log.segments, store.next_offset, store.record_count).messages == settled

    def teardown(self) -> None:
        if hasattr(self, "room"):
            self.take(len(self.state) + 1)
            self.room.storage.close(clean=False)


def test_rewind_matches_naive_twin(make_room: Any, tmp_path_factory: Any) -> None:
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
