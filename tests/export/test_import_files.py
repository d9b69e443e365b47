"""Files of an import: the rows of Parquet, JSON lines and CSV, where a resumed import begins, and bad files."""

from __future__ import annotations

import json
from base64 import b64encode
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from amqpd.storage.export import import_files
from amqpd.storage.export.import_files import BadFile, find_files, read_rows
from amqpd.storage.export.shared_checkpoint import SharedCheckpoint

COUNT = 2500


def write(path, kind, count=COUNT):
    if kind == "parquet":
        table = pa.table({"value": [b"%d" % number for number in range(count)], "offset": list(range(count))})
        pq.write_table(table, path, row_group_size=700)
    elif kind == "json":
        path.write_text("".join(json.dumps({"value": f"{number}"}) + "\n" for number in range(count)))
    else:
        path.write_text("value,queue\n" + "".join(f'"{number}",q\n' for number in range(count)))
    return path


@pytest.mark.parametrize("kind", ["parquet", "json", "csv"])
@pytest.mark.parametrize("skip", [0, 1, 699, 700, 1400, 2499, 2500])
def test_rows_behind_the_skipped_ones_are_read(tmp_path, kind, skip):
    path = write(tmp_path / f"a.{kind}", kind)
    found = list(read_rows(path, "", skip))
    values = [int(value) for rows in found for value in rows.columns["value"]]
    assert values == list(range(skip, COUNT))
    assert sum(rows.rows for rows in found) == len(values)
    assert all(set(rows.columns) == {"value"} for rows in found)
    if found:
        assert found[-1].share == 1 and all(0 < rows.share <= 1 for rows in found)


@pytest.mark.parametrize("kind", ["parquet", "json", "csv"])
def test_large_bodies_are_read_a_few_at_a_time(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(import_files, "PIECE_BYTES", 2000)
    path = tmp_path / f"a.{kind}"
    bodies = [str(number) * 700 for number in range(8)]
    if kind == "parquet":
        pq.write_table(pa.table({"value": bodies}), path)
    elif kind == "json":
        path.write_text("".join(json.dumps({"value": body}) + "\n" for body in bodies))
    else:
        path.write_text("value\n" + "".join(f"{body}\n" for body in bodies))
    found = [each.columns["value"] for each in read_rows(path, "", 1)]
    assert [body for values in found for body in values] == bodies[1:]
    assert max(map(len, found)) <= 3


def test_fields_of_the_body_are_not_read(tmp_path):
    """An export with `--payload json` has them beside the body."""
    table = pa.table({"value": [b'{"a":1}'], "payload": [{"a": 1}]})
    pq.write_table(table, tmp_path / "a.parquet")
    (rows,) = read_rows(tmp_path / "a.parquet", "", 0)
    assert rows.columns == {"value": [b'{"a":1}']}


def test_json_and_csv_have_the_values_of_parquet(tmp_path):
    when = datetime(2026, 1, 31, 12, tzinfo=UTC)
    json_row = {
        "value_base64": b64encode(b"\xff\0").decode(),
        "routing_key": "k",
        "properties": {"app_id": "a", "timestamp": "2026-01-31T12:00:00.000Z"},
        "headers": {"h": "1"},
        "raw_properties": b64encode(b"\0\0").decode(),
    }
    (tmp_path / "a.json").write_text(json.dumps(json_row) + "\n" + json.dumps({"value": ""}))
    (tmp_path / "a.csv").write_text(
        'value,value_base64,routing_key,properties,headers,raw_properties\n,/wA=,k,"{""app_id"":""a"",'
        '""timestamp"":""2026-01-31T12:00:00.000Z""}","{""h"":""1""}",AAA=\n"",,,,,\n'
    )
    for name in ("a.json", "a.csv"):
        (rows,) = read_rows(tmp_path / name, "", 0)
        assert rows.columns["value"] == [b"\xff\0", ""]
        assert rows.columns["raw_properties"] == [b"\0\0", None]
        assert rows.columns["properties"] == [{"app_id": "a", "timestamp": when}, None]
        assert rows.columns["headers"] == [{"h": "1"}, None]
        assert rows.columns["routing_key"] == ["k", None]


def test_files_of_a_directory_are_found_in_order_with_their_columns(tmp_path):
    for below in ("date=2026-01-02/routing_key=b%2Fc", "date=2026-01-01/routing_key=__HIVE_DEFAULT_PARTITION__"):
        (tmp_path / below).mkdir(parents=True)
        write(tmp_path / below / "a.csv", "csv", 1)
    write(tmp_path / "b.parquet", "parquet", 1)
    (tmp_path / "notes.txt").touch()
    (tmp_path / ".lake.0123abcd.compaction" / "0").mkdir(parents=True)
    write(tmp_path / ".lake.0123abcd.compaction" / "0" / "merged.parquet", "parquet", 1)
    found = find_files(tmp_path, "csv")
    assert len(find_files(tmp_path, "")) == 3
    assert [next(iter(read_rows(path, "", 0))).columns["routing_key"] for path in found] == [[""], ["b/c"]]


@pytest.mark.parametrize(
    ("name", "table"),
    [("_delta_log/00000000000000000000.json", "a Delta table"), ("metadata/00000-0.metadata.json", "an Iceberg table")],
)
def test_directory_of_a_table_is_refused(tmp_path, name, table):
    write(tmp_path / "a.parquet", "parquet", 1)
    below = tmp_path / "orders" / name
    below.parent.mkdir(parents=True)
    below.write_text("{}")
    for kind in ("", "parquet"):
        with pytest.raises(BadFile, match=f"{tmp_path} has {table}, .*: name its data files"):
            find_files(tmp_path, kind)
    assert find_files(tmp_path / "a.parquet", "") == [tmp_path / "a.parquet"]


def test_checkpoint_of_a_shared_export_is_left_out(tmp_path):
    """Its staged files belong to batches that are not finished. Their messages would be imported twice."""
    ledger = SharedCheckpoint(str(tmp_path / "_checkpoint"), {})
    ledger.mark_checked()
    (staged := tmp_path / "_checkpoint" / "staging" / "1").mkdir(parents=True)
    for path in (staged / "part-1.parquet", tmp_path / "a.parquet"):
        path.touch()
    ledger.close()
    assert find_files(tmp_path, "") == [tmp_path / "a.parquet"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.json", b'{"value": "a"}\n{"value": ', "a.json, line 2: "),
        ("a.json", b"[1]", "line 1: expected an object"),
        ("a.json", b'{"value": 1}', "line 1: expected texts"),
        ("a.json", b'{"value": "a", "headers": "b"}', "line 1: expected objects"),
        ("a.json", b'{"value": "a", "body": "b"}', "unknown column 'body', expected some of value"),
        ("a.json", b'{"value": "a", "properties": {"ttl": 1}}', "unknown property 'ttl'"),
        ("a.json", b'{"value": "a", "properties": {"timestamp": "now"}}', "'now' is not a time"),
        ("a.json", b'{"routing_key": "a"}', "the column 'value' is missing"),
        ("a.json", b'{"value_base64": "?"}', "'\\?' is not base64"),
        ("a.csv", b"value,routing_key\na\n", "line 2: its number of cells"),
        ("a.csv", b"value,routing_key\na,b\nc\nd,e\n", "line 3: its number of cells"),
        ("a.csv", b"value,routing_key\na,b,c\n", "line 2: its number of cells"),
        ("a.csv", b'value,headers\na,"{"\n', "line 2: headers: "),
        ("a.json", b'{"value": "a"}\n' + b"[" * 100_000, "line 2: maximum recursion depth"),
        ("a.csv", b"value,headers\na," + b"[" * 100_000, "line 2: headers: maximum recursion depth"),
        ("a.csv", b"value\n\xff\n", "a.csv, line "),
        ("a.parquet", b"PAR1", "a.parquet: "),
        ("a.dat", b"", "expected a name that ends with .parquet"),
    ],
)
def test_bad_file_is_named(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadFile, match=words):
        list(read_rows(tmp_path / name, "", 0))


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"value": [1]}, "column 'value' cannot be int64"),
        ({"value": ["a"], "routing_key": [b"a"]}, "column 'routing_key' cannot be binary"),
        ({"value": ["a"], "properties": [{"ttl": 1}]}, "unknown property 'ttl'"),
        ({"value": ["a"], "body": ["b"]}, "unknown column 'body'"),
        ({"offset": [1]}, "the column 'value' is missing"),
    ],
)
def test_wrong_columns_of_parquet_are_named(tmp_path, columns, words):
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(BadFile, match=words):
        list(read_rows(tmp_path / "a.parquet", "", 0))


