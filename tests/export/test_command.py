"""The command `amqpctl export`: refused arguments with their messages, and a job over HTTP with --follow."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ModuleSpec
from pathlib import Path
from unittest.mock import Mock

import pytest

from amqpd.cli import export as command
from amqpd.cli.main import run
from amqpd.cli.terminal import StatusLine
from amqpd.protocol import properties as p
from amqpd.storage.export import job as job_module
from amqpd.storage.export.engine import PyarrowEngine
from amqpd.storage.export.job import BadExport, ExportJob, ExportOptions, without_password
from amqpd.storage.export.publisher import SinkPublisher, SinkTarget
from amqpd.storage.spark import session
from amqpd.testing import BrokerProcess


def call(*arguments):
    out, err = io.StringIO(), io.StringIO()
    return run(["export", *arguments], out, err, io.StringIO(), {}), out.getvalue() + err.getvalue()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "--to is needed"),
        (("--to", "x"), "--queue or, for all its durable queues, --vhost"),
        (("--to", "x", "--queue", "q", "--format", "xml"), "--format xml"),
        (("--to", "sqlite:///x", "--queue", "q"), "--checkpoint is needed if --to is not a directory"),
        (("--to", "sqlite:///x", "--queue", "q", "--checkpoint", "c", "--format", "csv"), "--format is for dir"),
        (("--to", "s3://bucket/lake", "--queue", "q"), "--checkpoint is needed if --to is not a directory"),
        (("--to", "HDFS://host/lake", "--queue", "q", "--checkpoint", "c"), "hdfs:// is not supported"),
        (("--to", "s3://b/lake", "--queue", "q", "--checkpoint", "s3://b/c"), "expected a local directory"),
        (("--to", "file://host/lake", "--queue", "q"), "expected file:///DIRECTORY"),
        (("--to", "iceberg://shop/orders", "--queue", "q", "--checkpoint", "c"), "iceberg://CATALOG/NAMESPACE.TABLE"),
        (("--to", "iceberg://shop/a.b", "--queue", "q", "--format", "csv"), "and no other --format"),
        (("--to", "x", "--queue", "q", "--format", "iceberg", "--table", "t"), "expected NAMESPACE.TABLE"),
        (("--to", "x", "--queue", "q", "--table", "t"), "--table is for databases"),
        (("--to", "x", "--queue", "q", "--batch", "0"), "--batch : 0"),
        (("--to", "x", "--queue", "q", "--to-offset", "end"), "--to-offset : end"),
        (("--to", "x", "--queue", "q", "--name", "a/b"), "--name : a/b"),
        (("--to", "x", "--vhost", "v", "--to-offset", "5"), "--to-offset needs one --queue"),
        (("--to", "x", "--queue", "q", "--columns", "offset,bdy"), "unknown column 'bdy'"),
        (("--to", "x", "--queue", "q", "--from", "yesterday"), "--from: expected earliest, an offset or a time"),
        (("--to", "x", "--queue", "q", "--partition-by", "year"), "--partition-by year"),
        (("--to", "x", "--queue", "q", "--engine", "duckdb"), "--engine duckdb: expected pyarrow or spark"),
        (("--to", "x", "--queue", "q", "--engine", "pyarrow", "--where", "true"), "--where needs --engine spark"),
        (("--to", "x", "--queue", "q", "--engine", "pyarrow", "--master", "local"), "--master needs --engine spark"),
    ],
)
def test_wrong_arguments_are_refused_with_a_message(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, text = call(*arguments)
    assert (code, words in text) == (64, True), text
    assert list(tmp_path.iterdir()) == []


JSON_ERRORS = [
    (("export", "--queue", "tasks"), 64, "--to is needed"),
    (("export", "--queue", "tasks", "--to", "x", "--deep"), 64, "--deep : "),
    (("export", "--queue", "none", "--to", "x"), 69, "no durable queue 'none'"),
    (("import", "nowhere", "--to-queue", "q", "--to", "amqp://127.0.0.1:1"), 65, "nowhere does not exist"),
    (("import", "empty.csv", "--to-queue", "q", "--to", "amqp://guest:secret@127.0.0.1:1"), 69, "127.0.0.1:1"),
    (("sql", "SELECT nosuch FROM tasks"), 65, 'column "nosuch" not found'),
    (("sql", "SELECT 1", "--payload", "xml"), 64, "--payload xml: expected json, avro, protobuf"),
    (("compact_export", "--to", "x"), 64, "x.checkpoint is not the checkpoint of an export"),
]


@pytest.mark.parametrize(("arguments", "code", "words"), JSON_ERRORS)
@pytest.mark.parametrize("formatter", ["json", "json_stream"])
def test_errors_are_json_with_the_json_formatter(written, tmp_path, monkeypatch, arguments, code, words, formatter):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.csv").write_text("value\n1\n")
    for options in ((), ("--formatter", formatter)):
        out, err = io.StringIO(), io.StringIO()
        where = ("-n", "n@h", "--data-dir", written.data_dir)
        assert run([*where, *options, *arguments], out, err, io.StringIO(), {}) == code
        assert out.getvalue() == ""
    found = json.loads(err.getvalue())
    assert (found.pop("message").find(words) >= 0, found) == (True, {"result": "error", "node": "n@h"}), err.getvalue()
    assert "secret" not in err.getvalue()


def test_signal_during_the_start_ends_the_export_with_0(written, tmp_path, monkeypatch):
    """Imports take longer than a small export."""
    read = command._options

    def interrupted(context):
        os.kill(os.getpid(), signal.SIGINT)
        return read(context)

    monkeypatch.setattr(command, "_options", interrupted)
    code, text = call("--to", str(tmp_path / "lake"), "--queue", "tasks", "--data-dir", written.data_dir)
    assert (code, "Exported 0 records" in text) == (0, True), text


def test_failed_batch_leaves_no_files_on_a_full_disk(written, tmp_path, monkeypatch):
    def write_files(self, rows, layout):
        Path(layout.directory).mkdir(parents=True)
        (Path(layout.directory) / "part").write_bytes(b"rows")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(PyarrowEngine, "write_files", write_files)
    lake = tmp_path / "lake"
    code, text = call("--to", str(lake), "--queue", "tasks", "--data-dir", written.data_dir)
    assert (code, f"{lake}.checkpoint or {lake} is full" in text) == (69, True), text
    assert not (tmp_path / "lake.checkpoint" / "staging").exists()


def test_full_disk_shows_no_password_of_a_database(tmp_path, monkeypatch):
    monkeypatch.setattr(ExportJob, "run", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    code, text = call("--to", "postgresql://ann:secret@db/lake", "--queue", "q", "--checkpoint", str(tmp_path / "c"))
    assert (code, "/c or postgresql://db/lake is full" in text, "secret" in text) == (69, True, False), text


class ClosedPipe(io.StringIO):
    """Standard error whose reader has ended."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


