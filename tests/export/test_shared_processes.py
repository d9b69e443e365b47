"""`amqpctl export --share` as processes: killed and stopped at random, and on two machines over the admin API."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
from base64 import b64encode
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pika
import pyarrow.parquet as pq
import pytest

from amqpd.protocol import properties as p
from amqpd.storage.export.publisher import SinkPublisher, SinkTarget
from amqpd.storage.export.shared_place import SharedDirectory
from amqpd.testing import BrokerProcess

PERSISTENT = p.encode_properties(p.Properties(delivery_mode=2))


def environment():
    root = str(Path(sys.modules["amqpd"].__file__).absolute().parent.parent)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}


def start(tmp_path, where, *arguments, prefix=()):
    """Start an export into `lake`, with the checkpoint `check`."""
    command = [
        *prefix, sys.executable, "-P", "-m", "amqpd.cli", *where, "--formatter", "json", "export", "--queue", "tasks",
        "--to", str(tmp_path / "lake"), "--checkpoint", str(tmp_path / "check"), "--share", *arguments,
    ]  # fmt: skip
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment(), **pipes)


def finish(process):
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    return json.loads(out)


def versions(tmp_path):
    """Return the number of the newest version of the state."""
    return max((int(path.stem) for path in (tmp_path / "check" / "shared").glob("*.json")), default=0)


def owns_a_claim(tmp_path, process):
    found = SharedDirectory(tmp_path / "check").read()
    claims = [] if found is None else json.loads(found[0])["claims"]
    return any(claim["owner"].endswith(f"process {process.pid}") for claim in claims)


def exported(tmp_path):
    """Return the offsets of all files, and those of rejected messages."""
    found, rejected = [], []
    for path in (tmp_path / "lake").rglob("*.parquet"):
        found += pq.read_table(path, partitioning=None)["offset"].to_pylist()
    for path in (tmp_path / "lake" / "_rejected").glob("*.jsonl"):
        rejected += [json.loads(line)["offset"] for line in path.read_text().splitlines()]
    return sorted(found), sorted(rejected)


@pytest.mark.slow
def test_kills_and_pauses_at_random_lose_and_repeat_nothing(make_lake, tmp_path):
    """Two processes work while messages arrive. At random moments one is killed, or stopped and continued later. Each
    tenth message does not fit the payload.
    """
    from amqpd.storage.filesystem import FileSystem

    lake = make_lake(256 * 1024, FileSystem(), str(tmp_path / "data"))
    total = 0

    def append(count):
        nonlocal total
        for number in range(total, total + count):
            lake.append(b"no" if number % 10 == 7 else b'{"n": %d}' % number)
        lake.turn()
        total += count

    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object", "properties": {"n": {"type": "integer"}}}')
    where = ("--data-dir", lake.data_dir)
    more = ("--payload", "json", "--payload-schema", str(schema), "--batch", "40", "--take-over-after", "1")
    follow = ("--follow", "--max-batch-age", "0")
    rng = random.Random(int(os.environ.get("TEST_CRASH_SEED", "29")))
    events = Counter()
    append(400)
    running = [start(tmp_path, where, *more, *follow) for _ in range(2)]
    stopped = []
    try:
        while min(events["kill"], events["stop"]) < 11:
            append(200)
            goal = versions(tmp_path) + rng.randint(1, 12)
            until = time.monotonic() + 120
            while versions(tmp_path) < goal and time.monotonic() < until:
                assert any(process.poll() is None for process in running), [each.communicate()[1] for each in running]
                time.sleep(0.002)
            for process in stopped:
                process.send_signal(signal.SIGCONT)
            stopped.clear()
            victim = rng.choice(running)
            if rng.random() < 0.5:
                victim.kill()
                victim.communicate()
                running.remove(victim)
                running.append(start(tmp_path, where, *more, *follow))
                events["kill"] += 1
            else:
                victim.send_signal(signal.SIGSTOP)
                stopped.append(victim)
                events["stop"] += 1
        for process in running:
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGTERM)
        errors = []
        for process in running:
            _, err = process.communicate(timeout=600)
            assert process.returncode in (0, -signal.SIGTERM), err  # it may not have come to its handlers yet
            assert "Traceback" not in err, err
            errors.append(err)
    finally:
        for process in running:
            process.kill()
            process.wait()
    last = finish(start(tmp_path, where, *more))
    print(f"{events}, {versions(tmp_path)} versions, {total} messages; {last}")
    assert last["waiting"] == 0
    wanted = set(range(total))
    found, rejected = exported(tmp_path)
    assert rejected == [number for number in range(total) if number % 10 == 7]
    assert found == sorted(wanted - set(rejected))
    assert [path for path in (tmp_path / "check" / "staging").rglob("*") if path.is_file()] == []


def fill(broker, count):
    connection = pika.BlockingConnection(pika.URLParameters(f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}/"))
    connection.channel().queue_declare("tasks", durable=True, arguments={"x-export": "nightly"})
    connection.close()
    publisher = SinkPublisher(SinkTarget.from_url(f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}/"))
    for number in range(count):
        publisher.publish("", "tasks", PERSISTENT, b"%06d" % number + b"." * 100)
    publisher.finish()
    publisher.close()


def amqpctl(broker, *arguments):
    command = [sys.executable, "-P", "-m", "amqpd.cli", "--data-dir", str(broker.data_dir), *arguments]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, check=True).stdout


@pytest.mark.external
def test_two_machines_share_an_export_over_the_admin_api(tmp_path):
    """Two network namespaces, which reach the broker's admin API. One machine is cut off in the middle of a batch and
    stopped; the other takes its batch over. The hold of the queue ends where all offsets are exported.
    """
    sys.path.append(str(Path(__file__).parents[1] / "cluster"))
    import kafka_hosts

    if reason := kafka_hosts.missing():
        pytest.skip(reason)
    settings: dict[str, object] = {"storage.segment_size_bytes": 1 << 20}
    with ExitStack() as stack:
        network = stack.enter_context(kafka_hosts.Network(2, number=5))
        settings["http.host"] = network.address
        broker = stack.enter_context(BrokerProcess(tmp_path / "data", settings=settings))
        amqpctl(broker, "add_user", "exporter", "secret")
        amqpctl(broker, "set_user_tags", "exporter", "administrator")
        amqpctl(broker, "set_permissions", "exporter", ".*", ".*", ".*")
        fill(broker, 6000)
        where = ("--uri", f"http://exporter:secret@{network.address}:{broker.http_port}")
        given = ("--compress", "--batch", "300", "--name", "nightly", "--take-over-after", "2")
        first, second = [start(tmp_path, where, *given, prefix=host.prefix) for host in network.hosts]
        try:
            while not owns_a_claim(tmp_path, first):  # when it is stopped
                assert first.poll() is None and second.poll() is None
                first.send_signal(signal.SIGCONT)
                time.sleep(0.02)
                first.send_signal(signal.SIGSTOP)
            network.hosts[0].unplug()
            summary = finish(second)
            network.hosts[0].plug()
            first.send_signal(signal.SIGCONT)
            summaries = [finish(first), summary]
        finally:
            for process in (first, second):
                process.kill()
                process.wait()
        request = urllib.request.Request(f"http://{network.address}:{broker.http_port}/api/amqpd/exports/%2F/tasks")
        request.add_header("Authorization", f"Basic {b64encode(b'exporter:secret').decode()}")
        with urllib.request.urlopen(request, timeout=60) as answer:
            exports = json.load(answer)["exports"]
    assert exported(tmp_path) == (list(range(6000)), [])
    assert all(each["waiting"] == 0 for each in summaries) and summary["records"], summaries
    assert [row["offset"] for row in exports] == [6000]