@pytest.mark.parametrize(("name", "text"), [("a.csv", "value,routing_key\na,b\n"), ("a.json", '{"value": "a"}\n')])
def test_byte_order_mark_is_no_part_of_a_name(tmp_path, name, text):
    """Excel begins its CSV files with one."""
    (tmp_path / name).write_text("\ufeff" + text, "utf-8")
    (found,) = read_rows(tmp_path / name, "", 0)
    assert (found.columns["value"], found.share) == (["a"], 1.0)


def test_blank_lines_are_no_rows(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('\n{"value": "0"}\n \n{"value": "1"}\r\n\r\n')
    assert [each.columns["value"] for each in read_rows(path, "", 1)] == [["1"]]
    path.write_text(path.read_text() + "{")
    with pytest.raises(BadFile, match="a.json, line 6: "):
        list(read_rows(path, "", 1))


def test_columns_of_pandas_and_polars_are_read(tmp_path):
    """A column without values has the type null; a column of repeated texts may be a dictionary."""
    columns = {"value": pa.array([b"a"], pa.binary_view()), "routing_key": pa.array(["k"]).dictionary_encode()}
    empty = {name: pa.nulls(1) for name in ("headers", "properties", "raw_properties", "exchange")}
    pq.write_table(pa.table(columns | empty), tmp_path / "a.parquet")
    (rows,) = read_rows(tmp_path / "a.parquet", "", 0)
    assert rows.columns == {"value": [b"a"], "routing_key": ["k"], **{name: [None] for name in empty}}


def test_time_that_python_does_not_have_is_an_error(tmp_path):
    times = pa.array([{"timestamp": 1 << 62}], pa.struct([("timestamp", pa.timestamp("us"))]))
    pq.write_table(pa.table({"value": [b"a"], "properties": times}), tmp_path / "a.parquet")
    with pytest.raises(BadFile, match="a.parquet: .*out of range"):
        list(read_rows(tmp_path / "a.parquet", "", 0))


def test_missing_path_is_named(tmp_path):
    with pytest.raises(BadFile, match="none does not exist"):
        find_files(tmp_path / "none", "")
    assert set(import_files.SUFFIXES.values()) == set(import_files._READERS)
