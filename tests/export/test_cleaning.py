"""Exports of a queue that is compacted meanwhile: at every rename of the cleaner an export sees one complete log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from amqpd.storage.export import offsets
from amqpd.storage.export.plan import DataLoss
from amqpd.storage.log.record import RecordRoute
from amqpd.storage.retention_policy import FILE_DELETE_DELAY_MS, CleanerPolicy, RetentionPolicy

KEYS = 7


class CompactedLog:
    """A log of many small segments that calls a function at each rename and removal of the cleaner."""

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
        """Compact the log; call `look` before each rename and unlink and at the end. Return the number of calls."""
        filesystem = self.lake.filesystem
        calls = 0

        def wrap(call: Any) -> Any:
            def wrapper(*arguments: Any) -> None:
                nonlocal calls
                calls += 1
                look()
                call(*arguments)

            return wrapper

        filesystem.rename, filesystem.unlink = wrap(filesystem.rename), wrap(filesystem.unlink)
        try:
            self.maintain()
        finally:
            del filesystem.rename, filesystem.unlink
        look()
        return calls


@pytest.fixture
def compacted(make_lake: Any) -> CompactedLog:
    return CompactedLog(make_lake(3000))


def test_export_at_any_step_of_compaction_sees_a_complete_log(compacted: CompactedLog) -> None:
    seen: list[int] = []

    def look() -> None:
        found = compacted.lake.offsets()
        assert sorted(set(found)) == found and set(compacted.kept) <= set(found)
        seen.append(len(found))
        at = compacted.lake.snapshot().offset_at(compacted.lake.clock.now_ms - 1000)
        assert at == 145  # offset of the last turn

    assert compacted.at_each_step(look) > 20
    assert seen[0] == 150 and seen[-1] == len(compacted.kept)
    assert seen == sorted(seen, reverse=True)
    assert compacted.lake.names(".log.swap") == []


@pytest.mark.slow
def test_plan_made_at_any_step_of_compaction_stays_readable(compacted: CompactedLog) -> None:
    """Until the old files are removed one minute later, a plan gives its original rows. After that it gives the rows
    that compaction kept.
    """
    plans: list[tuple[Any, list[Any], list[int]]] = []

    def look() -> None:
        options = compacted.lake.options()
        parts = offsets.batch_parts(options)
        plans.append((options, parts, [row["offset"] for row in compacted.lake.read(options, parts)]))

    compacted.at_each_step(look)
    assert any(part.swap for _, parts, _ in plans for part in parts)
    for options, parts, original in plans:
        assert [row["offset"] for row in compacted.lake.read(options, parts)] == original
    compacted.lake.clock.now_ms += FILE_DELETE_DELAY_MS
    compacted.maintain()
    assert compacted.lake.names(".deleted") == []
    for options, parts, original in plans:
        left = [offset for offset in original if offset in compacted.kept]
        assert [row["offset"] for row in compacted.lake.read(options, parts)] == left
    assert compacted.lake.offsets() == compacted.kept


def test_plan_after_compaction_still_skips_acked_records(compacted: CompactedLog) -> None:
    """A plan executed after compaction gives its original rows except those that compaction removed."""
    lake = compacted.lake
    settled, later = compacted.kept[0], compacted.kept[1]
    lake.store.ack_range(settled, settled)
    lake.settled()
    options = lake.options()
    parts = offsets.batch_parts(options)
    compacted.maintain()
    lake.store.ack_range(later, later)
    lake.settled()
    lake.clock.now_ms += FILE_DELETE_DELAY_MS
    compacted.maintain()
    found = [row["offset"] for row in lake.read(options, parts)]
    assert set(compacted.kept) - set(found) == {settled} and found == sorted(set(found))


@pytest.mark.parametrize("by_name", [True, False])
@pytest.mark.parametrize("moment", range(5))
def test_compaction_during_a_read_loses_no_kept_record(compacted: CompactedLog, moment: int, by_name: bool) -> None:
    """by_name: as over the network, each read opens the file by its name, which may be another log by now."""
    lake = compacted.lake
    options = replace(lake.options(), batch_rows=1)
    options.source.by_name = by_name
    parts = offsets.batch_parts(options)
    rows = lake.read(options, parts)
    found = [next(rows)["offset"] for _ in range(1 + 30 * moment)]
    compacted.maintain()
    lake.clock.now_ms += FILE_DELETE_DELAY_MS
    compacted.maintain()
    assert lake.names(".deleted") == []
    found += [row["offset"] for row in rows]
    assert found == sorted(set(found)) and set(compacted.kept) <= set(found)
    assert not set(range(found[0], 1 + 30 * moment)) - set(found)  # the part read before compaction is complete


def test_compacted_records_are_no_loss_for_a_planned_stream(compacted: CompactedLog) -> None:
    """The trigger was planned before compaction and ends at the same offsets."""
    lake = compacted.lake
    options = lake.options()
    start, end = ({"//tasks": {"id": lake.queue_id, "offset": offset}} for offset in (7, 140))
    before = offsets.stream_parts(options, start, end)
    compacted.maintain()
    lake.clock.now_ms += FILE_DELETE_DELAY_MS
    compacted.maintain()
    assert lake.snapshot().start > 7
    left = [offset for offset in compacted.kept if offset < 140]
    for parts in (before, offsets.stream_parts(options, start, end)):
        assert [row["offset"] for row in lake.read(options, parts)] == left


def test_segment_removed_by_retention_is_a_loss(compacted: CompactedLog) -> None:
    """Unlike compaction, retention leaves nothing in place of the segment."""
    lake = compacted.lake
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


def test_copy_with_only_the_swap_file_is_readable(compacted: CompactedLog, tmp_path: Path) -> None:
    copies: list[dict[str, bytes]] = []

    def look() -> None:
        names = compacted.lake.filesystem.listdir(compacted.lake.place)
        if any(name.endswith(".log.swap") and name.removesuffix(".swap") not in names for name in names):
            copies.append({n: bytes(compacted.lake.data(n)) for n in names if not n.endswith((".cleaned", ".deleted"))})

    compacted.at_each_step(look)
    assert copies
    for number, copy in enumerate(copies):
        place = tmp_path / str(number)
        place.mkdir()
        for name, data in copy.items():
            (place / name).write_bytes(data)
        from amqpd.storage.export.options import parse

        options = parse({"path": str(place), "queue": "tasks"})
        found = [row["offset"] for row in compacted.lake.read(options, offsets.batch_parts(options))]
        assert found == compacted.kept


def test_foreign_swap_file_is_ignored(compacted: CompactedLog) -> None:
    lake = compacted.lake
    name = lake.names(".log")[1]
    file = lake.filesystem.open(f"{lake.place}/{name}.swap", 0o102)
    lake.filesystem.write(file, b"not ours")
    lake.filesystem.close(file)
    assert lake.offsets() == compacted.all
