"""`amqpctl import`: an export and its import give the same messages; each once after kills; rejects; options."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from urllib.parse import quote

import pika
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from amqpd.cli import export as command
from amqpd.cli import message_import
from amqpd.cli.main import run
from amqpd.cli.terminal import StatusLine
from amqpd.protocol import properties as p
from amqpd.storage.export import import_publisher
from amqpd.storage.export.file_compaction import FoundFile, merged_name
from amqpd.storage.export.import_files import find_files, read_rows
from amqpd.storage.export.import_job import NUMBERS, SEQUENCE_BITS, BadImport, ImportLedger, NumberedProperties
from amqpd.storage.export.import_publisher import ImportPublisher, OutgoingMessage
from amqpd.storage.export.publisher import SinkPublisher, SinkTarget
from amqpd.testing import BrokerProcess


def call(*arguments, err=None):
    out, err = io.StringIO(), err or io.StringIO()
    code = run(list(arguments), out, err, io.StringIO(), {})
    return code, out.getvalue(), err.getvalue()


def declare(url, *queues):
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.exchange_declare("events", "topic", durable=True)
    for queue in queues:
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, "events", f"{queue}.#")
    connection.close()


def drain(broker, vhost, queue):
    """Return (exchange, routing key, raw properties, body) of all messages, from the log."""
    import amqpd

    columns = ["exchange", "routing_key", "raw_properties", "value"]
    found = amqpd.read(broker.data_dir, queue, vhost=vhost, columns=columns).read_all()
    return [tuple(row.values()) for row in found.to_pylist()]


def plain(rows):
    """Return the messages without the numbers of the import."""
    return [(exchange, key, unnumbered(raw), body) for exchange, key, raw, body in rows]


def unnumbered(raw):
    found = p.without_headers(raw, NUMBERS)
    if p.decode_headers(found, 0, len(found)):
        return found
    return p.encode_properties(p.decode_properties(found)._replace(headers=None))


@pytest.fixture
def second_vhost(amqpd_broker):
    vhost = amqpd_broker.add_vhost()
    yield vhost.name, vhost.url
    amqpd_broker.delete_vhost(vhost.name)


HEADERS = {"text": "\u00fc", "n": 2**40, "b": b"\xff", "d": Decimal("1.5"), "t": {"x": [1, "2", None]}, "yes": True}


@pytest.mark.parametrize("kind", ["parquet", "json", "csv"])
def test_export_and_import_give_the_same_messages(amqpd_broker, amqpd_vhost, second_vhost, tmp_path, kind):
    name, url = second_vhost
    for each in (amqpd_vhost.url, url):
        declare(each, "orders")
    publisher = SinkPublisher(SinkTarget.from_url(amqpd_vhost.url))
    bodies = [b"", b'{"a": "b,\\"c\\""}', b"\xff\0", "\u00fc\r\nline\n".encode(), b"x" * 200_000, b' "quoted" ']
    for number in range(300):
        mode = 1 + number % 2
        found = p.Properties(delivery_mode=mode, headers=HEADERS if number % 3 else None, message_id=f"m{number % 7}")
        found = found._replace(timestamp=1767225600, priority=3, content_type="text/plain") if number % 5 else found
        publisher.publish("events", f"orders.{number % 4}", p.encode_properties(found), bodies[number % len(bodies)])
    publisher.finish()
    publisher.close()
    where = ("--data-dir", str(amqpd_broker.data_dir))
    columns = ("--columns", "exchange,routing_key,value,raw_properties", "--format", kind)
    lake = str(tmp_path / "lake")
    assert call(*where, "-p", amqpd_vhost.name, "export", "--queue", "orders", "--to", lake, *columns)[0] == 0
    code, out, err = call("--formatter", "json", "import", lake, "--to", url)
    assert (code, err, json.loads(out)["messages"]) == (0, "", 300)
    wanted = drain(amqpd_broker, amqpd_vhost.name, "orders")
    got = drain(amqpd_broker, name, "orders")
    assert len(wanted) == 300 and plain(got) == wanted
    assert [p.decode_headers(raw, 0, len(raw))["x-sequence"] for _, _, raw, _ in got] == list(range(300))
    # Again: nothing is left to do. Without numbers the properties are the same to the last byte.
    code, out, _ = call("--formatter", "json", "import", lake, "--to", url)
    assert (code, json.loads(out)["messages"]) == (0, 0)
    again = ("--at-least-once", "--checkpoint", str(tmp_path / "second"))
    assert call(*where, "-p", name, "import", lake, *again)[0] == 0  # the admin API says where AMQP is
    assert drain(amqpd_broker, name, "orders")[300:] == wanted


def test_decoded_columns_make_messages_too(amqpd_broker, amqpd_vhost, tmp_path):
    declare(amqpd_vhost.url, "orders")
    when = datetime(2026, 1, 1, tzinfo=UTC)
    table = pa.table(
        {
            "value": ["one", "two"],
            "properties": [{"app_id": "a", "timestamp": when}, None],
            "headers": pa.array([[("h", "1")], None], pa.map_(pa.string(), pa.string())),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    arguments = ("import", str(tmp_path / "a.parquet"), "--to", amqpd_vhost.url)
    code, _, err = call(*arguments)
    assert (code, "has neither a column exchange nor routing_key" in err) == (64, True)
    assert call(*arguments, "--to-queue", "orders")[0] == 64  # the checkpoint knows another target
    assert call(*arguments, "--to-queue", "orders", "--checkpoint", str(tmp_path / "c"))[0] == 0
    rows = plain(drain(amqpd_broker, amqpd_vhost.name, "orders"))
    assert [(exchange, key, body) for exchange, key, _, body in rows] == [
        ("", "orders", b"one"),
        ("", "orders", b"two"),
    ]
    first, second = (p.decode_properties(raw) for _, _, raw, _ in rows)
    assert first == p.Properties(delivery_mode=2, app_id="a", timestamp=1767225600, headers={"h": "1"})
    assert second == p.Properties(delivery_mode=2)


def test_new_files_are_added_and_changed_ones_refused(amqpd_broker, amqpd_vhost, tmp_path):
    declare(amqpd_vhost.url, "orders")
    lake = tmp_path / "lake"
    lake.mkdir()

    def add(name, *values):
        (lake / name).write_text("".join(json.dumps({"value": value}) + "\n" for value in values))

    def run_import():
        return call("import", str(lake), "--to", amqpd_vhost.url, "--to-queue", "orders")

    add("b.json", "1", "2")
    assert run_import()[0] == 0
    add("a.json", "3")
    assert run_import()[1].startswith("Imported 1 messages, 1 files in ")
    assert [body for _, _, _, body in drain(amqpd_broker, amqpd_vhost.name, "orders")] == [b"1", b"2", b"3"]
    (lake / "c.json").write_text('{"value": "4"}\nnot json\n')
    code, _, err = run_import()
    assert (code, "c.json, line 2: " in err) == (65, True)
    add("c.json", "4", "5", "6")
    code, _, err = run_import()
    assert (code, "an import continues only with the same files" in err) == (64, True)


def test_messages_without_a_queue_are_counted_and_can_be_imported_later(amqpd_broker, amqpd_vhost, tmp_path):
    declare(amqpd_vhost.url, "orders")
    raw = p.encode_properties(p.Properties(delivery_mode=2, headers=HEADERS))
    keys = ["orders.a", "parcels.b", "orders.c", "parcels.d"]
    values = [b"1", b"\xff", b"3", b""]
    table = pa.table({"value": values, "routing_key": keys, "raw_properties": [raw] * 4})
    pq.write_table(table, tmp_path / "a.parquet")
    arguments = ("import", str(tmp_path / "a.parquet"), "--to", amqpd_vhost.url, "--to-exchange", "events")
    code, out, err = call("--formatter", "json", *arguments)
    rejects = tmp_path / "a.parquet.imported" / "rejected.json"
    summary = json.loads(out)
    assert (code, summary["messages"], summary["rejected"], summary["rejected_file"]) == (65, 4, 2, str(rejects))
    assert f"2 messages reached no queue. They are in {rejects}: bind queues" in err
    assert "2 messages reached no queue (2 in earlier runs)" in call(*arguments)[2]
    declare(amqpd_vhost.url, "parcels")
    later = ("import", str(rejects), "--to", amqpd_vhost.url, "--checkpoint", str(tmp_path / "later"))
    assert call(*later)[0] == 0
    found = plain(drain(amqpd_broker, amqpd_vhost.name, "parcels"))
    assert found == [("events", "parcels.b", raw, b"\xff"), ("events", "parcels.d", raw, b"")]
    assert len(drain(amqpd_broker, amqpd_vhost.name, "orders")) == 2


def limited(amqpd_broker, amqpd_vhost, queue="full"):
    """Declare a queue that refuses messages after the tenth."""
    path = f"/api/queues/{quote(amqpd_vhost.name, safe='')}/{queue}"
    arguments = {"x-max-length": 10, "x-overflow": "reject-publish"}
    amqpd_broker.api("PUT", path, {"durable": True, "arguments": arguments})


def purge(url, queue="full"):
    connection = pika.BlockingConnection(pika.URLParameters(url))
    count = connection.channel().queue_purge(queue).method.message_count
    connection.close()
    return count


def bodies(amqpd_broker, amqpd_vhost, queue="full"):
    return [int(body) for _, _, _, body in drain(amqpd_broker, amqpd_vhost.name, queue)]


@pytest.mark.parametrize("kind", ["csv", ""])
def test_refused_message_ends_the_run_and_a_rerun_sends_it_again(amqpd_broker, amqpd_vhost, tmp_path, kind):
    limited(amqpd_broker, amqpd_vhost)
    (tmp_path / "a.csv").write_text("value\n" + "".join(f"{number}\n" for number in range(20)))
    command = ("import", str(tmp_path / "a.csv"), "--to", amqpd_vhost.url, "--to-queue", "full")
    command += ("--format", kind) if kind else ()
    code, _, err = call(*command)
    assert (code, "the broker refused messages (basic.nack)" in err, "A rerun continues" in err) == (69, True, True)
    assert call(*command)[0] == 69
    assert bodies(amqpd_broker, amqpd_vhost) == list(range(10))
    assert purge(amqpd_vhost.url) == 10
    code, out, _ = call("--formatter", "json", *command)
    summary = json.loads(out)
    assert (code, summary["messages"], summary["refused"], summary["rejected"]) == (0, 10, 0, 0)
    assert bodies(amqpd_broker, amqpd_vhost) == list(range(10, 20))


def test_message_that_is_refused_before_others_are_accepted_is_not_taken_for_a_copy(
    amqpd_broker, amqpd_vhost, tmp_path
):
    """The queue takes small messages when it refuses a large one."""
    path = f"/api/queues/{quote(amqpd_vhost.name, safe='')}/small"
    arguments = {"x-max-length-bytes": 1000, "x-overflow": "reject-publish"}
    amqpd_broker.api("PUT", path, {"durable": True, "arguments": arguments})
    texts = ["1" * 600, "2" * 600, "3", "4"]
    (tmp_path / "a.csv").write_text("value\n" + "".join(f"{text}\n" for text in texts))
    command = ("import", str(tmp_path / "a.csv"), "--to", amqpd_vhost.url, "--to-queue", "small")
    assert call(*command)[0] == 69
    found = [body.decode() for _, _, _, body in drain(amqpd_broker, amqpd_vhost.name, "small")]
    purge(amqpd_vhost.url, "small")
    while call(*command)[0] == 69:
        found += [body.decode() for _, _, _, body in drain(amqpd_broker, amqpd_vhost.name, "small")]
        purge(amqpd_vhost.url, "small")
    found += [body.decode() for _, _, _, body in drain(amqpd_broker, amqpd_vhost.name, "small")]
    assert sorted(found) == sorted(texts)


@pytest.mark.parametrize("choice", ["skip", "save"])
def test_import_continues_after_refused_messages(amqpd_broker, amqpd_vhost, tmp_path, choice):
    limited(amqpd_broker, amqpd_vhost)
    declare(amqpd_vhost.url, "open")
    rows = [{"value": str(number), "exchange": "", "routing_key": ("full", "open")[number % 2]} for number in range(40)]
    (tmp_path / "a.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ("import", str(tmp_path / "a.json"), "--to", amqpd_vhost.url, "--on-refused", choice)
    code, out, err = call("--formatter", "json", *command)
    summary = json.loads(out)
    assert (summary["messages"], summary["refused"]) == (40, 10)
    assert bodies(amqpd_broker, amqpd_vhost, "open") == list(range(1, 40, 2))
    assert bodies(amqpd_broker, amqpd_vhost) == list(range(0, 20, 2))
    if choice == "skip":
        assert (code, summary["rejected"]) == (0, 0)
        assert call(*command)[1].startswith("Imported 0 messages")
        return
    assert (code, summary["rejected"]) == (65, 10)
    assert "10 messages reached no queue, or were refused. They are in " in err
    purge(amqpd_vhost.url)
    assert (
        call("import", summary["rejected_file"], "--to", amqpd_vhost.url, "--checkpoint", str(tmp_path / "c"))[0] == 0
    )
    assert bodies(amqpd_broker, amqpd_vhost) == list(range(20, 40, 2))


def test_import_continues_after_messages_that_close_the_channel(amqpd_broker, amqpd_vhost, tmp_path):
    declare(amqpd_vhost.url, "open")
    rows = [
        {"value": str(number), "exchange": "none" if number % 10 == 3 else "", "routing_key": "open"}
        for number in range(40)
    ]
    (tmp_path / "a.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ("import", str(tmp_path / "a.json"), "--to", amqpd_vhost.url)
    code, _, err = call(*command)
    assert code == 69 and "404 NOT_FOUND - no exchange 'none'" in err
    code, out, _ = call(*command, "--on-refused", "save", "--formatter", "json")
    summary = json.loads(out)
    assert (code, summary["refused"], summary["rejected"], summary["messages"]) == (65, 4, 4, 40)
    reasons = [json.loads(line) for line in Path(summary["rejected_file"]).read_text().splitlines()]
    assert [each["value"] for each in reasons] == ["3", "13", "23", "33"]
    assert reasons[0]["reason"].startswith("404 NOT_FOUND - no exchange 'none'")
    assert bodies(amqpd_broker, amqpd_vhost, "open") == [number for number in range(40) if number % 10 != 3]


def test_returned_message_is_rejected_once_if_the_channel_closes_before_its_confirm(
    amqpd_broker, amqpd_vhost, tmp_path
):
    declare(amqpd_vhost.url, "open")
    routes = [("", "open"), ("", "nowhere"), ("", "nowhere"), ("none", "open")]
    rows = [{"value": str(number), "exchange": name, "routing_key": key} for number, (name, key) in enumerate(routes)]
    (tmp_path / "a.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ("import", str(tmp_path / "a.json"), "--to", amqpd_vhost.url, "--on-refused", "save")
    code, out, _ = call(*command, "--formatter", "json")
    summary = json.loads(out)
    assert (code, summary["refused"], summary["rejected"]) == (65, 1, 3)
    found = [json.loads(line) for line in Path(summary["rejected_file"]).read_text().splitlines()]
    assert [each["value"] for each in found] == ["1", "2", "3"]
    assert bodies(amqpd_broker, amqpd_vhost, "open") == [0]


def test_memory_of_unconfirmed_messages_is_bounded(amqpd_broker, amqpd_vhost, tmp_path, monkeypatch):
    declare(amqpd_vhost.url, "open")
    monkeypatch.setattr(import_publisher, "UNCONFIRMED_BYTES", 1000)
    sizes = []
    real = ImportPublisher.publish

    def publish(self, message):
        real(self, message)
        sizes.append(sum(len(each.body) for each in self._unconfirmed.values()))

    monkeypatch.setattr(ImportPublisher, "publish", publish)
    (tmp_path / "a.csv").write_text("value\n" + f"{'7' * 300}\n" * 50)
    assert call("import", str(tmp_path / "a.csv"), "--to", amqpd_vhost.url, "--to-queue", "open")[0] == 0
    assert len(sizes) == 50 and max(sizes) < 1000


def test_checkpoints_inside_the_directory_are_not_imported(amqpd_broker, amqpd_vhost, tmp_path):
    declare(amqpd_vhost.url, "open")
    lake = tmp_path / "lake"
    lake.mkdir()
    (lake / "state.json").write_text('{"value": "1", "routing_key": "open", "exchange": ""}\n')
    checkpoint = lake / "progress" / "orders"
    command = ("import", str(lake), "--to", amqpd_vhost.url, "--checkpoint", str(checkpoint))
    for _ in range(2):
        assert call(*command)[0] == 0
    (checkpoint / "staging").mkdir()  # of an export
    (checkpoint / "staging" / "a.json").write_text('{"value": "2", "routing_key": "open", "exchange": ""}\n')
    assert call(*command)[0] == 0
    assert bodies(amqpd_broker, amqpd_vhost, "open") == [1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "not enough arguments"),
        (("a", "--format", "xml"), "--format xml: expected parquet, json or csv"),
        (("a", "--to", "http://h"), "--to : expected amqp://"),
        (("a", "--uri", "https://u:p@h:1"), "--uri : import does not use TLS from --uri: give --to amqps://"),
        (("a", "--on-refused", "retry"), "--on-refused retry: expected stop, skip or save"),
        (("a", "s3://lake/orders"), "s3://lake/orders: expected a local file or directory"),
        (("a", "--to", "amqp://h/v", "-p", "w"), "--vhost : the vhost is in --to"),
        (("a", "--to", "amqp://h", "--to-queue", "q", "--routing-key", "k"), "--to-queue : excludes"),
    ],
)
def test_wrong_arguments_are_refused_with_a_message(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = call("import", *arguments)
    assert (code, words in err) == (64, True), err
    assert list(tmp_path.iterdir()) == []


def test_missing_broker_files_and_package_have_their_codes(tmp_path, monkeypatch):
    (tmp_path / "a.csv").write_text("value\n1\n")
    where = ("--to", "amqp://127.0.0.1:1", "--to-queue", "q")
    assert call("import", str(tmp_path / "a.csv"), *where)[0] == 69
    code, _, err = call("import", str(tmp_path / "none"), *where)
    assert (code, "none does not exist" in err) == (65, True)
    code, _, err = call("--data-dir", str(tmp_path), "import", str(tmp_path / "a.csv"))
    assert code == 69, err
    monkeypatch.setattr(message_import, "find_spec", lambda name: None)
    code, _, err = call("import", str(tmp_path / "a.csv"), *where)
    wanted = f"the import needs the package pyarrow: {sys.executable} -m pip install 'pyarrow>=18' (in amqpd's"
    assert (code, wanted in err) == (69, True)


def test_numbers_replace_those_of_the_message_and_keep_other_headers():
    raw = p.encode_properties(p.Properties(app_id="a", headers={**HEADERS, "x-producer-id": 7, "x-sequence": 3}))
    numbered = NumberedProperties(2**63 - 1)
    for number, epoch in ((5, 0), ((1 << SEQUENCE_BITS) - 1, 0), ((1 << SEQUENCE_BITS) + 9, 1)):
        for before in (raw, p.NO_PROPERTIES, p.encode_properties(p.Properties(delivery_mode=2))):
            made = numbered.of(before, number)
            p.scan_properties(made, 0, len(made))
            headers = p.decode_headers(made, 0, len(made))
            sequence = number & (1 << SEQUENCE_BITS) - 1
            assert [headers[name] for name in NUMBERS] == [2**63 - 1, epoch, sequence]
            kept = p.decode_headers(before, 0, len(before))
            assert {name: value for name, value in headers.items() if name not in NUMBERS} == {
                name: value for name, value in kept.items() if name not in NUMBERS
            }
            assert p.decode_properties(made).app_id == p.decode_properties(before).app_id


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_terminal_has_a_progress_bar(amqpd_broker, amqpd_vhost, tmp_path, monkeypatch):
    declare(amqpd_vhost.url, "orders")
    monkeypatch.setattr(StatusLine, "INTERVAL_S", 0)
    (tmp_path / "a.csv").write_text("value\n" + "1\n" * 3000)
    err = Terminal()
    code, out, text = call("import", str(tmp_path / "a.csv"), "--to", amqpd_vhost.url, "--to-queue", "orders", err=err)
    assert (code, out.startswith("Imported 3,000 messages, 1 files in ")) == (0, True)
    lines = text.split("\r\x1b[K")
    assert len(lines) == 4 and lines[-1].startswith("[##########] 100%  3,000 records, ") and lines[-1].endswith("\n")


# -- kills

COUNT = 60_000
KILLS = 3


@pytest.fixture
def large(tmp_path):
    for number in range(3):
        first = number * COUNT // 3
        values = [b"%d" % each for each in range(first, first + COUNT // 3)]
        pq.write_table(pa.table({"value": values}), tmp_path / f"{number}.parquet", row_group_size=5000)
    return [str(tmp_path / f"{number}.parquet") for number in range(3)]


def start(*arguments):
    program = "import sys; from amqpd.cli.main import main; sys.argv[0] = 'amqpctl'; sys.exit(main())"
    return subprocess.Popen(
        [sys.executable, "-P", "-c", program, "import", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def wait_for(condition):
    until = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


def count(broker, queue):
    return broker.api("GET", f"/api/queues/%2F/{queue}")["messages"]


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["import", "broker"])
def test_each_message_arrives_once_after_kills(tmp_path, large, victim):
    """Kill the import, or the broker, while messages arrive; import again until enough kills hit a running import."""
    data = tmp_path / "broker"
    data.mkdir()
    kills = number = 0
    with BrokerProcess(data) as broker:
        while kills < KILLS:
            number += 1
            queue, checkpoint = f"orders{number}", tmp_path / f"checkpoint{number}"
            broker.api("PUT", f"/api/queues/%2F/{queue}", {"durable": True})
            arguments = (*large, "--checkpoint", str(checkpoint), "--to-queue", queue, "--to", broker.url)
            while hits_running_import(broker, queue, arguments, victim, last=kills >= KILLS):
                kills += 1
            state = json.loads((checkpoint / "state.json").read_bytes())
            assert (state["messages"], state["rejected"]) == (COUNT, 0)
            found = [int(body) for _, _, _, body in drain(broker, "/", queue)]
            assert found == list(range(COUNT))


def hits_running_import(broker, queue, arguments, victim, *, last):
    """Run an import. Return True if it was killed, or its broker; False if it came to its end."""
    before = count(broker, queue)
    with start(*arguments) as running:
        if not last:
            wait_for(lambda: running.poll() is not None or count(broker, queue) > before + 2000)
            if running.poll() is None:
                if victim == "import":
                    running.send_signal(signal.SIGKILL)
                else:
                    broker.kill()
                    broker.start()
                running.communicate(timeout=600)
                return running.returncode != 0
        _, err = running.communicate(timeout=600)
        assert running.returncode == 0, err
        return False


def test_run_that_was_stopped_says_what_waits(amqpd_vhost, tmp_path, monkeypatch):
    class Stopped(command.StopRequest):
        def __call__(self):
            return True

    monkeypatch.setattr(message_import, "StopRequest", Stopped)
    declare(amqpd_vhost.url, "orders")
    (tmp_path / "lake").mkdir()
    for name in ("a.json", "b.json"):
        (tmp_path / "lake" / name).write_text('{"value": "1"}\n')
    arguments = ("import", str(tmp_path / "lake"), "--to", amqpd_vhost.url, "--to-queue", "orders", "--checkpoint")
    code, out, _ = call(*arguments, str(tmp_path / "c"))
    assert code == 0 and out.startswith("Imported 0 messages, 0 files in ") and out.endswith("; 2 files wait\n"), out
    assert json.loads(call("--formatter", "json", *arguments, str(tmp_path / "d"))[1])["waiting"] == 2
    monkeypatch.undo()
    assert "wait" not in call(*arguments, str(tmp_path / "c"))[1]


def test_imported_file_that_has_changed_is_refused(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"value": "1"}\n')
    ledger = ImportLedger(tmp_path / "checkpoint", {})
    ledger.add_files([path])
    ledger.state.file = 1
    ledger.add_files([path])
    path.write_text('{"value": "1"}\n{"value": "2"}\n')
    with pytest.raises(BadImport, match="a.json has 30 bytes now, and had 15 when it was imported: use another --ch"):
        ledger.add_files([path])
    ledger.close()


def test_files_that_a_compaction_has_merged_are_not_imported_again(tmp_path):
    names = [f"orders-{number:020d}-{number + 5:020d}-0123abcd" for number in (0, 5, 10)]
    for below in ("lake", "other"):
        (tmp_path / below).mkdir()
        for name in names[:2]:
            (tmp_path / below / f"{name}-00000.parquet").write_text(name)
    ledger = ImportLedger(tmp_path / "checkpoint", {})
    ledger.add_files(find_files(tmp_path / "lake", ""))
    ledger.state.file = 2
    for path in find_files(tmp_path / "lake", ""):
        path.unlink()
    merged = merged_name([FoundFile(f"{name}-00000.parquet", 1) for name in names[:2]])
    (tmp_path / "lake" / merged).write_text("both")
    with pytest.raises(BadImport, match="compact_export has merged .*00000.parquet, which is imported, into .*merged-"):
        ledger.add_files(find_files(tmp_path / "lake", ""))
    new = tmp_path / "lake" / f"{names[2]}-00000.parquet"
    new.write_text("new")
    (tmp_path / "other" / merged).write_text("both")
    ledger.add_files([new, tmp_path / "other" / merged])
    assert len(ledger.state.files) == 4
    ledger.close()


def test_rejected_messages_that_were_not_saved_leave_no_gap(tmp_path):
    ledger = ImportLedger(tmp_path, {})
    ledger.rejects.write(b"saved\n")
    ledger.save()
    ledger.rejects.write(b"not saved\n")
    ledger.close()
    for _ in range(2):  # without a further rejected message
        ledger = ImportLedger(tmp_path, {})
        ledger.save()
        ledger.close()
    assert (tmp_path / "rejected.json").read_bytes() == b"saved\n"


def test_rejected_file_that_a_user_has_moved_begins_again(tmp_path):
    """Its messages are imported from elsewhere, then the import continues with new files."""
    message = OutgoingMessage("", "q", b"\x10\x00\x02", b"body")
    for _ in range(2):
        ledger = ImportLedger(tmp_path, {})
        ledger.reject(message, "312 NO_ROUTE")
        ledger.save()
        ledger.close()
        (found,) = read_rows(tmp_path / "rejected.json", "", 0)
        assert found.columns["value"] == ["body"]
        (tmp_path / "rejected.json").rename(tmp_path / "moved.json")
