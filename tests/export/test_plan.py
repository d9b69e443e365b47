"""Planning by index gives the same rows as a full scan, without acked and transient records and markers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from amqpd.storage.acks.ack_set import BITS, SETTLED, encode_entry
from amqpd.storage.export import offsets
from amqpd.storage.export.plan import bits_of, split_size

SLOW = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 90), st.sampled_from([0, 10, 300, 3000])),
        st.tuples(st.just("transient"), st.integers(1, 5), st.just(10)),
        st.tuples(st.just("transaction"), st.integers(1, 150), st.just(20)),
        st.tuples(st.just("settle"), st.integers(0, 400), st.integers(0, 120)),
        st.tuples(st.just("every other"), st.integers(0, 400), st.integers(0, 600)),
        st.tuples(st.just("later"), st.integers(-2000, 5000), st.just(0)),
        st.tuples(st.just("turn"), st.just(0), st.just(0)),
    ),
    max_size=14,
)


def play(lake: Any, steps: list[tuple[str, int, int]]) -> None:
    number = 0
    for step, a, b in steps:
        if step in ("append", "transient"):
            lake.append(*(b"%d" % n + b"." * b for n in range(number, number + a)), persistent=step == "append")
            number += a
        elif step == "transaction":
            lake.store.begin_transaction()
            lake.append(*(b"%d" % n + b"." * b for n in range(number, number + a)))
            lake.store.end_transaction()
            number += a
        elif step == "settle":
            lake.turn()
            lake.store.ack_range(a, min(a + b, lake.store.next_offset - 1))
        elif step == "every other":
            lake.turn()
            for offset in range(a, min(a + b, lake.store.next_offset), 2):
                lake.store.ack(offset)
        elif step == "later":
            lake.clock.now_ms += a
        else:
            lake.settled()
    lake.settled()


@SLOW
@given(
    STEPS,
    st.sampled_from([2000, 20000, 1 << 26]),
    st.integers(1, 30000),
    st.integers(1, 9),
    st.sampled_from([61, 700, 5000]),
    st.tuples(st.integers(0, 500), st.integers(0, 700)),
)
def test_plan_by_index_equals_a_full_scan(
    make_lake: Callable[..., Any],
    steps: list[tuple[str, int, int]],
    segment_size_bytes: int,
    split_bytes: int,
    parts_min: int,
    read_size: int,
    bounds: tuple[int, int],
) -> None:
    lake = make_lake(segment_size_bytes)
    play(lake, steps)
    expected = [(record.offset, record.timestamp_ms, record.body) for record in lake.live()]
    given = {"splitBytes": str(split_bytes), "minPartitions": str(parts_min)}
    rows = lake.rows(read_size, **given)
    assert [(r["offset"], round(r["timestamp"].timestamp() * 1000), r["value"]) for r in rows] == expected

    snapshot = lake.snapshot()
    first, stop = max(snapshot.start, min(bounds)), min(snapshot.end, max(bounds))
    if first < stop:
        given |= {"startingOffsets": str(first), "endingOffsets": str(stop)}
        rows = lake.rows(read_size, **given)
        assert [row["offset"] for row in rows] == [each[0] for each in expected if first <= each[0] < stop]


@SLOW
@given(STEPS, st.sampled_from([2000, 1 << 26]), st.integers(-1, 12), st.integers(-1, 1))
def test_offset_of_a_time_equals_a_full_scan(
    make_lake: Callable[..., Any], steps: list[tuple[str, int, int]], segment_size_bytes: int, which: int, by: int
) -> None:
    lake = make_lake(segment_size_bytes)
    play(lake, [step for step in steps if step[0] not in ("settle", "every other")])
    records = lake.live()
    times = sorted({record.timestamp_ms for record in records})
    wanted = (times[which] if 0 <= which < len(times) else 1_700_000_000_000) + by
    # The first batch of that time or later; a batch has one timestamp.
    expected = next((record.offset for record in records if record.timestamp_ms >= wanted), None)
    assert lake.snapshot().offset_at(wanted) == expected


@SLOW
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 300), st.integers(0, 300))), st.integers(1, 300))
def test_ack_entries_become_bits(entries: list[tuple[bool, int, int]], count: int) -> None:
    base = 1000
    data, naive = b"", set()
    for ranges, a, b in entries:
        if ranges:
            data += encode_entry(SETTLED, base + a, base + b, 0)
            naive |= set(range(a, b + 1))
        else:
            data += encode_entry(BITS, base + a, b | -(1 << 63), b)
            word = (b | 1 << 63) | b << 64
            naive |= {a + place for place in range(128) if word >> place & 1}
    bits = bits_of(data, base, base + count)
    found = {place for place in range(len(bits) * 8) if bits[place >> 3] >> (place & 7) & 1}
    assert found == {place for place in naive if place < count}


def test_acked_records_are_only_read_with_include_settled(lake: Any) -> None:
    lake.append(*(b"%d" % number for number in range(10)))
    lake.turn()
    lake.store.ack(3)
    lake.settled()
    assert lake.offsets() == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert lake.offsets(includeSettled="true") == list(range(10))


def test_fully_acked_range_makes_no_part(make_lake: Callable[..., Any]) -> None:
    lake = make_lake(20_000)
    for _ in range(10):
        lake.append(*(b"." * 1000 for _ in range(10)))
        lake.turn()
    for offset in (*range(20, 60), 99):
        lake.store.ack(offset)
    lake.settled()
    snapshot = lake.snapshot()
    parts = snapshot.parts(0, 100, split_bytes=5000)
    covered = {offset for part in parts for offset in range(part.first, part.stop)}
    assert covered >= set(range(20)) | set(range(60, 99))
    assert len(covered & set(range(20, 60))) < 30
    assert lake.offsets() == [*range(20), *range(60, 99)]


def test_only_synced_records_are_read(lake: Any) -> None:
    lake.append(b"a", b"b")
    lake.turn()
    lake.append(b"c")
    lake.storage.commits._write_dirty()  # in the file but not synced
    assert lake.offsets() == [0, 1]
    lake.turn()
    lake.append(b"d")
    lake.turn()
    assert lake.offsets() == [0, 1, 2, 3]


def test_transient_messages_are_read_until_the_broker_restarts(lake: Any) -> None:
    lake.append(b"a", b"b", persistent=False)
    lake.append(b"c")
    lake.settled()
    assert lake.offsets() == [0, 1, 2]
    lake.again()
    lake.append(b"d")
    lake.settled()
    assert lake.offsets() == [2, 3] == [record.offset for record in lake.live()]


def test_commit_marker_is_not_a_row(lake: Any) -> None:
    lake.store.begin_transaction()
    lake.append(*(b"%d" % number for number in range(70)))
    lake.store.end_transaction()
    lake.append(b"after")
    lake.settled()
    assert lake.offsets() == [*range(70), 71]


def test_min_partitions_makes_smaller_parts(make_lake: Callable[..., Any]) -> None:
    lake = make_lake()
    for _ in range(100):
        lake.append(b"." * 5000, b"." * 5000)
        lake.turn()
    options = lake.options(minPartitions="8")
    parts = offsets.batch_parts(options)
    assert 8 <= len(parts) <= 10
    assert [row["offset"] for row in lake.read(options, parts)] == list(range(200))


@pytest.mark.parametrize(
    ("sizes", "parts_min", "expected"), [([100], 1, 64), ([100], 4, 25), ([], 9, 64), ([1000, 0], 2, 64)]
)
def test_split_size_depends_on_total_and_min_partitions(sizes: list[int], parts_min: int, expected: int) -> None:
    assert split_size(sizes, 64, parts_min) == expected


@pytest.mark.parametrize("damage", ["zeros", "shifted", "missing", "short"])
def test_wrong_index_does_not_change_the_result(make_lake: Callable[..., Any], damage: str) -> None:
    lake = make_lake()
    lake.append(*(b"." * 3000 for _ in range(150)))
    lake.turn()
    (name,) = lake.names(".index")
    index = lake.data(name)
    if damage == "zeros":
        index[:] = bytes(len(index))
    elif damage == "shifted":
        for entry in range(len(index) // 8):
            index[entry * 8 + 7] ^= 1
    elif damage == "short":
        del index[13:]
    else:
        lake.filesystem.unlink(f"{lake.place}/{name}")
    assert lake.offsets(splitBytes="50000") == list(range(150))
    assert lake.offsets(splitBytes="50000", startingOffsets="77", endingOffsets="131") == list(range(77, 131))


def test_index_of_a_log_that_has_grown_since_it_was_listed_is_used(lake: Any, caplog: Any) -> None:
    def fill() -> None:
        for _ in range(5):
            lake.append(*(b"." * 1000 for _ in range(10)))
            lake.turn()

    fill()
    snapshot = lake.snapshot()
    wanted = [snapshot.log_bytes(first) for first in (0, 25, 49)]
    fill()
    assert [snapshot.log_bytes(first) for first in (0, 25, 49)] == wanted
    assert [(part.first, part.stop) for part in snapshot.parts(25, 50, split_bytes=1)] == [(25, 30), (30, 40), (40, 50)]
    assert "is wrong" not in caplog.text
