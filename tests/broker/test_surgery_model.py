"""Surgery beside a naive twin: whatever is published, taken, settled and given back while jobs run and end, are
stopped, or the broker is killed.

The twin knows of each message where it may be. At rest every message is in one place: in the source, with its consumer,
in the target, or gone for a reason; a job that has come to its end has left nothing that it was to take and that was
ready all the time. After a kill nothing is missing that nobody has settled, and what is in both queues is marked.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from profiles import examples

from amqpd.broker.jobs.jobs import JobManager, JobRequest
from amqpd.broker.queue import scan
from amqpd.protocol.properties import decode_properties
from amqpd.routing.selector import parse_selector

EXAMPLES = int(os.environ.get("SURGERY_EXAMPLES", examples(60)))
COLOURS = ("red", "green", "blue")
WHERE = {"": set(COLOURS), "colour = 'red'": {"red"}, "colour <> 'red'": {"green", "blue"}, "colour = 'black'": set()}
assert scan.SLICE_MS > 0


class SurgeryMachine(RuleBasedStateMachine):
    memory_room: Any = None

    @initialize(
        kind=st.sampled_from(["durable", "transient", "priority", "transient priority"]),
        window=st.sampled_from([2, 5, 1000]),
        slow=st.booleans(),
        backlog=st.sampled_from([0, 30, 300]),
    )
    def begin(self, kind: str, window: int, slow: bool, backlog: int) -> None:
        self.room = type(self).memory_room()
        self.durable = "transient" not in kind
        levels = {"x_max_priority": 3} if "priority" in kind else {}
        self.room.queue("source", durable=self.durable, **levels)
        self.room.queue("target")
        self.window = window
        self.slow = slow
        self.held: list[Any] = []
        self.published: dict[int, str] = {}
        self.settled: set[int] = set()  # acked, deleted, or taken out of the target
        self.safe: set[int] = set()  # written when all was at rest the last time, and not settled then
        self.open()
        if backlog:
            self.publish(backlog, 0)

    def open(self) -> None:
        self.source, self.target = self.room.vhost.queues["source"], self.room.vhost.queues["target"]
        assert self.source.can_open() and self.target.can_open()
        self.source.order.memory.count_max = self.window
        self.room.clock.per_look_ms = 1 if self.slow else 0
        self.jobs = JobManager(self.room.republisher, self.room.turn, self.room._soon.append)
        self.job: Any = None
        self.touched: set[int] = set()

    def number(self, entry: Any) -> int:
        return int(entry.message.body())

    @rule(count=st.integers(1, 40), colour=st.integers(0, 2))
    def publish(self, count: int, colour: int) -> None:
        for _ in range(count):
            number = len(self.published)
            name = COLOURS[(number + colour) % 3]
            self.published[number] = name
            self.room.publish("source", b"%d" % number, headers={"colour": name}, priority=number % 4, turn=False)
            self.touched.add(number)
        self.room.turn.schedule()

    @rule(count=st.sampled_from([1, 2, 5, 90]))
    def take(self, count: int) -> None:
        for _ in range(count):
            entry = self.source.get(False)
            if entry is None:
                return
            self.held.append(entry)
            self.touched.add(self.number(entry))

    @precondition(lambda self: self.held)
    @rule(index=st.integers(0, 100), ack=st.booleans())
    def settle(self, index: int, ack: bool) -> None:
        entries = [self.held.pop(index % len(self.held))]
        if index > 80:
            entries += self.held
            self.held = []
        for entry in entries:
            if ack:
                self.source.ack(entry)
                self.settled.add(self.number(entry))
            else:
                self.source.requeue(entry, counts=False)
                self.source.schedule_dispatch()
        self.room.turn.schedule()

    @precondition(lambda self: self.job is None)
    @rule(
        verb=st.sampled_from(["move", "move", "delete", "copy"]),
        where=st.sampled_from(sorted(WHERE)),
        limit=st.sampled_from([0, 0, 7]),
        dry=st.sampled_from([False, False, True]),
    )
    def job_begins(self, verb: str, where: str, limit: int, dry: bool) -> None:
        self.where = where
        self.touched = {self.number(entry) for entry in self.held}
        self.before = dict(self.target_counts())
        selector = parse_selector(where) if where else None
        self.job = self.jobs.begin(
            JobRequest(verb, self.room.vhost, self.source, "target", selector=selector, limit=limit, dry_run=dry)
        )

    @rule(count=st.integers(1, 6))
    def steps(self, count: int) -> None:
        for _ in range(count):
            soon, self.room._soon[:] = self.room._soon[:], []
            for call in soon:
                call()
        self.look()

    @precondition(lambda self: self.job is not None)
    @rule()
    def job_stops(self) -> None:
        self.job.stop()

    @rule()
    def rest(self) -> None:
        self.room.turns()
        for _ in range(200):
            if self.job is None or self.job.ended_ms:
                break
            self.room.advance(20)
        self.look()
        assert self.job is None

    def look(self) -> None:
        """Whether the job has ended, and what it has left."""
        job = self.job
        if job is None or not job.ended_ms:
            return
        self.job = None
        assert job.state in ("done", "stopped"), job.reason
        assert self.source.unacked_count == len(self.held)
        found = self.source_numbers()
        if job.kind == "delete" and not job.counts_only:
            gone = set(self.published) - set(found) - {self.number(each) for each in self.held} - self.settled
            gone -= set(self.target_counts())
            assert len(gone) == job.done_count
            assert all(self.published[number] in WHERE[self.where] for number in gone)
            self.settled |= gone
        if job.kind == "copy" and not job.counts_only:
            self.copied(job)
        if job.limit:
            assert job.done_count <= job.limit
        elif job.state == "done" and job.kind in ("move", "delete") and not job.counts_only:
            left = [number for number in found if self.published[number] in WHERE[self.where]]
            assert not set(left) - self.touched, "it was ready all the time, and was left"

    def copied(self, job: Any) -> None:
        """What was copied is taken out of the target: else it would be in two places."""
        counts = self.target_counts()
        copies = {number: count - self.before.get(number, 0) for number, count in counts.items()}
        assert sum(copies.values()) == job.done_count
        assert set(copies.values()) <= {0, 1}
        self.empty_target(set(self.before))

    def empty_target(self, settled: set[int]) -> None:
        while (entry := self.target.get(True)) is not None or self.target.must_wait():
            if entry is None:
                self.room.turns()
        self.settled |= settled
        self.room.turn.schedule()

    def target_counts(self) -> Counter[int]:
        return Counter(self.read(self.target))

    def source_numbers(self) -> list[int]:
        return self.read(self.source, ready_only=True)

    def read(self, queue: Any, ready_only: bool = False) -> list[int]:
        from amqpd.broker.jobs.job import JobFilter

        search = scan.BrowseScan(queue, JobFilter(None, None), int, ready_only)
        entries: list[Any] = []
        slow, self.room.clock.per_look_ms = self.room.clock.per_look_ms, 0
        for _ in range(1000):
            search.collect(entries, 1 << 30, 1 << 30)
            if search.ended:
                break
            if search.waits:
                queue.dispatch()
        self.room.clock.per_look_ms = slow
        assert search.ended
        search.close()
        return [self.number(entry) for entry in entries]

    @rule()
    def target_is_read(self) -> None:
        if self.job is None:
            for entry in iter(lambda: self.target.get(True), None):
                assert decode_properties(entry.message.properties()).headers["x-source-queue"] == "source"
                self.settled.add(self.number(entry))
            self.room.turn.schedule()

    @precondition(lambda self: self.durable and (self.job is None or self.job.kind == "move"))
    @rule(flushed=st.booleans())
    def kill(self, flushed: bool) -> None:
        if flushed:
            self.room.turn.schedule()
            self.room.turns()
            self.look()
        known = set(self.read(self.source)) | set(self.read(self.target)) | {self.number(e) for e in self.held}
        if not flushed:
            known &= self.safe  # what was published since may be there or not
        self.held = []
        self.room.restart()
        self.open()
        source, target = Counter(self.read(self.source)), self.target_counts()
        assert known <= set(source) | set(target), "lost"
        both = set(source) & set(target)
        there = set(source) | set(target)
        for number in list(self.published):
            if number not in there:
                self.settled.add(number)
        self.settled -= there  # an ack that was not written yet
        # Where a kill has left both, the copy says which it is; the test goes on with one of them.
        if both:
            self.drop_doubles(both)

    def drop_doubles(self, both: set[int]) -> None:
        for entry in iter(lambda: self.target.get(True), None):
            number = self.number(entry)
            headers = decode_properties(entry.message.properties()).headers
            assert headers["x-source-queue"] == "source" and headers["x-source-offset"] >= 0
            if number not in both:
                self.settled.add(number)
        self.room.turn.schedule()

    @invariant()
    def every_message_is_in_one_place(self) -> None:
        if not hasattr(self, "room"):
            return
        if self.job is not None:
            return
        source, target = Counter(self.source_numbers()), self.target_counts()
        held = Counter(self.number(entry) for entry in self.held)
        there = source + target + held
        assert not [number for number, count in there.items() if count != 1]
        assert set(there) == set(self.published) - self.settled
        assert self.source.ready_count == len(source)
        if not self.room._soon:
            self.safe = set(there)

    def teardown(self) -> None:
        if hasattr(self, "room"):
            self.room.storage.close(clean=False)


def test_surgery_beside_a_twin(memory_room: Any) -> None:
    SurgeryMachine.memory_room = staticmethod(memory_room)
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        SurgeryMachine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
        ),
    )
