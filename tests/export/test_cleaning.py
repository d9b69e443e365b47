"""Queues that are compacted while they are read: at every rename of the cleaner an export sees one whole log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from amqpd.storage.log.record import RecordRoute
from amqpd.storage.retention_policy import FILE_DELETE_DELAY_MS, CleanerPolicy, RetentionPolicy
from amqpd.storage.spark import offsets
from amqpd.storage.spark.plan import DataLoss

KEYS = 7


class Watched:
    """A log of many small segments, and a call at each rename and removal that its cleaning makes."""

    def __init__(self, lake: Any) -> None:
        self.lake = lake
        lake.storage.set_policy(lake.store, RetentionPolicy(compaction=CleanerPolicy()))
        for turn in range(30):
            for number in range(5):
                key = b"k%d" % ((turn * 5 + number) % KEYS)
                lake.append(b"%d.%d" % (turn, number) + b"." * 100, route=RecordRoute(b"events", key))
            lake.turn()
            lake.clock.now_ms += 1000
        self.active = lake.store.log.segments[-1].base
        self.all = list(range(150))
        last = {number % KEYS: number for number in range(self.active)}
        self.kept = sorted(last.values()) + list(range(self.active, 150))

    def maintain(self) -> None:
        self.lake.storage.maintain()
        self.lake.settled()

    def at_each_step(self, look: Any) -> int:
        """Cleans; `look` before each rename and unlink, and at the end. Returns how often."""
        filesystem = self.lake.filesystem
        calls = 0

        def watching(call: Any) -> Any:
            def watched(*arguments: Any) -> None:
                nonlocal calls
                calls += 1
                look()
                call(*arguments)

            return watched

        filesystem.rename, filesystem.unlink = watching(filesystem.rename), watching(filesystem.unlink)
        try:
            self.maintain()
        finally:
            del filesystem.rename, filesystem.unlink
        look()
        return calls


@pytest.fixture
def watched(make_lake: Any) -> Watched:
    return Watched(make_lake(3000))


def test_what_is_planned_and_read_at_any_moment(watched: Watched) -> None:
    seen: list[int] = []

    def look() -> None:
        found = watched.lake.offsets()
        assert sorted(set(found)) == found and set(watched.kept) <= set(found)
        seen.append(len(found))
        at = watched.lake.snapshot().offset_at(watched.lake.clock.now_ms - 1000)
        assert at == 145  # the last turn's

    assert watched.at_each_step(look) > 20
    assert seen[0] == 150 and seen[-1] == len(watched.kept)
    assert seen == sorted(seen, reverse=True)
    assert watched.lake.names(".log.swap") == []


@pytest.mark.slow
def test_what_is_planned_at_any_moment_can_be_read_later(watched: Watched) -> None:
    """Until the old files have really gone, which is a minute later, a plan gives what it gave when it was made;
    after that what the cleaning has left of it."""
    plans: list[tuple[Any, list[Any], list[int]]] = []

    def look() -> None:
        options = watched.lake.options()
        parts = offsets.batch_parts(options)
        plans.append((options, parts, [row["offset"] for row in watched.lake.read(options, parts)]))

    watched.at_each_step(look)
    assert any(part.swap for _, parts, _ in plans for part in parts)
    for options, parts, then in plans:
        assert [row["offset"] for row in watched.lake.read(options, parts)] == then
    watched.lake.clock.now_ms += FILE_DELETE_DELAY_MS
    watched.maintain()
    assert watched.lake.names(".deleted") == []
    for options, parts, then in plans:
        left = [offset for offset in then if offset in watched.kept]
        assert [row["offset"] for row in watched.lake.read(options, parts)] == left
    assert watched.lake.offsets() == watched.kept


def test_what_was_settled_when_it_was_planned_stays_so(watched: Watched) -> None:
    """A plan that is carried out after a cleaning gives the rows that it would have given, less those cleaned away."""
    lake = watched.lake
    settled, later = watched.kept[0], watched.kept[1]
    lake.store.ack_range(settled, settled)
    lake.settled()
    options = lake.options()
    parts = offsets.batch_parts(options)
    watched.maintain()
    lake.store.ack_range(later, later)
    lake.settled()
    lake.clock.now_ms += FILE_DELETE_DELAY_MS
    watched.maintain()
    found = [row["offset"] for row in lake.read(options, parts)]
    assert set(watched.kept) - set(found) == {settled} and found == sorted(set(found))


@pytest.mark.parametrize("by_name", [True, False])
@pytest.mark.parametrize("moment", range(5))
def test_a_cleaning_in_the_middle_of_reading(watched: Watched, moment: int, by_name: bool) -> None:
    """by_name: as over the network, where every piece is asked for by the file's name, which another log has by now."""
    lake = watched.lake
    options = replace(lake.options(), batch_rows=1)
    options.source.by_name = by_name
    parts = offsets.batch_parts(options)
    rows = lake.read(options, parts)
    found = [next(rows)["offset"] for _ in range(1 + 30 * moment)]
    watched.maintain()
    lake.clock.now_ms += FILE_DELETE_DELAY_MS
    watched.maintain()
    assert lake.names(".deleted") == []
    found += [row["offset"] for row in rows]
    assert found == sorted(set(found)) and set(watched.kept) <= set(found)
    assert not set(range(found[0], 1 + 30 * moment)) - set(found)  # what was read before was read whole