def test_end_of_the_reader_of_standard_error_ends_no_export(written, tmp_path):
    start = ("--data-dir", written.data_dir, "export", "--queue", "tasks", "--to", str(tmp_path / "lake"))
    out = io.StringIO()
    assert run([*start, "--batch", "1500"], out, ClosedPipe(), io.StringIO(), {}) == 0
    assert out.getvalue().startswith("Exported 4,000 records, ")
    assert run([*start, "--format", "json"], out, ClosedPipe(), io.StringIO(), {}) == 64
    assert run([*start, "--formatter", "json", "--batch", "x"], out, ClosedPipe(), io.StringIO(), {}) == 64


def test_missing_queue_or_data_directory_is_an_error(written, tmp_path):
    where = ("--data-dir", written.data_dir, "--to", str(tmp_path / "lake"))
    code, text = call(*where, "--queue", "none")
    assert (code, "no durable queue 'none' with messages in vhost '/'" in text) == (69, True)
    code, text = call("--data-dir", str(tmp_path / "nowhere"), "--to", str(tmp_path / "l2"), "--queue", "q")
    assert (code, "does not exist" in text) == (69, True)


def test_impossible_targets_are_errors_that_name_the_target(written, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "locked").mkdir(mode=0o500)
    targets = [
        (str(tmp_path / "file"), "file: File exists"),
        (str(tmp_path / "file" / "below"), "below: Not a directory"),
        ("nosuchdatabase://host/lake", "--to: Can't load plugin"),
        ("oracle+oracledb://u:secret@host/lake", "the database's driver is not installed"),
        (f"sqlite:///{tmp_path}/no/such/lake.db", "unable to open database file"),
    ]
    if os.geteuid():
        targets.append((str(tmp_path / "locked"), "locked: it is not writable"))
    for number, (to, words) in enumerate(targets):
        check = ("--checkpoint", str(tmp_path / f"check{number}"))
        code, text = call("--data-dir", written.data_dir, "--to", to, "--queue", "tasks", *check)
        assert (code, words in text) == (69, True), text
        assert "secret" not in text and "Traceback" not in text
    assert call("--data-dir", written.data_dir, "--to", str(tmp_path / "lake"), "--queue", "tasks")[0] == 0


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_terminal_has_a_progress_bar_and_json_is_one_line(written, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "90")
    out, err = io.StringIO(), Terminal()
    where = ("--data-dir", written.data_dir, "--to", str(tmp_path / "lake"), "--queue", "tasks")
    code = run(["--formatter", "json", "export", *where, "--batch", "1000"], out, err, io.StringIO(), {})
    summary = json.loads(out.getvalue())
    assert (code, summary["records"], summary["batches"], summary["waiting"]) == (0, 4000, 5, 0)
    lines = err.getvalue().split("\r\x1b[K")
    assert lines[0] == "" and lines[1].startswith("[..........]   0%  0 records, 0/s, 5,000 wait")
    assert all(len(line) < 90 for line in lines)
    assert lines[-1].startswith("[##########] 100%  4,000 records, ") and lines[-1].endswith(" left\n")


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("obstore", ("--to", "s3://bucket/lake")),
        ("obstore", ("--to", "gs://bucket/lake", "--format", "delta")),
        ("pyiceberg", ("--to", "iceberg://shop/a.b")),
        ("pyiceberg", ("--to", "lake", "--format", "iceberg")),
        ("deltalake", ("--to", "lake", "--format", "delta")),
    ],
)
def test_missing_package_of_a_target_is_named(module, arguments, monkeypatch, tmp_path):
    """The other packages count as installed even if they are not."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == module else ModuleSpec(name, None))
    code, text = call(*arguments, "--queue", "q", "--checkpoint", "c", "--data-dir", str(tmp_path))
    assert (code, f"the export needs the package {module}: " in text, f"-m pip install '{module}>=" in text) == (
        69, True, True,
    ), text  # fmt: skip
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("module", ["pyspark", "pyarrow"])
def test_missing_package_is_named(module, monkeypatch, tmp_path):
    """The other package counts as installed even if it is not."""
    for user in (session, command):
        monkeypatch.setattr(user, "find_spec", lambda name: None if name == module else ModuleSpec(name, None))
    where = ("--to", str(tmp_path / "lake"), "--queue", "q", "--data-dir", str(tmp_path))
    code, text = call(*where, "--engine", "spark")
    start = f"Error:\nthe export needs the package {module}: {sys.executable}"
    assert (code, text.partition(" -m ")[0]) == (69, start)
    code, text = call(*where)
    if module == "pyarrow":
        wanted = f"{start} -m pip install 'pyarrow>=18' (in amqpd's sources: make export)\n"
        assert (code, text) == (69, wanted)
    else:
        assert "no data directory of amqpd" in text


def test_spark_is_not_imported_for_other_commands():
    program = (
        "import sys, amqpd.cli.main; "
        "assert not {'pyspark', 'pyarrow', 'sqlalchemy', 'amqpd.storage.export.job'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_export_to_files_imports_neither_spark_nor_sqlalchemy(written, tmp_path):
    """These imports cost half a second and more, which a small export would notice."""
    program = (
        "import sys; from amqpd.cli.main import main; sys.argv[0] = 'amqpctl'; code = main(); "
        "assert not {'pyspark', 'py4j', 'sqlalchemy', 'pandas'} & set(sys.modules); sys.exit(code)"
    )
    command = [sys.executable, "-P", "-c", program, "--data-dir", written.data_dir, "export", "--queue", "tasks"]
    done = subprocess.run([*command, "--to", str(tmp_path / "lake")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.startswith("Exported 4,000 records, 800.0 KB, in 1 batch")) == (0, True), done


@pytest.mark.slow
def test_progress_bar_keeps_rejected_messages(written, tmp_path, monkeypatch):
    """Its count of records does not fall after a batch."""
    monkeypatch.setenv("COLUMNS", "90")
    monkeypatch.setattr(StatusLine, "INTERVAL_S", 0.0)
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object", "properties": {"price": {"type": "integer"}}}')
    out, err = io.StringIO(), Terminal()
    where = ("--data-dir", written.data_dir, "--to", str(tmp_path / "lake"), "--queue", "tasks", "--batch", "1000")
    given = ("--payload", "json", "--payload-schema", str(schema))
    assert run(["--formatter", "json", "export", *where, *given], out, err, io.StringIO(), {}) == 0
    assert json.loads(out.getvalue())["rejected"] == 4000
    lines = [line for line in err.getvalue().split("\r\x1b[K") if line.startswith("[")]
    counts = [int(re.search(r"([\d,]+) records", line)[1].replace(",", "")) for line in lines]
    assert counts == sorted(counts) and counts[-1] == 4000


def test_sizes_are_formatted_and_passwords_hidden():
    sizes = [command.formatted_size(each) for each in (0, 999, 1000, 15_500_000, 2 * 10**12, 5 * 10**15)]
    assert sizes == ["0 bytes", "999 bytes", "1.0 KB", "15.5 MB", "2.0 TB", "5000.0 TB"]
    assert without_password("postgresql://u:secret@h/db") == "postgresql://h/db"
    assert without_password("./lake") == "./lake"
    kept = ExportOptions({}, "/", "q", "postgresql://u:secret@h/db", "check").identity()
    assert "secret" not in str(kept)


@pytest.mark.parametrize("to", ["./a#b", "./a?b", "./a%41b"])
@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_directory_that_tables_do_not_find_again_is_refused(to, kind):
    """pyiceberg and deltalake take such paths for URLs with a fragment, a query or an escape."""
    with pytest.raises(BadExport, match=f"{re.escape(to[2:])}: the path of a table cannot have #, \\? or %"):
        ExportJob(ExportOptions({}, "/", "q", to, "check", format=kind), PyarrowEngine(), print, lambda: True)


def test_slash_behind_a_store_is_no_other_export():
    with_slash, without = (ExportOptions({}, "/", "q", to, "check").identity() for to in ("s3://b/x/", "s3://b/x"))
    assert with_slash == without


@pytest.fixture
def orders(amqpd_broker, amqpd_vhost):
    """Publish `count` messages to queue `orders` of a vhost of its own."""
    from urllib.parse import quote

    amqpd_broker.api("PUT", f"/api/queues/{quote(amqpd_vhost.name)}/orders", {"durable": True})

    def publish(count):
        publisher = SinkPublisher(SinkTarget.from_url(amqpd_vhost.url))
        for _ in range(count):
            publisher.publish("", "orders", p.encode_properties(p.Properties(delivery_mode=2)), b"order")
        publisher.finish()
        publisher.close()

    return publish


@pytest.mark.slow
def test_follow_exports_a_vhost_over_http_with_new_messages(amqpd_broker, amqpd_vhost, orders, tmp_path):
    orders(100)
    url = amqpd_broker.http_url.replace("://", "://guest:guest@")
    to, check = str(tmp_path / "lake"), str(tmp_path / "check")
    where = ({"url": url}, amqpd_vhost.name, None, to, check)
    wanted = ExportOptions(*where, format="json", follow=True, max_batch_age_s=0.0)
    reports = []

    def say(report):
        reports.append(report.rows)
        if len(reports) == 1:
            threading.Timer(0.5, orders, (50,)).start()

    total = ExportJob(wanted, PyarrowEngine(), say, lambda: sum(reports) >= 150).run()
    assert (total.rows, total.lag) == (150, 0)
    assert len(reports) >= 2
    lines = [line for path in (tmp_path / "lake").glob("vhost-*.json") for line in path.read_text().splitlines()]
    assert len(lines) == 150


def test_follow_continues_after_a_restart_of_the_broker(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(job_module, "POLL_S", 0.02)
    reports, is_stopped = [], threading.Event()
    to, check = str(tmp_path / "lake"), str(tmp_path / "check")

    def publish(broker, count):
        broker.api("PUT", "/api/queues/%2F/orders", {"durable": True})
        publisher = SinkPublisher(SinkTarget.from_url(broker.url))
        for _ in range(count):
            publisher.publish("", "orders", p.encode_properties(p.Properties(delivery_mode=2)), b"order")
        publisher.finish()
        publisher.close()

    def wait_until(condition):
        deadline = time.monotonic() + 60
        while not condition():
            assert not running.done(), running.result()
            assert time.monotonic() < deadline
            time.sleep(0.02)

    with ThreadPoolExecutor(1) as pool:
        try:
            with BrokerProcess(tmp_path / "data") as broker:
                publish(broker, 3)
                url = broker.http_url
                where = ({"url": url.replace("://", "://guest:guest@")}, "/", "orders", to, check)
                wanted = ExportOptions(*where, format="json", follow=True, max_batch_age_s=0.0)
                running = pool.submit(ExportJob(wanted, PyarrowEngine(), reports.append, is_stopped.is_set).run)
                wait_until(lambda: reports)
            wait_until(lambda: "does not answer" in caplog.text)
            with BrokerProcess(tmp_path / "data", settings={"http.port": int(url.rpartition(":")[2])}) as broker:
                publish(broker, 2)
                wait_until(lambda: sum(each.rows for each in reports) == 5)
                caplog.clear()
            wait_until(lambda: "does not answer" in caplog.text)
        finally:
            is_stopped.set()
        total = running.result(60)  # no broker answers
    assert (total.rows, total.lag) == (5, 0)
    lines = [line for path in (tmp_path / "lake").glob("*.json") for line in path.read_text().splitlines()]
    assert len(lines) == 5
