"""Producing to a failing Kafka: batches are stored in order and once, and only stored batches count as safe."""

from __future__ import annotations

import pytest
from twin_kafka import NOT_LEADER, TIMED_OUT, TOO_LARGE, Run, batch_at, values_of

from amqpd.kafka.partition import FULL_SIZE, JOINED_SIZE_MAX, UNKNOWN, Partition, can_join, join
from amqpd.kafka.producer_state import epoch_fence
from amqpd.kafka.wire import CODES, FENCED, LEADER, NONE, PARTITION, RESEND, SEQUENCE, BadAnswer, code_of
from amqpd.storage.log.batch import BatchHeader

SEEDS = 150
STEPS = 500


# (full_size, joined_size_max): no batch is joined; some are, none waits; the values of the nodes.
SIZES = ((1, 0), (1, 400), (FULL_SIZE, JOINED_SIZE_MAX))


@pytest.mark.parametrize("sizes", SIZES)
def test_no_record_is_lost_duplicated_or_reordered(sizes: tuple[int, int]) -> None:
    resent = answered = joined = 0
    for seed in range(SIZES.index(sizes), SEEDS, 3):
        run = Run(seed)
        for partition in run.partitions:
            partition.full_size, partition.joined_size_max = sizes
        for _ in range(STEPS):
            run.step(faults=True)
        assert run.fence_errors == run.closed == []
        run.run_to_end()
        assert run.fence_errors == run.closed == [], seed
        for partition, twin in zip(run.partitions, run.twins, strict=True):
            assert twin.stored == list(range(partition.next_offset)), seed
            assert partition.high_watermark == partition.next_offset
            assert partition.unsafe_bytes == partition.waiting_bytes == partition.in_flight == 0
        resent += run.resent
        answered += run.answered
        joined += run.joined
    assert resent > 1000
    assert answered > {0: 5000, 400: 2500}.get(sizes[1], 1000)
    assert (joined > 1000) == (sizes[1] > 0)


def started_run(partitions: int = 1) -> Run:
    run = Run(0, partitions, 1)
    run.look_up()
    return run


def offer(run: Run, *counts: int, partition: int = 0) -> None:
    target = run.partitions[partition]
    for count in counts:
        run.producing.offer(target, batch_at(target.next_offset, count), run.now)


def run_with_known_producer(run: Run) -> Run:
    """Give each partition a batch, so that Kafka knows the producer there."""
    for partition in run.partitions:
        offer(run, 1, partition=partition.number)
    run.run_to_end()
    return run


def without_joining(run: Run) -> Run:
    """Send each batch on its own, also while others are in flight."""
    for partition in run.partitions:
        partition.full_size, partition.joined_size_max = 1, 0
    return run


def test_first_batch_is_sent_alone() -> None:
    run = without_joining(started_run())
    offer(run, 1, 1, 1)
    run.send()
    run.send()
    assert len(run.sent) == 1
    run.carry_out(run.sent[0])
    run.answer(1)
    run.send()
    assert len(run.sent) == 2


def requests_in_flight(run: Run) -> list[list[tuple[int, int, int]]]:
    """For each request in flight its partitions with first and last offset."""
    return [
        [
            (each.number, offered.sent.base_offset, offered.sent.last_offset)
            for each, offered in zip(sent.call.partitions, sent.call.offered, strict=True)
        ]
        for sent in run.sent
    ]


def test_batches_waiting_for_a_response_are_joined() -> None:
    """A broker reads a connection's second request after it has answered the first. One request per batch would cost
    one round trip each.
    """
    run = run_with_known_producer(started_run())
    for _ in range(4):
        offer(run, 1)
        run.send()
    offer(run, 70, 2)  # record positions that take one byte and two bytes
    run.send()
    assert requests_in_flight(run) == [[(0, 1, 1)]]
    run.carry_out(run.sent[0])
    run.answer(1)
    assert run.high_watermarks == {0: 2}
    run.send()
    offer(run, 1)
    run.send()
    assert requests_in_flight(run) == [[(0, 2, 76)]]
    run.carry_out(run.sent[0])
    run.answer(1)
    assert (run.high_watermarks, run.twins[0].stored) == ({0: 77}, list(range(77)))
    run.run_to_end()
    assert run.high_watermarks == {0: 78}
    assert (run.partitions[0].unsafe_bytes, run.partitions[0].waiting_bytes) == (0, 0)


