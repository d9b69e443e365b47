"""While a rewind takes messages back, and has not given them to the queue yet, nobody gets them.

After a start the window of a queue reads on behind what was acked out of order: what is taken back there is live in the
log before it is ready, and would be read by two roads.
"""

from __future__ import annotations

from typing import Any

import pytest
from taker import take

from amqpd.broker.jobs.job import QueueJob
from amqpd.broker.jobs.jobs import JobManager, JobRequest
from amqpd.broker.queue.filtered import FilteredOrder
from amqpd.broker.queue.replay import Replay
from amqpd.routing.selector import parse_selector

COUNT = 40
EVEN = list(range(0, COUNT, 2))
ODD = list(range(1, COUNT, 2))
BODY = b"." * 100_000
"""Ten to a segment."""


@pytest.fixture
def half(room: Any) -> Any:
    """A queue that has just been opened: the odd ones are ready, the even ones are settled between them."""

    def make(**arguments: object) -> Any:
        queue = room.queue("q", x_retain="1h", **arguments)
        for number in range(COUNT):
            room.publish("q", BODY, headers={"n": number}, turn=False)
        turns(room)
        entries = [queue.get(False) for _ in range(COUNT)]
        for entry in entries:
            if entry.offset % 2 == 0:
                queue.ack(entry)
        turns(room)
        room.advance(60)
        room.restart()
        queue = room.vhost.queues["q"]
        queue.prepare()
        queue.order.memory.count_max = 4
        assert queue.ready_count == len(ODD)
        return queue

    return make


def turns(room: Any) -> None:
    room.turn.schedule()
    room.turns()


def begin(room: Any, queue: Any) -> QueueJob:
    """A rewind whose messages are live in the log, and not ready yet."""
    jobs = JobManager(room.republisher, room.turn, room._soon.append)
    job = jobs.begin(JobRequest("rewind", room.vhost, queue))
    for _ in range(200):
        if queue.store.record_count > queue.ready_count + queue.unacked_count:
            assert job.ended_ms == 0
            return job
        room.advance(1)
    raise AssertionError("nothing was taken back")


def end(room: Any, job: QueueJob) -> None:
    for _ in range(200):
        if job.ended_ms:
            break
        room.advance(1)
    assert (job.state, job.reason) == ("done", "")


def get_all(room: Any, queue: Any) -> list[int]:
    """What is ready, and stays unacked."""
    found = []
    while (entry := queue.get(False)) is not None:
        assert entry.redelivered == (entry.offset < COUNT), entry.offset
        found.append(entry.offset)
    turns(room)
    return found


