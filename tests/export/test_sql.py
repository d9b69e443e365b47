"""`amqpctl sql`: queues as tables of DuckDB; formats, odd names, errors, packages that are missing."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys

import pika
import pytest

from amqpd.cli import sql as command
from amqpd.cli.main import run

pytest.importorskip("duckdb")


def call(*arguments):
    out, err = io.StringIO(), io.StringIO()
    code = run(list(arguments), out, err, io.StringIO(), {})
    return code, out.getvalue(), err.getvalue()


@pytest.fixture
def ask(written):
    return lambda *arguments: call("--data-dir", written.data_dir, "sql", *arguments)


COUNTS = "SELECT routing_key, count(*) AS n FROM tasks GROUP BY 1 ORDER BY 1"


def test_each_formatter_writes_the_rows(ask):
    assert ask(COUNTS) == (0, "routing_key\tn\neu\t2000\nus\t2000\n", "")
    assert ask("--no-table-headers", COUNTS) == (0, "eu\t2000\nus\t2000\n", "")
    wanted = [{"routing_key": "eu", "n": 2000}, {"routing_key": "us", "n": 2000}]
    assert json.loads(ask("--formatter", "json", COUNTS)[1]) == wanted
    assert [json.loads(line) for line in ask("--formatter", "json_stream", COUNTS)[1].splitlines()] == wanted
    assert ask("--formatter", "csv", COUNTS)[1] == '"routing_key","n"\n"eu","2000"\n"us","2000"\n'
    assert "│ eu" in ask("--formatter", "pretty_table", COUNTS)[1]
    empty = "SELECT * FROM tasks WHERE false"
    assert json.loads(ask("--formatter", "json", empty)[1]) == []
    assert ask("--formatter", "json_stream", empty)[1] == ask(empty)[1] == ""


@pytest.mark.parametrize("formatter", ["table", "json", "json_stream", "csv"])
def test_long_results_have_each_row_and_one_header(ask, formatter, monkeypatch):
    monkeypatch.setattr(command, "ROWS", 2048)
    code, out, _ = ask("--formatter", formatter, 'SELECT "offset" AS o, 1 AS o FROM range(3), tasks')
    read = {
        "json": lambda: [row["o"] for row in json.loads(out)],
        "json_stream": lambda: [json.loads(line)["o"] for line in out.splitlines()],
        "csv": lambda: [int(row["o"]) for row in csv.DictReader(io.StringIO(out))],
        "table": lambda: [int(line.split("\t")[0]) for line in out.splitlines()[1:]],
    }
    assert (code, sorted(read[formatter]())) == (0, sorted([*range(1000, 5000)] * 3))
    assert out.count("o_2") == (12000 if formatter.startswith("json") else 1)


def test_values_of_all_types_are_written(ask):
    code, out, _ = ask(
        "--formatter",
        "json",
        "SELECT NULL AS n, true AS b, 1.5::DOUBLE AS d, 2.50::DECIMAL(9, 2) AS e, sum(1) AS s, '\\x00\\xFF'::BLOB AS x,"
        " TIMESTAMPTZ '2026-01-31 12:00:00.25Z' AS t, DATE '2026-01-31' AS day, MAP {'a': 1} AS m, {'k': [1, 2]} AS st,"
        " 'NaN'::DOUBLE AS nan, 1 AS n",
    )
    assert (code, json.loads(out)[0]) == (
        0,
        {
            "n": None, "b": True, "d": 1.5, "e": 2.5, "s": 1, "x": "\0\\xff", "t": "2026-01-31T12:00:00.250Z",
            "day": "2026-01-31", "m": {"a": 1}, "st": {"k": [1, 2]}, "nan": "nan", "n_2": 1,
        },
    )  # fmt: skip
    maps = "SELECT MAP {} AS m, MAP {}::MAP(VARCHAR, INT) AS n, NULL::MAP(VARCHAR, INT) AS o"
    assert json.loads(ask("--formatter", "json", maps)[1]) == [{"m": {}, "n": {}, "o": None}]
    assert ask("SELECT {'k': [1, 2]} AS st, NULL AS n, 1.5::DOUBLE AS d")[1] == 'st\tn\td\n{"k":[1,2]}\t\t1.5\n'


def test_intervals_are_those_of_duckdb(ask):
    texts = (
        "5 hours",
        "-13 months",
        "-3 days -04:05:06.5",
        "0 days",
        "14 months 1 day 100:00:00.000001",
        "-1 day 2 hours",
    )
    values = ", ".join(f"INTERVAL '{text}'" for text in texts)
    statement = f"SELECT i, i::VARCHAR AS s FROM (SELECT unnest([{values}]) AS i)"
    found = json.loads(ask("--formatter", "json", statement)[1])
    assert [row["i"] for row in found] == [row["s"] for row in found] and len(found) == len(texts)
    assert ask(f"SELECT [{values}][1:2] AS l")[1] == 'l\n["05:00:00","-1 year -1 month"]\n'


def test_no_digit_of_a_value_is_lost(ask):
    """JSON has them as text where a float would be another number."""
    times = "'2026-01-31 12:00:00.000001'::TIMESTAMP AS t"
    statement = f"SELECT 12345678901234567.89::DECIMAL(38, 2) AS d, 0.1::DECIMAL(9, 1) AS e, {times}"
    found = {"d": "12345678901234567.89", "e": 0.1, "t": "2026-01-31T12:00:00.000001"}
    assert json.loads(ask(statement, "--formatter", "json")[1]) == [found]


def test_columns_are_those_of_an_export_and_offsets_need_quotes(ask):
    code, out, _ = ask("--formatter", "json", 'SELECT * FROM tasks WHERE "offset" = 1234')
    (row,) = json.loads(out)
    assert (code, row["offset"], row["value"][:5], row["routing_key"]) == (0, 1234, "01234", "us")
    assert row["properties"]["delivery_mode"] == 2 and row["headers"] is None
    assert ask("SELECT count(*) FROM tasks WHERE timestamp > now()::TIMESTAMPTZ + INTERVAL 1 DAY")[1].endswith("\n0\n")
    assert ask("--include-settled", "SELECT count(*) AS n FROM tasks")[1] == "n\n5000\n"
    joined = 'SELECT count(*) AS n FROM tasks a JOIN tasks b USING ("offset")'
    assert ask(joined)[1] == "n\n4000\n"


def test_result_can_be_copied_to_a_file(ask, tmp_path):
    assert ask(f"COPY (SELECT * FROM tasks) TO '{tmp_path}/tasks.parquet'")[0] == 0
    assert ask(f"SELECT count(*) AS n FROM '{tmp_path}/tasks.parquet'")[1] == "n\n4000\n"


def test_without_a_statement_the_tables_are_listed(ask):
    code, out, _ = ask()
    assert (code, out.splitlines()[-2:]) == (0, ["table", "tasks"])
    assert "offset, timestamp, exchange, routing_key, value, properties, headers" in out
    assert json.loads(ask("--formatter", "json")[1]) == [{"table": "tasks"}]
    assert "tasks" in ask("SHOW TABLES")[1]
    assert "routing_key" in ask("DESCRIBE tasks")[1]


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("SELECT * FROM orders", "Table with name orders does not exist! Tables of vhost '/': tasks"),
        ("SELEC 1", 'Parser Error: syntax error at or near "SELEC"'),
        ("SELECT nothing FROM tasks", 'Binder Error: Referenced column "nothing" not found'),
        ("SELECT routing_key::INT FROM tasks", "Could not convert string"),
        ("SELECT * FROM context", "Table with name context does not exist"),
        ("SELECT DATE '0044-03-15 (BC)'", "cast others to VARCHAR"),
        ("SELECT TIMESTAMPTZ 'infinity'", "cast others to VARCHAR"),
        ("SELECT '2026-01-31 12:00:00.123456789'::TIMESTAMP_NS", "microseconds, of the years 1 to 9999"),
    ],
)
def test_error_of_sql_is_one_line_with_code_65(ask, statement, words):
    code, out, err = ask(statement)
    assert (code, out) == (65, "")
    assert words in err and err.startswith("Error:\n") and err.count("\n") == 2, err


@pytest.mark.parametrize(
    "statement",
    [
        """SELECT replace(decode(value), '"', '') FROM "my-queue" JOIN orders USING ("offset")""",
        """SELECT '"', 'it''s "' AS a, '"' FROM "it's" JOIN "my-queue" USING ("offset") JOIN orders USING ("offset")""",
        """-- it's the last '"'
        SELECT 1 /* of 3" */ FROM "my-queue", "a""b", orders WHERE 'x' <> '"'""",
        """SELECT * FROM query_table('orders'), "my-queue\"""",
    ],
)
def test_quotes_in_texts_hide_no_quoted_name(statement):
    found = command.words_of(statement)
    assert {"my-queue", "orders"} <= found
    assert all(name in found for name, text in (("it's", '"it\'s"'), ('a"b', '"a""b"')) if text in statement)


