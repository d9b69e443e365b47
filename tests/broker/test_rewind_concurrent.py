"""A rewind while the queue is used: messages already live in the log but not ready yet must not be delivered.

After a start the memory window of a queue reads on behind messages acked out of order. Rewound messages there are live
in the log before they are ready, so without protection they would be read twice.
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
"""Ten such messages fill a segment."""


@pytest.fixture
def half_acked_queue(room: Any) -> Any:
    """A queue that was just opened: the messages with odd numbers are ready, the even ones between them are acked."""

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


def begin_rewind(room: Any, queue: Any) -> QueueJob:
    """Begin a rewind and run it until its messages are live in the log but not ready yet."""
    jobs = JobManager(room.republisher, room.turn, room._soon.append)
    job = jobs.begin(JobRequest("rewind", room.vhost, queue))
    for _ in range(200):
        if queue.store.record_count > queue.ready_count + queue.unacked_count:
            assert job.ended_ms == 0
            return job
        room.advance(1)
    raise AssertionError("the rewind found no message")


def finish_rewind(room: Any, job: QueueJob) -> None:
    for _ in range(200):
        if job.ended_ms:
            break
        room.advance(1)
    assert (job.state, job.reason) == ("done", "")


def get_all(room: Any, queue: Any) -> list[int]:
    """Get all ready messages and leave them unacked."""
    found = []
    while (entry := queue.get(False)) is not None:
        assert entry.redelivered == (entry.offset < COUNT), entry.offset
        found.append(entry.offset)
    turns(room)
    return found


class TestDuringRewind:
    @pytest.mark.parametrize("every", [1, 3, 7])
    def test_periodic_basic_get(self, room: Any, half_acked_queue: Any, every: int) -> None:
        queue = half_acked_queue()
        jobs = JobManager(room.republisher, room.turn, room._soon.append)
        job = jobs.begin(JobRequest("rewind", room.vhost, queue))
        received = []
        for step in range(200):
            if job.ended_ms:
                break
            if step % every == 0 and (entry := queue.get(False)) is not None:
                received.append(entry.offset)
            room.advance(1)
        assert received == ODD[: len(received)], "a message was delivered before its rewind ended"
        assert job.done_count == len(EVEN)
        received += get_all(room, queue)
        assert sorted(received) == list(range(COUNT)), "each message once"
        assert (queue.ready_count, queue.unacked_count, queue.store.record_count) == (0, COUNT, COUNT)

    def test_basic_get_of_all_messages(self, room: Any, half_acked_queue: Any) -> None:
        queue = half_acked_queue()
        job = begin_rewind(room, queue)
        assert get_all(room, queue) == ODD
        finish_rewind(room, job)
        assert get_all(room, queue) == EVEN

    @pytest.mark.parametrize("selector", ["", "n >= 0"])
    def test_consumer_with_and_without_filter(self, room: Any, half_acked_queue: Any, selector: str) -> None:
        queue = half_acked_queue()
        job = begin_rewind(room, queue)
        consumer = take(room, queue, selector)
        turns(room)
        assert len(consumer.got) == len(ODD)
        finish_rewind(room, job)
        assert sorted(entry.offset for entry in consumer.entries) == list(range(COUNT))
        consumer.ack_all()
        turns(room)
        assert (queue.ready_count, queue.store.record_count) == (0, 0)

    def test_filter_that_has_read_between_the_rewound_messages(self, room: Any, half_acked_queue: Any) -> None:
        """The filter read the log before the rewind began and continues behind."""
        queue = half_acked_queue()
        consumer = take(room, queue, "n < 20", 3)
        turns(room)
        job = begin_rewind(room, queue)
        assert [entry.offset for entry in consumer.entries] == [1, 3, 5]
        while queue.store.record_count > queue.ready_count + queue.unacked_count:
            if consumer.entries:
                assert consumer.entries[0].offset % 2 == 1
                consumer.ack()
            room.advance(1)
        finish_rewind(room, job)
        while consumer.entries:
            consumer.ack_all()
            turns(room)
        assert len(consumer.got) == 20
        assert get_all(room, queue) == list(range(20, COUNT))

    def test_jobs_that_search_the_queue(self, room: Any, half_acked_queue: Any) -> None:
        queue = half_acked_queue()
        job = begin_rewind(room, queue)
        jobs = JobManager(room.republisher, room.turn, room._soon.append)
        other = room.queue("other")
        deletion = jobs.begin(JobRequest("delete", room.vhost, queue, selector=parse_selector("n < 20")))
        move = jobs.begin(JobRequest("move", room.vhost, queue, to_queue="other"))
        copy = jobs.begin(JobRequest("delete", room.vhost, queue, dry_run=True))
        turns(room)
        assert (deletion.state, deletion.done_count) == ("done", 10)
        assert (move.done_count, copy.done_count) == (10, 0)
        finish_rewind(room, job)
        assert other.ready_count == 10
        assert get_all(room, queue) == EVEN

    @pytest.mark.parametrize("read_first", [0, 1, 5])
    def test_purge(self, room: Any, half_acked_queue: Any, read_first: int) -> None:
        queue = half_acked_queue()
        taken = [queue.get(False).offset for _ in range(read_first)]
        job = begin_rewind(room, queue)
        assert queue.purge() == len(ODD) - len(taken)
        turns(room)
        finish_rewind(room, job)
        assert queue.ready_count == len(EVEN)
        assert get_all(room, queue) == EVEN
        assert queue.store.record_count == len(EVEN) + len(taken)

    def test_max_length_drops_the_head(self, room: Any, half_acked_queue: Any) -> None:
        queue = half_acked_queue(x_max_length=100)
        job = begin_rewind(room, queue)
        for number in range(90):
            room.publish("q", b"", headers={"n": 1000 + number})
        assert queue.ready_count == 100
        finish_rewind(room, job)
        got = get_all(room, queue)
        assert [each for each in got if each < COUNT and each % 2 == 0] == EVEN

    def test_ttl_dead_letters_all_messages(self, room: Any, half_acked_queue: Any) -> None:
        """Expired messages are dead-lettered in ranges of the log."""
        queue = half_acked_queue(x_message_ttl=400, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        dead = room.queue("dead")
        job = begin_rewind(room, queue)
        room.clock.now_ms += 600
        finish_rewind(room, job)
        turns(room)
        room.advance(10)
        assert queue.ready_count == 0
        assert dead.ready_count == COUNT
        numbers = [room.get(dead).headers["n"] for _ in range(COUNT)]
        assert sorted(numbers) == list(range(COUNT)), "each message once"
        assert queue.store.record_count == 0

    def test_publish_and_requeue(self, room: Any, half_acked_queue: Any) -> None:
        queue = half_acked_queue()
        unacked = [queue.get(False) for _ in range(7)]
        job = begin_rewind(room, queue)
        room.publish("q", BODY, headers={"n": COUNT})
        queue.requeue(unacked[2], False)
        queue.requeue(unacked[6], False)
        turns(room)
        assert queue.get(False).offset == unacked[2].offset
        finish_rewind(room, job)
        left = sorted({*range(COUNT + 1)} - {entry.offset for entry in unacked[:6]})
        assert get_all(room, queue) == left

    def test_failed_rewind_changes_nothing(self, room: Any, half_acked_queue: Any) -> None:
        """After the failure the queue is as before and returns to its FIFO order."""
        queue = half_acked_queue()
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


def test_rewind_waits_for_pending_dead_letters(room: Any, half_acked_queue: Any) -> None:
    """Pending dead letters are a range of the log: messages rewound into that range would be dead-lettered too."""
    queue = half_acked_queue(x_message_ttl=1000)
    pending_count = queue.dead_letters_logged_count
    queue.dead_letters_logged_count = pending_count + 1
    jobs = JobManager(room.republisher, room.turn, room._soon.append)
    job = jobs.begin(JobRequest("rewind", room.vhost, queue))
    room.advance(300)
    search = job._search
    assert isinstance(search, Replay) and not search.committed
    assert queue.store.record_count == len(ODD)
    queue.dead_letters_logged_count = pending_count
    finish_rewind(room, job)
    assert queue.ready_count == COUNT
