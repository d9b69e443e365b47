"""The state machine of transactions and its log, without a broker; also at random, beside a naive model."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpd.kafka_server.transaction_log import decode_key, decode_value, encode_key, encode_value
from amqpd.kafka_server.transactions import (
    EPOCH_MAX,
    TransactionMetadata,
    TransactionPartition,
    TransactionState,
    add,
    complete,
    end,
    init_producer,
    time_out,
    write_error,
)

ID = bytes(range(16))
P0, P1 = TransactionPartition("t", ID, 0), TransactionPartition("t", ID, 1)
NOW = 1_000_000


def initialised(epoch: int = 0) -> TransactionMetadata:
    made = init_producer(None, -1, -1, 5000, 77, NOW)
    assert isinstance(made, TransactionMetadata)
    return made._replace(epoch=epoch)


def ongoing() -> TransactionMetadata:
    added = add(initialised(), 77, 0, [P0], ["g"], NOW)
    assert isinstance(added, TransactionMetadata)
    return added


def prepared(commits: bool) -> TransactionMetadata:
    ended = end(ongoing(), 77, 0, commits, NOW)
    assert isinstance(ended, TransactionMetadata)
    return ended


def test_new_id_begins_with_epoch_0_and_each_new_producer_raises_it() -> None:
    made = initialised()
    assert (made.state, made.producer_id, made.epoch) == (TransactionState.EMPTY, 77, 0)
    again = init_producer(made, -1, -1, 5000, 99, NOW)
    assert isinstance(again, TransactionMetadata)
    assert (again.producer_id, again.epoch, again.last_epoch) == (77, 1, -1)


def test_producer_that_names_its_epoch_gets_the_next_one_and_the_same_one_if_it_asks_again() -> None:
    made = initialised(epoch=4)
    bumped = init_producer(made, 77, 4, 5000, 99, NOW)
    assert isinstance(bumped, TransactionMetadata)
    assert (bumped.epoch, bumped.last_epoch) == (5, 4)
    repeated = init_producer(bumped, 77, 4, 5000, 99, NOW)
    assert isinstance(repeated, TransactionMetadata)
    assert repeated.epoch == 5
    assert init_producer(bumped, 77, 3, 5000, 99, NOW) == 90
    assert init_producer(bumped, 78, 5, 5000, 99, NOW) == 90
    begun = add(bumped, 77, 5, [P0], [], NOW)
    assert isinstance(begun, TransactionMetadata)
    assert init_producer(begun, 77, 4, 5000, 99, NOW) == 90


def test_fenced_producer_cannot_take_the_epoch_of_the_one_that_fenced_it() -> None:
    made = init_producer(initialised(), -1, -1, 5000, 99, NOW)
    assert isinstance(made, TransactionMetadata)
    assert init_producer(made, 77, 0, 5000, 99, NOW) == 90


def test_used_up_epochs_lead_to_another_producer_id() -> None:
    made = init_producer(initialised(epoch=EPOCH_MAX), -1, -1, 5000, 99, NOW)
    assert isinstance(made, TransactionMetadata)
    assert (made.producer_id, made.epoch) == (99, 0)
    late = time_out(ongoing()._replace(epoch=EPOCH_MAX), NOW + 5000)
    assert late is not None
    assert late.epoch == EPOCH_MAX + 1 == 0x7FFF
    made = init_producer(complete(late, NOW), -1, -1, 5000, 99, NOW)
    assert isinstance(made, TransactionMetadata)
    assert (made.producer_id, made.epoch) == (99, 0)
    made = init_producer(complete(late, NOW), 77, EPOCH_MAX, 5000, 99, NOW)
    assert isinstance(made, TransactionMetadata)
    assert (made.producer_id, made.epoch) == (99, 0)


def test_new_producer_aborts_an_ongoing_transaction_and_fences_its_producer() -> None:
    aborted = init_producer(ongoing(), -1, -1, 5000, 99, NOW)
    assert isinstance(aborted, TransactionMetadata)
    assert (aborted.state, aborted.epoch) == (TransactionState.PREPARE_ABORT, 1)
    assert init_producer(aborted, -1, -1, 5000, 99, NOW) == 51
    assert end(aborted, 77, 0, True, NOW) == 90


@pytest.mark.parametrize("commits", [True, False])
def test_repeated_end_is_answered_and_the_other_outcome_is_refused(commits: bool) -> None:
    decided = prepared(commits)
    assert end(decided, 77, 0, commits, NOW) == 51
    assert end(decided, 77, 0, not commits, NOW) == 48
    done = complete(decided, NOW)
    assert end(done, 77, 0, commits, NOW) is done
    assert end(done, 77, 0, not commits, NOW) == 48
    assert not done.partitions and not done.groups
    assert end(initialised(), 77, 0, commits, NOW) == 48


def test_requests_of_an_unknown_producer_or_an_old_epoch_are_refused() -> None:
    for current, producer, expected in ((None, (77, 0), 49), (ongoing(), (78, 0), 49), (ongoing(), (77, 1), 90)):
        assert add(current, *producer, [P0], [], NOW) == expected
        assert end(current, *producer, True, NOW) == expected
        assert write_error(current, *producer, P0) == expected
        assert write_error(current, *producer, "g") == expected


def test_records_and_offsets_need_an_ongoing_transaction_with_their_partition_or_group() -> None:
    assert write_error(ongoing(), 77, 0, P0) == write_error(ongoing(), 77, 0, "g") == 0
    assert write_error(ongoing(), 77, 0, P1) == write_error(ongoing(), 77, 0, "h") == 48
    assert write_error(ongoing(), 77, 0, P0._replace(queue_id=bytes(16))) == 48, "a new topic of the name"
    assert write_error(prepared(True), 77, 0, P0) == write_error(prepared(False), 77, 0, "g") == 48


def test_time_out_counts_from_the_first_partition() -> None:
    first = ongoing()
    more = add(first, 77, 0, [P1], [], NOW + 4000)
    assert isinstance(more, TransactionMetadata)
    assert more.start_ms == NOW
    assert time_out(more, NOW + 4999) is None
    aborted = time_out(more, NOW + 5000)
    assert aborted is not None
    assert (aborted.state, aborted.epoch) == (TransactionState.PREPARE_ABORT, 1)
    assert time_out(aborted, NOW + 9999) is None


def test_a_producer_continues_after_the_time_out_of_its_transaction_unless_another_one_has_its_id() -> None:
    aborted = time_out(ongoing(), NOW + 5000)
    assert aborted is not None
    assert init_producer(aborted, 77, 0, 5000, 99, NOW) == 51
    done = complete(aborted, NOW)
    again = init_producer(done, 77, 0, 5000, 99, NOW)
    assert isinstance(again, TransactionMetadata)
    assert (again.state, again.epoch) == (TransactionState.EMPTY, 1)
    assert init_producer(again, 77, 0, 5000, 99, NOW) == again
    other = init_producer(done, -1, -1, 5000, 99, NOW)
    assert isinstance(other, TransactionMetadata)
    assert init_producer(other, 77, 0, 5000, 99, NOW) == 90


def test_known_partitions_change_nothing() -> None:
    assert add(ongoing(), 77, 0, [P0], ["g"], NOW + 1) == ongoing()


@pytest.mark.parametrize("seed", range(200))
def test_random_requests_agree_with_a_model(seed: int) -> None:
    """The model has one truth per transaction: which producer may write, what is in it, and how it ended."""
    chance = random.Random(seed)
    current: TransactionMetadata | None = None
    owner = (-1, -1)  # the producer that was initialised last
    is_open, is_decided = False, False
    content: set[object] = set()
    outcome: bool | None = None
    now = NOW
    for step in range(300):
        now += chance.randint(0, 900)
        what = chance.choice(["init", "add", "add", "add", "end", "end", "complete", "complete", "time"])
        stale = chance.random() < 0.2
        producer = (owner[0], owner[1] - 1) if stale else owner
        if what == "init":
            result = init_producer(current, -1, -1, 5000, 1000 + step, now)
            if is_decided:
                assert result == 51
            else:
                assert isinstance(result, TransactionMetadata)
                if is_open:
                    is_open, is_decided, outcome = False, True, False
                else:
                    content.clear()
                    outcome = None
                assert result.state.is_prepared == is_decided
                assert (result.producer_id, result.epoch) > owner or current is None
                current, owner = result, (result.producer_id, result.epoch)
        elif what == "add":
            parts = chance.choice([[P0], [P1], [P0, P1]])
            groups = chance.choice([[], ["g"]])
            result = add(current, *producer, parts, groups, now)
            if current is None:
                assert result == 49
            elif stale:
                assert result == 90
            elif is_decided:
                assert result == 51
            else:
                assert isinstance(result, TransactionMetadata)
                content |= {*parts, *groups}
                current, is_open, outcome = result, True, None
                assert current.partitions | current.groups == content
        elif what == "end":
            commits = chance.random() < 0.5
            result = end(current, *producer, commits, now)
            if current is None:
                assert result == 49
            elif stale:
                assert result == 90
            elif is_open:
                assert isinstance(result, TransactionMetadata)
                current, is_open, is_decided, outcome = result, False, True, commits
            elif outcome is commits:
                assert result == 51 if is_decided else result is current
            else:
                assert result == 48
        elif what == "complete" and is_decided:
            assert current is not None
            current, is_decided = complete(current, now), False
            content.clear()
            assert current.is_idle
        elif what == "time" and current is not None:
            late = time_out(current, now)
            assert (late is not None) == (is_open and now >= current.start_ms + 5000)
            if late is not None:
                current, owner = late, (late.producer_id, late.epoch)
                is_open, is_decided, outcome = False, True, False
        if current is not None:
            for part in (P0, P1):
                may_write = write_error(current, *owner, part) == 0
                assert may_write == (is_open and part in content)
            assert decode_value(encode_value(current)) == current


TEXT = st.text(max_size=20)


@given(TEXT, TEXT)
def test_key_is_decoded_as_it_was_encoded(vhost_id: str, name: str) -> None:
    assert decode_key(encode_key((vhost_id, name))) == (vhost_id, name)


@given(st.binary(max_size=80))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    for each in (data, b"\x01" + data, encode_value(ongoing())[: len(data)], encode_value(ongoing())[:40] + data):
        decode_key(each)
        decode_value(each)