def test_joined_batch_is_resent_unchanged() -> None:
    """Kafka recognises a duplicate by its first and last sequence."""
    run = run_with_known_producer(started_run())
    offer(run, 1, 2)
    run.send()
    run.carry_out(run.sent[0])
    run.cut(1)
    offer(run, 3)
    run.now += 100
    run.send()
    assert requests_in_flight(run) == [[(0, 1, 3)]]
    run.carry_out(run.sent[0])  # as a duplicate
    run.answer(1)
    assert (run.high_watermarks, run.twins[0].stored) == ({0: 4}, list(range(4)))
    run.run_to_end()
    assert run.twins[0].stored == list(range(7))


def test_full_batch_does_not_wait_for_a_response() -> None:
    run = run_with_known_producer(started_run())
    offer(run, 1)
    run.send()
    run.partitions[0].full_size = 1000
    offer(run, 10)
    run.send()
    assert len(run.sent) == 1
    offer(run, 60)
    run.send()
    assert requests_in_flight(run) == [[(0, 1, 1)], [(0, 2, 71)]]


def test_joined_size_is_limited() -> None:
    run = run_with_known_producer(started_run())
    run.partitions[0].joined_size_max = 300
    offer(run, 5, 5, 5)  # 136 bytes each
    run.send()
    assert requests_in_flight(run) == [[(0, 1, 10)]]


def test_batch_larger_than_the_joined_size_is_sent_alone() -> None:
    run = run_with_known_producer(started_run())
    run.partitions[0].joined_size_max = 300
    offer(run, 50, 1, 1)
    run.send()
    assert requests_in_flight(run) == [[(0, 1, 50)]]


def test_five_requests_of_one_batch_each_are_in_flight() -> None:
    run = without_joining(run_with_known_producer(started_run(2)))
    offer(run, *[1] * 9)
    offer(run, 3, partition=1)
    run.send()
    assert requests_in_flight(run) == [[(0, 1, 1), (1, 1, 3)], [(0, 2, 2)], [(0, 3, 3)], [(0, 4, 4)], [(0, 5, 5)]]


def test_request_size_is_limited() -> None:
    run = Run(0, 30, 1)
    run.look_up()
    for number in range(30):
        offer(run, 10, partition=number)  # 211 bytes each, 2000 a request
    run.send()
    assert [len(sent.call.partitions) for sent in run.sent] == [9, 9, 9, 3]


def test_batch_larger_than_a_request_is_sent_alone() -> None:
    run = started_run(2)
    offer(run, 1000)
    offer(run, 1, partition=1)
    run.send()
    assert [len(sent.call.partitions) for sent in run.sent] == [1, 1]


def test_later_epoch_fences_the_producer() -> None:
    run = started_run()
    offer(run, 2)
    run.twins[0].epoch = 1
    run.send()
    run.carry_out(run.sent[0])
    run.answer(1)
    assert run.fence_errors == ["orders 0: INVALID_PRODUCER_EPOCH"]
    offer(run, 1)
    run.send()
    assert run.sent == []
    assert run.partitions[0].high_watermark == 0


def test_unexpected_base_offset_fences_the_producer() -> None:
    """Another producer id has written to the partition."""
    run = without_joining(run_with_known_producer(started_run()))
    run.twins[0].stored.append(0)
    offer(run, 2, 2)
    run.send()
    for sent in run.sent:
        run.carry_out(sent)
    run.answer(1)
    assert run.fence_errors == ["orders 0: a batch of offset 1 is stored at 2"]
    run.answer(1)
    assert len(run.fence_errors) == 1
    assert run.high_watermarks == {0: 1}


def test_sequence_lost_by_kafka_fences_the_producer() -> None:
    """The oldest unanswered batch does not follow the stored one: confirmed records are missing."""
    run = without_joining(started_run())
    offer(run, 2)
    run.send()
    run.carry_out(run.sent[0])
    run.answer(1)
    run.twins[0].last_sequence = -1
    offer(run, 2, 2)
    run.send()
    run.carry_out(run.sent[0])
    run.answer(1)
    assert len(run.fence_errors) == 1
    assert "OUT_OF_ORDER" in run.fence_errors[0]