def test_missing_source_and_damaged_messages_keep_their_codes(written, ask, tmp_path):
    code, _, err = call("--data-dir", str(tmp_path / "none"), "sql", "SELECT 1")
    assert (code, "does not exist" in err) == (69, True)
    (log, *_) = sorted(path for path in (tmp_path / "data").rglob("*.log") if path.stat().st_size)[-1:]
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    code, _, err = ask("SELECT count(*), min(value) FROM tasks")
    assert (code, "--allow-data-loss continues without them" in err) == (65, True), err
    assert ask("--allow-data-loss", "SELECT count(*) > 1000 AS ok FROM tasks")[1] == "ok\ntrue\n"


def test_queues_with_odd_names_of_a_running_broker(amqpd_broker, amqpd_vhost):
    connection = pika.BlockingConnection(pika.URLParameters(amqpd_vhost.url))
    channel = connection.channel()
    channel.confirm_delivery()
    names = ["orders", "my-queue", "a/b \u00fc", 'with "quotes"', "select", "Case", "case"]
    for number, name in enumerate(names):
        channel.queue_declare(name, durable=True)
        body = json.dumps({"n": number}).encode()
        channel.basic_publish("", name, body, pika.BasicProperties(delivery_mode=2, headers={"h": name}))
    connection.close()
    url = amqpd_broker.http_url.replace("://", "://guest:guest@")
    for where in (("--data-dir", str(amqpd_broker.data_dir)), ("--uri", url)):
        start = (*where, "-p", amqpd_vhost.name, "sql")
        listed = json.loads(call(*start, "--formatter", "json")[1])
        for row in listed:
            code, out, err = call(*start, f"SELECT decode(value)->>'n' AS n, headers['h'] AS h FROM {row['table']}")
            name = row["table"]
            name = name[1:-1].replace('""', '"') if name.startswith('"') else name
            assert (code, out) == (0, f"n\th\n{names.index(name)}\t{name}\n"), err
        assert len(listed) == len(names)
        code, _, err = call(*start, 'SELECT * FROM "Case" JOIN "case" USING (queue)')
        assert (code, "DuckDB does not distinguish" in err) == (65, True)


