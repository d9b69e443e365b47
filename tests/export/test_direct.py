"""Files that a task writes itself: any reader gets the same rows, and no two attempts share a file name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from amqpd.storage.export.engine import spread
from amqpd.storage.export.file_writer import FileLayout, write_task
from amqpd.storage.export.offsets import batch_parts
from amqpd.storage.export.options import ReadOptions
from amqpd.storage.export.plan import DataLoss


def test_written_files_have_the_rows_for_any_reader(lake: Any, tmp_path: Path) -> None:
    for start in range(0, 300, 10):
        lake.append(*(b"%d" % number for number in range(start, start + 10)))
        lake.turn()
    lake.store.ack_range(40, 49)
    lake.settled()
    options: ReadOptions = lake.options(splitBytes="2000", includeHeaders="true", includeProperties="true")
    parts = batch_parts(options)
    assert len(parts) > 2
    tasks = enumerate(([parts[0]], parts[1:]))
    written = [each for numbered in tasks for each in write_task(options, FileLayout(str(tmp_path)), numbered)]
    assert len(written) == 2
    expected = [n for n in range(300) if not 40 <= n < 50]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(Path(each.path).name for each in written)
    table = pq.read_table(tmp_path)
    assert sorted(table.column("offset").to_pylist()) == expected
    assert table.schema.names == list(options.columns)
    assert sum(each.rows for each in written) == 290
    assert sum(each.size_bytes for each in written) == sum(len(b"%d" % n) for n in expected)
    query = f"SELECT count(*), count(DISTINCT \"offset\"), min(value) FROM '{tmp_path}/*.parquet'"
    assert duckdb.sql(query).fetchall() == [(290, 290, b"0")]

    (second_attempt,) = write_task(
        options, FileLayout(str(tmp_path)), (0, parts[:1])
    )  # a second attempt of the same task
    assert second_attempt.path != written[0].path and pq.read_table(second_attempt.path) == pq.read_table(
        written[0].path
    )


@pytest.mark.parametrize(
    ("by", "wanted"),
    [
        (("date",), {"date=2026-01-01": 20, "date=2026-01-02": 10}),
        (("hour",), {"hour=22": 10, "hour=23": 10, "hour=0": 10}),
        (("hour", "date"), {f"hour={h}/date=2026-01-0{d}": 10 for h, d in ((22, 1), (23, 1), (0, 2))}),
    ],
)
def test_files_are_partitioned_by_time(lake: Any, tmp_path: Path, by: tuple[str, ...], wanted: dict[str, int]) -> None:
    start_ms = 1_767_304_800_000  # 2026-01-01 22:00 UTC
    for hour in range(3):
        lake.clock.now_ms = start_ms + hour * 3_600_000
        lake.append(*(b"%d" % number for number in range(10)))
        lake.turn()
    options: ReadOptions = lake.options(columns="offset,value")
    (part,) = batch_parts(options)
    found: dict[str, int] = {}
    for each in write_task(options, FileLayout(str(tmp_path), partition_by=by), (7, [part])):
        assert Path(each.path).name.startswith("part-00007-")
        found[str(Path(each.path).parent.relative_to(tmp_path))] = each.rows
        assert pq.ParquetFile(each.path).schema_arrow.names == ["offset", "value"]
    assert found == wanted


def test_failing_part_returns_no_file(lake: Any, tmp_path: Path) -> None:
    for _ in range(4):
        lake.append(*(b"." * 300 for _ in range(10)))
        lake.turn()
    options: ReadOptions = lake.options()
    (part,) = batch_parts(options)
    lake.data(lake.names(".log")[0])[-100] ^= 1
    with pytest.raises(DataLoss):
        write_task(options, FileLayout(str(tmp_path)), (0, [part]))


def test_part_without_rows_leaves_no_file(lake: Any, tmp_path: Path) -> None:
    lake.store.begin_transaction()
    lake.append(*(b"%d" % number for number in range(70)))
    lake.store.end_transaction()
    lake.settled()
    options: ReadOptions = lake.options(startingOffsets="70")
    (part,) = batch_parts(lake.options(startingOffsets="70", includeSettled="true"))
    assert write_task(options, FileLayout(str(tmp_path)), (0, [part])) == [] and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("sizes_mib", "cores", "wanted"),
    [
        ([16] * 64, 2, [32, 32]),  # 1 GiB: one task per core
        ([16] * 65, 2, [16, 16, 17, 16]),  # four tasks, since one has at most 512 MiB
        ([16] * 64, 4, [16] * 4),
        ([16, 16, 16, 1], 8, [1, 1, 2]),  # fewer tasks than cores, so that none has less than 16 MiB
        ([1, 1, 1], 2, [3]),
        ([40, 1, 1, 40], 2, [2, 2]),
        ([0], 2, [1]),
        ([600], 2, [1]),
    ],
)
def test_parts_are_spread_over_few_tasks_of_similar_size(
    lake: Any, sizes_mib: list[int], cores: int, wanted: list[int]
) -> None:
    lake.append(b"x")
    lake.turn()
    (part,) = batch_parts(lake.options())
    parts = [replace(part, first=number, size_bytes=size << 20) for number, size in enumerate(sizes_mib)]
    tasks = spread(parts, cores)
    assert [each for task in tasks for each in task] == parts  # in order
    assert [len(task) for task in tasks] == wanted
