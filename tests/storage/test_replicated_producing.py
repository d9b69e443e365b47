"""Batches to a Kafka that fails in every way it may: in order, once each, and nothing called safe that is not there."""

from __future__ import annotations

import pytest
from twin_kafka import NOT_LEADER, TIMED_OUT, TOO_LARGE, Run, batch_at, values_of

from amqpd.kafka.partition import FULL_SIZE, JOINED_SIZE_MAX, UNKNOWN, Partition, can_join, join
from amqpd.kafka.producer_state import epoch_fence
from amqpd.kafka.wire import CODES, FENCED, LEADER, NONE, PARTITION, RESEND, SEQUENCE, BadAnswer, code_of
from amqpd.storage.log.batch import BatchHeader

SEEDS = 150
STEPS = 500


# What goes though others are on the way, what is joined at most: nothing is; some is, nothing waits; as nodes have it.
SIZES = ((1, 0), (1, 400), (FULL_SIZE, JOINED_SIZE_MAX))


@pytest.mark.parametrize("sizes", SIZES)
def test_nothing_is_lost_doubled_or_reordered(sizes: tuple[int, int]) -> None:
    resent = answered = joined = 0
    for seed in range(SIZES.index(sizes), SEEDS, 3):
        run = Run(seed)
        for partition in run.partitions:
            partition.full_size, partition.joined_size_max = sizes
        for _ in range(STEPS):
            run.step(faults=True)
        assert run.ended == run.closed == []
        run.settle()
        assert run.ended == run.closed == [], seed
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


def started(partitions: int = 1) -> Run:
    run = Run(0, partitions, 1)
    run.look_up()
    return run


def offer(run: Run, *counts: int, partition: int = 0) -> None:
    to = run.partitions[partition]
    for count in counts:
        run.producing.offer(to, batch_at(to.next_offset, count), run.now)


def known(run: Run) -> Run:
    """The partitions have a batch each, so that Kafka knows the producer there."""
    for partition in run.partitions:
        offer(run, 1, partition=partition.number)
    run.settle()
    return run


def at_once(run: Run) -> Run:
    """Each batch goes by itself, whatever is on the way."""
    for partition in run.partitions:
        partition.full_size, partition.joined_size_max = 1, 0
    return run


def test_the_first_batch_goes_alone() -> None:
    run = at_once(started())
    offer(run, 1, 1, 1)
    run.send()
    run.send()
    assert len(run.sent) == 1
    run.carry_out(run.sent[0])
    run.answer(1)
    run.send()
    assert len(run.sent) == 2


def carried(run: Run) -> list[list[tuple[int, int, int]]]:
    """Of each request on the way its partitions, with first and last offset."""
    return [
        [
            (each.number, one.sent.base_offset, one.sent.last_offset)
            for each, one in zip(sent.call.partitions, sent.call.offered, strict=True)
        ]
        for sent in run.sent
    ]


def test_what_waits_for_an_answer_goes_as_one() -> None:
    """A broker reads the second request of a connection when it has answered the first: a batch of its own for each of
    them would be a round trip for each.
    """
    run = known(started())
    for _ in range(4):
        offer(run, 1)
        run.send()
    offer(run, 70, 2)  # places in the batch of one byte and of two
    run.send()
    assert carried(run) == [[(0, 1, 1)]]
    run.carry_out(run.sent[0])
    run.answer(1)
    assert run.passed == {0: 2}
    run.send()
    offer(run, 1)
    run.send()
    assert carried(run) == [[(0, 2, 76)]]
    run.carry_out(run.sent[0])
    run.answer(1)
    assert (run.passed, run.twins[0].stored) == ({0: 77}, list(range(77)))
    run.settle()
    assert run.passed == {0: 78}
    assert (run.partitions[0].unsafe_bytes, run.partitions[0].waiting_bytes) == (0, 0)