def test_temporarily_refused_batches_are_stored_later_in_order() -> None:
    """With all other faults as well, each retry of a refused partition begins with its oldest batch."""
    refusals = 0
    for seed in range(SEEDS // 3):
        run = Run(seed)
        run.more_faults = (TOO_LARGE,)
        for partition in run.partitions:
            partition.retry_ms = 40
        for _ in range(STEPS):
            run.step(faults=True)
        run.run_to_end()
        assert run.fence_errors == run.closed == [], seed
        for partition, twin in zip(run.partitions, run.twins, strict=True):
            assert twin.stored == list(range(partition.next_offset)), seed
            assert partition.high_watermark == partition.next_offset
            assert partition.refused == 0
        refusals += run.refusals
    assert refusals > 100


def test_refused_partition_is_retried_after_its_pause() -> None:
    run = without_joining(run_with_known_producer(started_run(2)))
    run.partitions[0].retry_ms = 10_000
    offer(run, 2)
    run.send()
    (first,) = run.sent
    run.carry_out(first, TOO_LARGE)
    run.answer(1)
    partition = run.partitions[0]
    assert (partition.refused, partition.closed, partition.text, run.refusals) == (10, 0, "MESSAGE_TOO_LARGE", 1)
    offer(run, 1)  # this batch waits behind the refused one
    offer(run, 1, partition=1)
    run.now += 9_999
    run.send()
    assert requests_in_flight(run) == [[(1, 1, 1)]]
    run.carry_out(run.sent[0])
    run.answer(1)
    run.now += 1
    run.send()
    assert requests_in_flight(run)[0][0] == (0, 1, 2)
    run.run_to_end()
    assert (partition.refused, partition.high_watermark, run.refusals) == (0, 4, 1)


def test_refused_batch_closes_only_its_partition() -> None:
    run = without_joining(run_with_known_producer(started_run(2)))
    offer(run, 2, 2)
    offer(run, 1, partition=1)
    run.send()
    first, second = run.sent
    run.carry_out(first)
    run.carry_out(second)
    assert first.answer is not None
    code_position = first.answer.index(bytes(6) + (1).to_bytes(8, "big"))  # partition 0, code 0, base offset 1
    first.answer = first.answer[: code_position + 4] + (10).to_bytes(2, "big") + first.answer[code_position + 6 :]
    run.answer(1)
    run.answer(1)
    assert run.closed == [run.partitions[0]]
    assert (run.partitions[0].closed, run.partitions[0].text) == (10, "MESSAGE_TOO_LARGE")
    assert run.fence_errors == []
    assert run.high_watermarks == {0: 1, 1: 2}
    offer(run, 1, partition=1)
    offer(run, 1)
    run.send()
    assert [each.number for sent in run.sent for each in sent.call.partitions] == [1]


def test_response_for_other_partitions_is_refused() -> None:
    run = started_run(2)
    offer(run, 1)
    run.send()
    run.carry_out(run.sent[0])
    other = run.sent.pop()
    offer(run, 1, partition=1)
    run.send()
    call = run.sent.pop().call
    assert other.answer is not None
    with pytest.raises(BadAnswer):
        run.producing.on_answer(call, other.answer, 0)
    run.producing.on_answer(other.call, other.answer, 0)
    run.run_to_end()
    assert run.high_watermarks == {0: 1, 1: 1}


def test_nothing_is_sent_during_the_pause() -> None:
    run = started_run()
    offer(run, 1)
    run.send()
    run.cut(1)
    run.send()
    assert run.sent == []
    assert run.producing.paused_until(run.now) == run.now + 100
    run.now += 100
    run.send()
    assert len(run.sent) == 1


def test_returning_leader_gets_a_partition_once_per_request() -> None:
    run = without_joining(run_with_known_producer(Run(0, 1, 2)))
    offer(run, 1, 1)
    for leader in (2, 1, 2, 1):
        run.producing.set_leader(run.partitions[0], leader, run.now)
    run.send()
    assert [(sent.leader, len(sent.call.partitions)) for sent in run.sent] == [(1, 1), (1, 1)]


def test_partition_without_a_leader_waits() -> None:
    run = started_run()
    offer(run, 1)
    run.send()
    run.twins[0].leader = 5
    run.carry_out(run.sent[0])
    run.answer(1)
    assert run.wanted == {run.partitions[0]}
    assert code_of(NOT_LEADER).remedy == LEADER
    run.now += 1000
    run.send()
    assert run.sent == []
    run.twins[0].leader = 1
    run.run_to_end()
    assert run.high_watermarks == {0: 1}


def test_epoch_fence_shows_the_end_of_a_partition() -> None:
    run = Run(0, 1, 1)
    run.twins[0].stored = list(range(7))
    run.twins[0].epoch = 3
    run.partitions[0] = partition = Partition(b"orders", 0, UNKNOWN)
    run.wanted = {partition}
    run.look_up()
    run.high_watermarks[0] = UNKNOWN
    run.producing.offer(partition, epoch_fence(b"slot", 9, 4, 1), 0)
    with pytest.raises(ValueError, match="epoch fence"):
        run.producing.offer(partition, batch_at(0, 1), 0)
    run.send()
    run.twins[0].stored.append(7)  # the producer with the earlier epoch was faster
    run.carry_out(run.sent[0], TIMED_OUT)
    run.answer(1)
    assert partition.next_offset == UNKNOWN
    run.twins[0].stored[8:] = [8]  # the epoch fence has no offset of its own
    run.run_to_end()
    assert (partition.next_offset, partition.high_watermark, partition.unsafe_bytes) == (9, 9, 0)
    run.producing.offer(partition, batch_at(9, 2, epoch=4, sequence=1), run.now)
    run.run_to_end()
    assert run.fence_errors == []
    assert run.high_watermarks[0] == 11


def test_batch_offered_out_of_order_is_refused() -> None:
    run = started_run()
    with pytest.raises(ValueError, match="expected 0"):
        run.producing.offer(run.partitions[0], batch_at(3, 1), 0)


def test_join_of_batches() -> None:
    parts = [batch_at(100, 3), batch_at(103, 80, size=5), batch_at(183, 1, size=100)]
    for index, part in enumerate(parts):
        part.timestamp_ms = 1000 + index
        part.body_size_bytes = 10 + index
    joined = join(parts)
    data = joined.header + joined.records
    assert values_of(data) == list(range(100, 184))
    header = BatchHeader(data, 0)
    assert (header.base_sequence, header.producer_id, header.producer_epoch, header.attributes) == (100, 9, 0, 0)
    assert header.base_timestamp_ms == header.max_timestamp_ms == 1002
    assert (joined.base_offset, joined.last_offset, joined.body_size_bytes, joined.size) == (100, 183, 33, len(data))
    joined_in_steps = join([join(parts[:2]), parts[2]])
    assert joined_in_steps.header + joined_in_steps.records == data


def test_can_join_needs_contiguous_batches() -> None:
    first, next_batch = batch_at(5, 2), batch_at(7, 1)
    assert can_join(first, next_batch)
    assert not can_join(first, batch_at(8, 1, sequence=7))
    assert not can_join(first, batch_at(7, 1, sequence=8))
    assert not can_join(first, batch_at(7, 1, epoch=1))
    assert not can_join(first, batch_at(7, 1, producer_id=8))
    assert can_join(batch_at(5, 2, sequence=0x7FFF_FFFD), batch_at(7, 1, sequence=0x7FFF_FFFF))
    assert not can_join(batch_at(5, 2, sequence=0x7FFF_FFFE), batch_at(7, 1, sequence=0))
    next_batch.joins = False
    assert not can_join(first, next_batch) and not can_join(next_batch, batch_at(8, 1))


def test_marker_batch_is_sent_alone_and_at_once() -> None:
    """A reader recognises such a batch by its first record."""
    run = run_with_known_producer(started_run())
    marker = batch_at(3, 1)
    marker.joins = False
    offer(run, 1, 1)
    run.producing.offer(run.partitions[0], marker, run.now)
    offer(run, 1, 1)
    run.send()
    assert requests_in_flight(run) == [[(0, 1, 2)], [(0, 3, 3)]]
    run.run_to_end()
    assert run.twins[0].stored == list(range(6))


def test_error_codes_and_remedies() -> None:
    remedies = {NONE, RESEND, LEADER, SEQUENCE, PARTITION, FENCED}
    assert {code.remedy for code in CODES.values()} == remedies
    assert [code.number for code in CODES.values()] == sorted(CODES)
    assert {CODES[each].remedy for each in (47, 90)} == {FENCED}
    assert {CODES[each].remedy for each in (10, 87, 2, 32)} == {PARTITION}
    assert {CODES[each].remedy for each in (7, 19, 20)} == {RESEND}
    assert (code_of(31000).remedy, code_of(31000).name) == (RESEND, "code 31000")