@pytest.mark.parametrize("package", ["duckdb", "pyarrow"])
def test_missing_package_is_named(package, monkeypatch, written):
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == package else object())
    code, _, err = call("--data-dir", written.data_dir, "sql", "SELECT 1")
    wanted = f"sql needs the package {package}: {sys.executable} -m pip install '{command.PACKAGES[package]}' "
    assert (code, wanted in err) == (69, True), err
    monkeypatch.setattr(command, "find_spec", lambda _: None)
    assert "sql needs the packages duckdb, pyarrow: " in call("--data-dir", written.data_dir, "sql", "SELECT 1")[2]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_a_query_and_leaves_no_temporary_files(written, tmp_path, number):
    program = "import sys; from amqpd.cli.main import main; sys.argv[0] = 'amqpctl'; sys.exit(main())"
    statement = "SELECT a.range FROM range(1000000000000) a, (FROM tasks LIMIT 1)"
    call = [sys.executable, "-P", "-c", program, "--data-dir", written.data_dir, "sql", statement]
    place = tmp_path / "temporary"
    place.mkdir()
    environment = {**os.environ, "TMPDIR": str(place)}
    with subprocess.Popen(call, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout.read(5) == b"range"
        assert len(list(place.iterdir())) == 1
        running.send_signal(number)
        _, err = running.communicate()
    assert (running.returncode, err) == (130, b"")
    assert list(place.iterdir()) == []


def test_signal_within_duckdb_is_no_error_of_the_query(ask, monkeypatch):
    """DuckDB replaces the KeyboardInterrupt by an error."""

    def interrupted(context, reader):
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        raise RuntimeError("Query interrupted")

    monkeypatch.setattr(command, "_write", interrupted)
    before = signal.getsignal(signal.SIGINT)  # a shell ignores it in jobs in the background
    with pytest.raises(KeyboardInterrupt):
        ask("SELECT 1")
    assert signal.getsignal(signal.SIGINT) is before


def test_end_of_the_reader_is_no_error(written):
    program = "import sys; from amqpd.cli.main import main; sys.argv[0] = 'amqpctl'; sys.exit(main())"
    statement = "SELECT repeat('x', 200) AS x FROM range(100000), (FROM tasks LIMIT 1)"
    call = [sys.executable, "-P", "-c", program, "--data-dir", written.data_dir, "sql", statement]
    with subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None and running.stderr is not None
        assert running.stdout.readline() == b"x\n"
        running.stdout.close()
        assert running.stderr.read() == b""
    assert running.returncode == 0


@pytest.mark.slow
def test_memory_does_not_depend_on_the_size_of_the_result(written):
    """200 MB of rows need less than 100 MB more than one row needs."""
    program = (
        "import resource, sys; from amqpd.cli.main import main; sys.argv[0] = 'amqpctl'; main(); "
        "sys.stderr.write(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10))"
    )
    used = []
    for rows in (1, 100_000):
        statement = f"SELECT repeat('x', 2000) AS x FROM range({rows}), (FROM tasks LIMIT 1)"
        call = [sys.executable, "-P", "-c", program, "--data-dir", written.data_dir, "sql", statement]
        with subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
            assert running.stdout is not None and running.stderr is not None
            size = sum(map(len, iter(lambda: running.stdout.read(1 << 20), b"")))
            used.append(int(running.stderr.read()))
        assert running.returncode == 0
        assert size >= rows * 2001
    assert used[1] - used[0] < 100, used