def test_what_was_joined_is_sent_again_as_it_was() -> None:
    """Kafka knows a copy by its first number and its last."""
    run = known(started())
    offer(run, 1, 2)
    run.send()
    run.carry_out(run.sent[0])
    run.cut(1)
    offer(run, 3)
    run.now += 100
    run.send()
    assert carried(run) == [[(0, 1, 3)]]
    run.carry_out(run.sent[0])  # as a copy
    run.answer(1)
    assert (run.passed, run.twins[0].stored) == ({0: 4}, list(range(4)))
    run.settle()
    assert run.twins[0].stored == list(range(7))


def test_a_partition_with_much_to_send_does_not_wait() -> None:
    run = known(started())
    offer(run, 1)
    run.send()
    run.partitions[0].full_size = 1000
    offer(run, 10)
    run.send()
    assert len(run.sent) == 1
    offer(run, 60)
    run.send()
    assert carried(run) == [[(0, 1, 1)], [(0, 2, 71)]]


def test_no_more_is_joined_than_may() -> None:
    run = known(started())
    run.partitions[0].joined_size_max = 300
    offer(run, 5, 5, 5)  # 136 bytes each
    run.send()
    assert carried(run) == [[(0, 1, 10)]]


def test_a_transaction_larger_than_what_is_joined_goes_alone() -> None:
    run = known(started())
    run.partitions[0].joined_size_max = 300
    offer(run, 50, 1, 1)
    run.send()
    assert carried(run) == [[(0, 1, 50)]]


def test_five_requests_of_one_batch_each_are_on_the_way() -> None:
    run = at_once(known(started(2)))
    offer(run, *[1] * 9)
    offer(run, 3, partition=1)
    run.send()
    assert carried(run) == [[(0, 1, 1), (1, 1, 3)], [(0, 2, 2)], [(0, 3, 3)], [(0, 4, 4)], [(0, 5, 5)]]


def test_a_request_has_no_more_bytes_than_it_may() -> None:
    run = Run(0, 30, 1)
    run.look_up()
    for number in range(30):
        offer(run, 10, partition=number)  # 211 bytes each, 2000 a request
    run.send()
    assert [len(sent.call.partitions) for sent in run.sent] == [9, 9, 9, 3]


def test_a_batch_larger_than_a_request_goes_alone() -> None:
    run = started(2)
    offer(run, 1000)
    offer(run, 1, partition=1)
    run.send()
    assert [len(sent.call.partitions) for sent in run.sent] == [1, 1]


def test_a_later_epoch_ends_it() -> None:
    run = started()
    offer(run, 2)
    run.twins[0].epoch = 1
    run.send()
    run.carry_out(run.sent[0])
    run.answer(1)
    assert run.ended == ["orders 0: INVALID_PRODUCER_EPOCH"]
    offer(run, 1)
    run.send()
    assert run.sent == []
    assert run.partitions[0].high_watermark == 0


def test_another_offset_than_ours_ends_it() -> None:
    """Somebody else has written to the partition, under an id of his own."""
    run = at_once(known(started()))
    run.twins[0].stored.append(0)
    offer(run, 2, 2)
    run.send()
    for sent in run.sent:
        run.carry_out(sent)
    run.answer(1)
    assert run.ended == ["orders 0: a batch of offset 1 is stored at 2"]
    run.answer(1)
    assert len(run.ended) == 1
    assert run.passed == {0: 1}


def test_a_producer_that_kafka_has_forgotten_batches_of_ends_it() -> None:
    """The oldest that is not answered does not follow: what was confirmed is not there."""
    run = at_once(started())
    offer(run, 2)
    run.send()
    run.carry_out(run.sent[0])
    run.answer(1)
    run.twins[0].last_sequence = -1
    offer(run, 2, 2)
    run.send()
    run.carry_out(run.sent[0])
    run.answer(1)
    assert len(run.ended) == 1
    assert "OUT_OF_ORDER" in run.ended[0]