class TestNobodyGetsThem:
    @pytest.mark.parametrize("every", [1, 3, 7])
    def test_who_takes_one_now_and_then(self, room: Any, half: Any, every: int) -> None:
        queue = half()
        jobs = JobManager(room.republisher, room.turn, room._soon.append)
        job = jobs.begin(JobRequest("rewind", room.vhost, queue))
        found = []
        for step in range(200):
            if job.ended_ms:
                break
            if step % every == 0 and (entry := queue.get(False)) is not None:
                found.append(entry.offset)
            room.advance(1)
        assert found == ODD[: len(found)], "what is being taken back is nobody's"
        assert job.done_count == len(EVEN)
        found += get_all(room, queue)
        assert sorted(found) == list(range(COUNT)), "each of them once"
        assert (queue.ready_count, queue.unacked_count, queue.store.record_count) == (0, COUNT, COUNT)

    def test_who_takes_all(self, room: Any, half: Any) -> None:
        queue = half()
        job = begin(room, queue)
        assert get_all(room, queue) == ODD
        end(room, job)
        assert get_all(room, queue) == EVEN

    @pytest.mark.parametrize("selector", ["", "n >= 0"])
    def test_consumers(self, room: Any, half: Any, selector: str) -> None:
        queue = half()
        job = begin(room, queue)
        taker = take(room, queue, selector)
        turns(room)
        assert len(taker.got) == len(ODD)
        end(room, job)
        assert sorted(entry.offset for entry in taker.entries) == list(range(COUNT))
        taker.ack_all()
        turns(room)
        assert (queue.ready_count, queue.store.record_count) == (0, 0)

    def test_a_filter_that_stood_among_them(self, room: Any, half: Any) -> None:
        """Its reading of the log was made before, and goes on behind."""
        queue = half()
        taker = take(room, queue, "n < 20", 3)
        turns(room)
        job = begin(room, queue)
        assert [entry.offset for entry in taker.entries] == [1, 3, 5]
        while queue.store.record_count > queue.ready_count + queue.unacked_count:
            if taker.entries:
                assert taker.entries[0].offset % 2 == 1
                taker.ack()
            room.advance(1)
        end(room, job)
        while taker.entries:
            taker.ack_all()
            turns(room)
        assert len(taker.got) == 20
        assert get_all(room, queue) == list(range(20, COUNT))

    def test_who_searches(self, room: Any, half: Any) -> None:
        queue = half()
        job = begin(room, queue)
        jobs = JobManager(room.republisher, room.turn, room._soon.append)
        other = room.queue("other")
        deletion = jobs.begin(JobRequest("delete", room.vhost, queue, selector=parse_selector("n < 20")))
        move = jobs.begin(JobRequest("move", room.vhost, queue, to_queue="other"))
        copy = jobs.begin(JobRequest("delete", room.vhost, queue, dry_run=True))
        turns(room)
        assert (deletion.state, deletion.done_count) == ("done", 10)
        assert (move.done_count, copy.done_count) == (10, 0)
        end(room, job)
        assert other.ready_count == 10
        assert get_all(room, queue) == EVEN

    @pytest.mark.parametrize("read_first", [0, 1, 5])
    def test_who_purges(self, room: Any, half: Any, read_first: int) -> None:
        queue = half()
        taken = [queue.get(False).offset for _ in range(read_first)]
        job = begin(room, queue)
        assert queue.purge() == len(ODD) - len(taken)
        turns(room)
        end(room, job)
        assert queue.ready_count == len(EVEN)
        assert get_all(room, queue) == EVEN
        assert queue.store.record_count == len(EVEN) + len(taken)

    def test_a_length_that_drops(self, room: Any, half: Any) -> None:
        queue = half(x_max_length=100)
        job = begin(room, queue)
        for number in range(90):
            room.publish("q", b"", headers={"n": 1000 + number})
        assert queue.ready_count == 100
        end(room, job)
        got = get_all(room, queue)
        assert [each for each in got if each < COUNT and each % 2 == 0] == EVEN

    def test_a_time_to_live(self, room: Any, half: Any) -> None:
        """What is over goes in ranges of the log, to where it is dead-lettered."""
        queue = half(x_message_ttl=400, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        dead = room.queue("dead")
        job = begin(room, queue)
        room.clock.now_ms += 600
        end(room, job)
        turns(room)
        room.advance(10)
        assert queue.ready_count == 0
        assert dead.ready_count == COUNT
        numbers = [room.get(dead).headers["n"] for _ in range(COUNT)]
        assert sorted(numbers) == list(range(COUNT)), "each of them once"
        assert queue.store.record_count == 0

    def test_what_comes_in_and_comes_back(self, room: Any, half: Any) -> None:
        queue = half()
        held = [queue.get(False) for _ in range(7)]
        job = begin(room, queue)
        room.publish("q", BODY, headers={"n": COUNT})
        queue.requeue(held[2], False)
        queue.requeue(held[6], False)
        turns(room)
        assert queue.get(False).offset == held[2].offset
        end(room, job)
        left = sorted({*range(COUNT + 1)} - {entry.offset for entry in held[:6]})
        assert get_all(room, queue) == left

    def test_it_cannot_be_done(self, room: Any, half: Any) -> None:
        """All is as if nothing had been asked, and the queue goes on with a plain order."""
        queue = half()
        log = queue.store.log
        log.filesystem.mkdir(f"{log.directory}/{log.segments[2].base:020}.settled.swap")
        jobs = JobManager(room.republisher, room.turn, room._soon.append)
        job = jobs.begin(JobRequest("rewind", room.vhost, queue))
        while not job.ended_ms:
            room.advance(1)
        assert job.state == "failed" and "could not be rewound" in job.reason
        assert get_all(room, queue) == ODD
        assert isinstance(queue.order, FilteredOrder) and not queue.order.rewinding
        for entry in list(range(3)):
            assert queue.get(False) is None, entry


def test_dead_letters_that_wait_in_the_log_go_first(room: Any, half: Any) -> None:
    """A range of them: whatever of it is live when it is their turn would go with them."""
    queue = half(x_message_ttl=1000)
    held = queue.dead_letters_logged_count
    queue.dead_letters_logged_count = held + 1
    jobs = JobManager(room.republisher, room.turn, room._soon.append)
    job = jobs.begin(JobRequest("rewind", room.vhost, queue))
    room.advance(300)
    search = job._search
    assert isinstance(search, Replay) and not search.committed
    assert queue.store.record_count == len(ODD)
    queue.dead_letters_logged_count = held
    end(room, job)
    assert queue.ready_count == COUNT
