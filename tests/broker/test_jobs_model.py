"""Queue jobs against a naive twin: random publishes, gets, acks, requeues, jobs, stops and kills.

The twin knows where each message may be. When the loop is idle, each message is in one place: in the source, unacked,
in the target, or removed for a reason. A job that has ended left no selected message that was ready all the time.
After a kill every message that was not acked is there, and a message in both queues has the source headers.
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
SELECTED = {
    "": set(COLOURS),
    "colour = 'red'": {"red"},
    "colour <> 'red'": {"green", "blue"},
    "colour = 'black'": set(),
}
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
        self.unacked: list[Any] = []
        self.published: dict[int, str] = {}
        self.acked: set[int] = set()  # acked, deleted, or taken out of the target
        self.safe: set[int] = set()  # written when the loop was last idle, and not acked then
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
            self.unacked.append(entry)
            self.touched.add(self.number(entry))

    @precondition(lambda self: self.unacked)
    @rule(index=st.integers(0, 100), ack=st.booleans())
    def ack_or_requeue(self, index: int, ack: bool) -> None:
        entries = [self.unacked.pop(index % len(self.unacked))]
        if index > 80:
            entries += self.unacked
            self.unacked = []
        for entry in entries:
            if ack:
                self.source.ack(entry)
                self.acked.add(self.number(entry))
            else:
                self.source.requeue(entry, counts=False)
                self.source.schedule_dispatch()
        self.room.turn.schedule()

    @precondition(lambda self: self.job is None)
    @rule(
        verb=st.sampled_from(["move", "move", "delete", "copy"]),
        where=st.sampled_from(sorted(SELECTED)),
        limit=st.sampled_from([0, 0, 7]),
        dry_run=st.sampled_from([False, False, True]),
    )
    def begin_job(self, verb: str, where: str, limit: int, dry_run: bool) -> None:
        self.where = where
        self.touched = {self.number(entry) for entry in self.unacked}
        self.before = dict(self.target_counts())
        selector = parse_selector(where) if where else None
        self.job = self.jobs.begin(
            JobRequest(verb, self.room.vhost, self.source, "target", selector=selector, limit=limit, dry_run=dry_run)
        )

    @rule(count=st.integers(1, 6))
    def run_steps(self, count: int) -> None:
        for _ in range(count):
            soon, self.room._soon[:] = self.room._soon[:], []
            for call in soon:
                call()
        self.check_job()

    @precondition(lambda self: self.job is not None)
    @rule()
    def stop_job(self) -> None:
        self.job.stop()

    @rule()
    def rest(self) -> None:
        self.room.turns()
        for _ in range(200):
            if self.job is None or self.job.ended_ms:
                break
            self.room.advance(20)
        self.check_job()
        assert self.job is None

    def check_job(self) -> None:
        """If the job has ended, check its result."""
        job = self.job
        if job is None or not job.ended_ms:
            return
        self.job = None
        assert job.state in ("done", "stopped"), job.reason
        assert self.source.unacked_count == len(self.unacked)
        found = self.source_numbers()
        if job.kind == "delete" and not job.counts_only:
            deleted = set(self.published) - set(found) - {self.number(each) for each in self.unacked} - self.acked
            deleted -= set(self.target_counts())
            assert len(deleted) == job.done_count
            assert all(self.published[number] in SELECTED[self.where] for number in deleted)
            self.acked |= deleted
        if job.kind == "copy" and not job.counts_only:
            self.check_copy(job)
        if job.limit:
            assert job.done_count <= job.limit
        elif job.state == "done" and job.kind in ("move", "delete") and not job.counts_only:
            left = [number for number in found if self.published[number] in SELECTED[self.where]]
            assert not set(left) - self.touched, "a selected message that was ready all the time was left"

    def check_copy(self, job: Any) -> None:
        """Remove the copies from the target, so that each message is in one place."""
        counts = self.target_counts()
        copies = {number: count - self.before.get(number, 0) for number, count in counts.items()}
        assert sum(copies.values()) == job.done_count
        assert set(copies.values()) <= {0, 1}
        self.empty_target(set(self.before))

    def empty_target(self, acked: set[int]) -> None:
        while (entry := self.target.get(True)) is not None or self.target.must_wait():
            if entry is None:
                self.room.turns()
        self.acked |= acked
        self.room.turn.schedule()

    def target_counts(self) -> Counter[int]:
        return Counter(self.read(self.target))

    def source_numbers(self) -> list[int]:
        return self.read(self.source, ready_only=True)

    def read(self, queue: Any, ready_only: bool = False) -> list[int]:
        from amqpd.broker.jobs.job import JobFilter

        browse = scan.BrowseScan(queue, JobFilter(None, None), int, ready_only)
        entries: list[Any] = []
        slow, self.room.clock.per_look_ms = self.room.clock.per_look_ms, 0
        for _ in range(1000):
            browse.collect(entries, 1 << 30, 1 << 30)
            if browse.ended:
                break
            if browse.waits:
                queue.dispatch()
        self.room.clock.per_look_ms = slow
        assert browse.ended
        browse.close()
        return [self.number(entry) for entry in entries]

    @rule()
    def drain_target(self) -> None:
        if self.job is None:
            for entry in iter(lambda: self.target.get(True), None):
                assert decode_properties(entry.message.properties()).headers["x-source-queue"] == "source"
                self.acked.add(self.number(entry))
            self.room.turn.schedule()

    @precondition(lambda self: self.durable and (self.job is None or self.job.kind == "move"))
    @rule(flushed=st.booleans())
    def kill(self, flushed: bool) -> None:
        if flushed:
            self.room.turn.schedule()
            self.room.turns()
            self.check_job()
        known = set(self.read(self.source)) | set(self.read(self.target)) | {self.number(e) for e in self.unacked}
        if not flushed:
            known &= self.safe  # messages published since may be lost
        self.unacked = []
        self.room.restart()
        self.open()
        source, target = Counter(self.read(self.source)), self.target_counts()
        assert known <= set(source) | set(target), "lost"
        in_both_queues = set(source) & set(target)
        there = set(source) | set(target)
        for number in list(self.published):
            if number not in there:
                self.acked.add(number)
        self.acked -= there  # an ack that was not written before the kill
        # After a kill a message may be in both queues: remove the copy in the target.
        if in_both_queues:
            self.drop_duplicates(in_both_queues)

    def drop_duplicates(self, in_both_queues: set[int]) -> None:
        for entry in iter(lambda: self.target.get(True), None):
            number = self.number(entry)
            headers = decode_properties(entry.message.properties()).headers
            assert headers["x-source-queue"] == "source" and headers["x-source-offset"] >= 0
            if number not in in_both_queues:
                self.acked.add(number)
        self.room.turn.schedule()

    @invariant()
    def every_message_is_in_one_place(self) -> None:
        if not hasattr(self, "room"):
            return
        if self.job is not None:
            return
        source, target = Counter(self.source_numbers()), self.target_counts()
        unacked = Counter(self.number(entry) for entry in self.unacked)
        there = source + target + unacked
        assert not [number for number, count in there.items() if count != 1]
        assert set(there) == set(self.published) - self.acked
        assert self.source.ready_count == len(source)
        if not self.room._soon:
            self.safe = set(there)

    def teardown(self) -> None:
        if hasattr(self, "room"):
            self.room.storage.close(clean=False)


def test_jobs_match_naive_twin(memory_room: Any) -> None:
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