def test_what_kafka_refuses_for_a_while_is_stored_later_in_order() -> None:
    """Among all the other faults: each try of a refused partition begins with the oldest batch."""
    refusals = 0
    for seed in range(SEEDS // 3):
        run = Run(seed)
        run.more_faults = (TOO_LARGE,)
        for partition in run.partitions:
            partition.retry_ms = 40
        for _ in range(STEPS):
            run.step(faults=True)
        run.settle()
        assert run.ended == run.closed == [], seed
        for partition, twin in zip(run.partitions, run.twins, strict=True):
            assert twin.stored == list(range(partition.next_offset)), seed
            assert partition.high_watermark == partition.next_offset
            assert partition.refused == 0
        refusals += run.refusals
    assert refusals > 100


def test_a_refused_partition_is_tried_again_after_its_pause() -> None:
    run = at_once(known(started(2)))
    run.partitions[0].retry_ms = 10_000
    offer(run, 2)
    run.send()
    (first,) = run.sent
    run.carry_out(first, TOO_LARGE)
    run.answer(1)
    partition = run.partitions[0]
    assert (partition.refused, partition.closed, partition.text, run.refusals) == (10, 0, "MESSAGE_TOO_LARGE", 1)
    offer(run, 1)  # it is held behind what was refused
    offer(run, 1, partition=1)
    run.now += 9_999
    run.send()
    assert carried(run) == [[(1, 1, 1)]]
    run.carry_out(run.sent[0])
    run.answer(1)
    run.now += 1
    run.send()
    assert carried(run)[0][0] == (0, 1, 2)
    run.settle()
    assert (partition.refused, partition.high_watermark, run.refusals) == (0, 4, 1)


def test_a_batch_that_kafka_does_not_take_closes_its_partition_alone() -> None:
    run = at_once(known(started(2)))
    offer(run, 2, 2)
    offer(run, 1, partition=1)
    run.send()
    first, second = run.sent
    run.carry_out(first)
    run.carry_out(second)
    assert first.answer is not None
    at = first.answer.index(bytes(6) + (1).to_bytes(8, "big"))  # partition 0, code 0, base offset 1
    first.answer = first.answer[: at + 4] + (10).to_bytes(2, "big") + first.answer[at + 6 :]
    run.answer(1)
    run.answer(1)
    assert run.closed == [run.partitions[0]]
    assert (run.partitions[0].closed, run.partitions[0].text) == (10, "MESSAGE_TOO_LARGE")
    assert run.ended == []
    assert run.passed == {0: 1, 1: 2}
    offer(run, 1, partition=1)
    offer(run, 1)
    run.send()
    assert [each.number for sent in run.sent for each in sent.call.partitions] == [1]


def test_an_answer_that_names_other_partitions_is_none() -> None:
    run = started(2)
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
    run.settle()
    assert run.passed == {0: 1, 1: 1}


def test_nothing_goes_before_the_pause_is_over() -> None:
    run = started()
    offer(run, 1)
    run.send()
    run.cut(1)
    run.send()
    assert run.sent == []
    assert run.producing.paused_until(run.now) == run.now + 100
    run.now += 100
    run.send()
    assert len(run.sent) == 1


def test_a_leader_that_comes_back_gets_each_partition_once_a_request() -> None:
    run = at_once(known(Run(0, 1, 2)))
    offer(run, 1, 1)
    for leader in (2, 1, 2, 1):
        run.producing.set_leader(run.partitions[0], leader, run.now)
    run.send()
    assert [(sent.leader, len(sent.call.partitions)) for sent in run.sent] == [(1, 1), (1, 1)]


def test_a_partition_without_a_leader_waits() -> None:
    run = started()
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
    run.settle()
    assert run.passed == {0: 1}


def test_a_barrier_tells_where_a_partition_ends() -> None:
    run = Run(0, 1, 1)
    run.twins[0].stored = list(range(7))
    run.twins[0].epoch = 3
    run.partitions[0] = partition = Partition(b"orders", 0, UNKNOWN)
    run.wanted = {partition}
    run.look_up()
    run.passed[0] = UNKNOWN
    run.producing.offer(partition, epoch_fence(b"slot", 9, 4, 1, 0), 0)
    with pytest.raises(ValueError, match="epoch fence"):
        run.producing.offer(partition, batch_at(0, 1), 0)
    run.send()
    run.twins[0].stored.append(7)  # the one before was faster
    run.carry_out(run.sent[0], TIMED_OUT)
    run.answer(1)
    assert partition.next_offset == UNKNOWN
    run.twins[0].stored[8:] = [8]  # the barrier says no offset of its own
    run.settle()
    assert (partition.next_offset, partition.high_watermark, partition.unsafe_bytes) == (9, 9, 0)
    run.producing.offer(partition, batch_at(9, 2, epoch=4, sequence=1), run.now)
    run.settle()
    assert run.ended == []
    assert run.passed[0] == 11


def test_batches_are_offered_in_order() -> None:
    run = started()
    with pytest.raises(ValueError, match="expected 0"):
        run.producing.offer(run.partitions[0], batch_at(3, 1), 0)


def test_batches_as_one() -> None:
    parts = [batch_at(100, 3), batch_at(103, 80, size=5), batch_at(183, 1, size=100)]
    for index, part in enumerate(parts):
        part.timestamp_ms = 1000 + index
        part.body_size_bytes = 10 + index
    one = join(parts)
    data = one.header + one.records
    assert values_of(data) == list(range(100, 184))
    header = BatchHeader(data, 0)
    assert (header.base_sequence, header.producer_id, header.producer_epoch, header.attributes) == (100, 9, 0, 0)
    assert header.base_timestamp_ms == header.max_timestamp_ms == 1002
    assert (one.base_offset, one.last_offset, one.body_size_bytes, one.size) == (100, 183, 33, len(data))
    again = join([join(parts[:2]), parts[2]])
    assert again.header + again.records == data


def test_which_batches_go_on() -> None:
    first, behind = batch_at(5, 2), batch_at(7, 1)
    assert can_join(first, behind)
    assert not can_join(first, batch_at(8, 1, sequence=7))
    assert not can_join(first, batch_at(7, 1, sequence=8))
    assert not can_join(first, batch_at(7, 1, epoch=1))
    assert not can_join(first, batch_at(7, 1, producer_id=8))
    assert can_join(batch_at(5, 2, sequence=0x7FFF_FFFD), batch_at(7, 1, sequence=0x7FFF_FFFF))
    assert not can_join(batch_at(5, 2, sequence=0x7FFF_FFFE), batch_at(7, 1, sequence=0))
    behind.joins = False
    assert not can_join(first, behind) and not can_join(behind, batch_at(8, 1))


def test_what_are_no_messages_goes_by_itself_and_at_once() -> None:
    """Who reads a batch sees by its first record what it is."""
    run = known(started())
    marker = batch_at(3, 1)
    marker.joins = False
    offer(run, 1, 1)
    run.producing.offer(run.partitions[0], marker, run.now)
    offer(run, 1, 1)
    run.send()
    assert carried(run) == [[(0, 1, 2)], [(0, 3, 3)]]
    run.settle()
    assert run.twins[0].stored == list(range(6))


def test_the_codes() -> None:
    remedies = {NONE, RESEND, LEADER, SEQUENCE, PARTITION, FENCED}
    assert {code.remedy for code in CODES.values()} == remedies
    assert [code.number for code in CODES.values()] == sorted(CODES)
    assert {CODES[each].remedy for each in (47, 90)} == {FENCED}
    assert {CODES[each].remedy for each in (10, 87, 2, 32)} == {PARTITION}
    assert {CODES[each].remedy for each in (7, 19, 20)} == {RESEND}
    assert (code_of(31000).remedy, code_of(31000).name) == (RESEND, "code 31000")