def test_a_stream_that_a_cleaning_has_overtaken(watched: Watched) -> None:
    """Its trigger was decided on before: what is superseded by now is no loss, and the same offsets end it."""
    lake = watched.lake
    options = lake.options()
    start, end = ({"//tasks": {"id": lake.queue_id, "offset": offset}} for offset in (7, 140))
    before = offsets.stream_parts(options, start, end)
    watched.maintain()
    lake.clock.now_ms += FILE_DELETE_DELAY_MS
    watched.maintain()
    assert lake.snapshot().start > 7
    left = [offset for offset in watched.kept if offset < 140]
    for parts in (before, offsets.stream_parts(options, start, end)):
        assert [row["offset"] for row in lake.read(options, parts)] == left


def test_a_segment_that_retention_removed_is_a_loss(watched: Watched) -> None:
    """Not to be confused with a cleaning: nothing stands in its place."""
    lake = watched.lake
    options = lake.options()
    parts = offsets.batch_parts(options)
    for name in [each for each in lake.filesystem.listdir(lake.place) if each.startswith("0" * 20)]:
        lake.filesystem.unlink(f"{lake.place}/{name}")
    with pytest.raises(
        DataLoss, match=r"offsets 0 to \d+: their segments have been removed since the query was planned"
    ):
        list(lake.read(options, parts))
    forgiving = replace(options, fail_on_data_loss=False)
    found = [row["offset"] for row in lake.read(forgiving, parts)]
    assert found and found == list(range(found[0], 150))


def test_a_copy_taken_while_only_the_swap_was_there(watched: Watched, tmp_path: Path) -> None:
    copies: list[dict[str, bytes]] = []

    def look() -> None:
        names = watched.lake.filesystem.listdir(watched.lake.place)
        if any(name.endswith(".log.swap") and name.removesuffix(".swap") not in names for name in names):
            copies.append({n: bytes(watched.lake.data(n)) for n in names if not n.endswith((".cleaned", ".deleted"))})

    watched.at_each_step(look)
    assert copies
    for number, copy in enumerate(copies):
        place = tmp_path / str(number)
        place.mkdir()
        for name, data in copy.items():
            (place / name).write_bytes(data)
        from amqpd.storage.spark.options import parse

        options = parse({"path": str(place), "queue": "tasks"})
        found = [row["offset"] for row in watched.lake.read(options, offsets.batch_parts(options))]
        assert found == watched.kept


def test_a_swap_of_another_program_is_passed_over(watched: Watched) -> None:
    lake = watched.lake
    name = lake.names(".log")[1]
    file = lake.filesystem.open(f"{lake.place}/{name}.swap", 0o102)
    lake.filesystem.write(file, b"not ours")
    lake.filesystem.close(file)
    assert lake.offsets() == watched.all
