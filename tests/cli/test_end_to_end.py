"""amqpctl against a real broker: what one command does, another one sees."""

from __future__ import annotations

import io
import json
import os
import re
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from fake_broker import Ctl, Result
from pika.adapters.blocking_connection import BlockingChannel

from amqpd import __version__
from amqpd.cli.main import run
from amqpd.testing import BrokerProcess

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
"""For a process that finds the same amqpd as this one."""
NASTY = 'nasty/ä "q"\t%2F?'


def reachable(broker: BrokerProcess) -> None:
    """Waits for the admin API, which comes up a moment after the ready line."""
    eventually((broker.data_dir / "amqpctl.sock").exists)


@pytest.fixture(scope="module")
def real() -> Iterator[BrokerProcess]:
    broker = BrokerProcess()
    with broker:
        reachable(broker)
        yield broker
    broker.close()


@pytest.fixture(scope="module")
def ctl(real: BrokerProcess) -> Ctl:
    def call(*arguments: str, stdin: str = "", environment: dict[str, str] | None = None) -> Result:
        out, err = io.StringIO(), io.StringIO()
        known = {"AMQPD_DATA_DIR": str(real.data_dir)} if environment is None else environment
        code = run(arguments, out, err, io.StringIO(stdin), known)
        return Result(code, out.getvalue(), err.getvalue())

    return call


@pytest.fixture
def connect(real: BrokerProcess) -> Iterator[Callable[..., pika.BlockingConnection]]:
    """Opens connections as guest; closes what a test leaves open."""
    made: list[pika.BlockingConnection] = []

    def open_one(name: str = "test", vhost: str = "/") -> pika.BlockingConnection:
        parameters = pika.ConnectionParameters(
            "127.0.0.1", real.amqp_port, vhost, client_properties={"connection_name": name}
        )
        made.append(pika.BlockingConnection(parameters))
        return made[-1]

    yield open_one
    for one in made:
        if one.is_open:
            one.close()


Connect = Callable[..., pika.BlockingConnection]


def rows(ctl: Ctl, *arguments: str) -> list[dict[str, Any]]:
    result = ctl(*arguments, "--formatter", "json")
    assert result.code == 0, result.err
    found: list[dict[str, Any]] = json.loads(result.out)
    return found


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def filled(channel: BlockingChannel, name: str, count: int) -> None:
    channel.queue_declare(name, durable=True, arguments={"x-max-length": 1000})
    channel.confirm_delivery()
    for _ in range(count):
        channel.basic_publish("", name, b"hello")


def test_the_broker_is_there(real: BrokerProcess, ctl: Ctl) -> None:
    assert ctl("ping").code == 0
    lines = ctl("status").out.splitlines()
    assert f"OS PID: {real.pid}" in lines
    assert f"Node data directory: {real.data_dir}" in lines
    assert any(f"port: {real.amqp_port}, protocol: amqp, purpose: AMQP 0-9-1" in line for line in lines)
    found = json.loads(ctl("status", "--formatter", "json").out)
    assert (found["pid"], found["version"], found["app_running"]) == (real.pid, __version__, True)


def test_vhosts(ctl: Ctl) -> None:
    assert ctl("add_vhost", "shop", "--description", "web shop", "--tags", "web,eu").code == 0
    assert ctl("add_vhost", "shop").code == 0
    assert "shop" in ctl("list_vhosts", "-s").out.splitlines()
    shown = rows(ctl, "list_vhosts", "name", "description", "tags")
    assert {"name": "shop", "description": "web shop", "tags": ["web", "eu"]} in shown
    assert ctl("delete_vhost", "shop").code == 0
    assert ctl("delete_vhost", "shop").code == 65
    assert "shop" not in ctl("list_vhosts", "-s").out.splitlines()


def test_users(real: BrokerProcess, ctl: Ctl) -> None:
    assert ctl("add_user", "alice", stdin="s3cret\n").code == 0
    assert ctl("add_user", "alice", "again").code == 70
    assert ctl("authenticate_user", "alice", "s3cret").code == 0
    assert ctl("authenticate_user", "alice", "again").code == 65
    assert ctl("authenticate_user", "nobody", "x").code == 65
    assert ctl("set_user_tags", "alice", "monitoring").code == 0
    assert ctl("change_password", "alice", "n3w").code == 0
    assert ctl("authenticate_user", "alice", "n3w").code == 0
    assert "alice\t[monitoring]" in ctl("list_users", "-q").out.splitlines()
    uri = f"http://alice:n3w@127.0.0.1:{real.http_port}"
    assert ctl("list_connections", "--uri", uri).code == 0
    refused = ctl("add_vhost", "x", "--uri", uri)
    assert (refused.code, "n3w" in refused.err) == (77, False)
    assert ctl("list_connections", "--uri", uri.replace("n3w", "old")).code == 77
    assert ctl("clear_password", "alice").code == 0
    assert ctl("authenticate_user", "alice", "n3w").code == 65
    assert ctl("delete_user", "alice").code == 0
    for command in (["delete_user"], ["change_password"], ["set_user_tags"]):
        assert ctl(*command, "alice", *["x"][: command != ["delete_user"]]).code == 67
    assert ctl("clear_password", "alice").code == 69


def test_permissions(ctl: Ctl) -> None:
    assert ctl("add_user", "bob", "x").code == 0
    assert ctl("set_permissions", "bob", "^a", "", ".*").code == 0
    assert "bob\t^a\t\t.*" in ctl("list_permissions", "-q").out.splitlines()
    assert ctl("list_user_permissions", "bob", "-s").out == "/\t^a\t\t.*\n"
    assert ctl("set_topic_permissions", "-p", "/", "bob", "amq.topic", "^eu", ".*").code == 0
    assert "bob\tamq.topic\t^eu\t.*" in ctl("list_topic_permissions", "-s").out.splitlines()
    assert ctl("clear_topic_permissions", "bob", "other").code == 0
    assert ctl("clear_topic_permissions", "bob").code == 0
    assert ctl("clear_topic_permissions", "bob").code == 0
    assert "bob" not in ctl("list_topic_permissions").out
    assert ctl("clear_permissions", "bob").code == 0
    assert ctl("clear_permissions", "bob").code == 0
    assert ctl("list_user_permissions", "bob", "-s").out == ""
    assert ctl("set_permissions", "bob", "(", "", "").code == 69
    assert ctl("set_permissions", "-p", "nope", "bob", "", "", "").code == 69
    assert ctl("clear_permissions", "-p", "nope", "bob").code == 69
    assert ctl("list_permissions", "-p", "nope").code == 65
    assert ctl("delete_user", "bob").code == 0
    assert ctl("set_permissions", "bob", "", "", "").code == 67
    assert ctl("clear_permissions", "bob").code == 67
    assert ctl("list_user_permissions", "bob").code == 69


def test_queues(ctl: Ctl, connect: Connect) -> None:
    channel = connect().channel()
    filled(channel, NASTY, 3)
    found = {row["name"]: row for row in rows(ctl, "list_queues", "name", "messages", "durable", "arguments", "type")}
    assert found[NASTY] == {
        "name": NASTY,
        "messages": 3,
        "durable": True,
        "arguments": {"x-max-length": 1000},
        "type": "classic",
    }
    assert '[{"x-max-length",1000}]' in ctl("list_queues", "arguments").out
    assert ctl("delete_queue", NASTY, "--if-empty").err == "Error:\nQueue is not empty\n"
    assert ctl("purge_queue", NASTY).code == 0
    channel.basic_consume(NASTY, lambda *_: None)
    assert ctl("delete_queue", NASTY, "-u") == (
        64,
        f"Deleting queue '{NASTY}' on vhost '/' if queue is unused ...\n",
        "Error:\nQueue is in use\n",
    )
    deleted = ctl("delete_queue", NASTY, "-q", "--if-empty")
    assert deleted == (0, "Queue was successfully deleted with 0 ready messages\n", "")
    assert ctl("delete_queue", NASTY).code == 64
    assert ctl("purge_queue", NASTY).code == 69
    assert ctl("list_queues", "-p", "nope").code == 0


def test_exchanges_and_bindings(ctl: Ctl, connect: Connect) -> None:
    channel = connect().channel()
    channel.exchange_declare("ex", "headers", arguments={"alternate-exchange": "other"})
    channel.queue_declare("bound", exclusive=True)
    channel.queue_bind("bound", "ex", "rk", arguments={"x-match": "all", "n": 1})
    channel.exchange_bind("ex", "amq.topic", "a.#")
    lines = ctl("list_exchanges", "-q", "name", "type", "durable", "arguments").out.splitlines()
    assert 'ex\theaders\tfalse\t[{"alternate-exchange","other"}]' in lines
    assert "\tdirect\ttrue\t[]" in lines
    bindings = ctl("list_bindings", "-q").out.splitlines()
    assert "\texchange\tbound\tqueue\tbound\t[]" in bindings
    assert "amq.topic\texchange\tex\texchange\ta.#\t[]" in bindings
    assert any(re.fullmatch(r"ex\texchange\tbound\tqueue\trk\t\[.*\{\"n\",1\}.*\]", line) for line in bindings)
    channel.exchange_delete("ex")


def test_connections_channels_consumers(ctl: Ctl, connect: Connect) -> None:
    connection = connect('my"name')
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_qos(prefetch_count=7)
    channel.queue_declare("mine", exclusive=True)
    channel.basic_consume("mine", lambda *_: None, consumer_tag="ctag", exclusive=True, arguments={"x-priority": 3})
    columns = ("pid", "peer_port", "name", "user", "state", "protocol", "client_properties")
    lines = ctl("list_connections", "-s", *columns).out.splitlines()
    mine = next(line.split("\t") for line in lines if '{"connection_name","my\\"name"}' in line)
    assert mine[3:6] == ["guest", "running", "{0,9,1}"]
    shown = rows(ctl, "list_channels", "pid", "connection", "confirm", "consumer_count", "number", "vhost")
    its = [row for row in shown if row["connection"] == mine[0]]
    assert [(row["confirm"], row["consumer_count"], row["number"], row["vhost"]) for row in its] == [(True, 1, 1, "/")]
    consumers = ctl("list_consumers", "-s").out.splitlines()
    assert f'mine\t{its[0]["pid"]}\tctag\ttrue\t7\ttrue\t[{{"x-priority",3}}]' in consumers
    queue = next(
        row for row in rows(ctl, "list_queues", "name", "owner_pid", "exclusive_consumer_pid") if row["name"] == "mine"
    )
    assert (queue["owner_pid"], queue["exclusive_consumer_pid"]) == (mine[0], its[0]["pid"])

    assert ctl("close_connection", mine[0], "Closed via rabbitmqctl").code == 0
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        connection.process_data_events(time_limit=5)
    assert closed.value.reply_code == 320
    assert "Closed via rabbitmqctl" in closed.value.reply_text
    eventually(lambda: mine[0] not in ctl("list_connections", "pid").out)
    again = ctl("close_connection", mine[0], "again")
    assert (again.code, "already closed" in again.err) == (0, True)


def test_all_connections_at_once(ctl: Ctl, connect: Connect) -> None:
    assert ctl("add_vhost", "crowded").code == 0
    assert ctl("set_permissions", "-p", "crowded", "guest", ".*", ".*", ".*").code == 0
    connections = [connect(vhost="crowded") for _ in range(3)]
    witness = connect("witness")
    assert ctl("close_all_connections", "-p", "crowded", "--limit", "1", "bye", "-q").out == "Closed 1 connections\n"
    eventually(lambda: len([row for row in rows(ctl, "list_connections", "vhost") if row["vhost"] == "crowded"]) == 2)
    assert ctl("close_all_connections", "-p", "crowded", "bye", "-q").out == "Closed 2 connections\n"
    for connection in connections:
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
            connection.process_data_events(time_limit=5)
    witness.process_data_events(time_limit=0)
    assert witness.is_open
    assert ctl("delete_vhost", "crowded").code == 0


def test_the_app_stops_and_starts(real: BrokerProcess, ctl: Ctl, connect: Connect) -> None:
    before = connect()
    filled(before.channel(), "kept", 2)
    assert ctl("stop_app").code == 0
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
        before.process_data_events(time_limit=5)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", real.amqp_port), 5)
    assert ctl("ping").code == 0
    assert ctl("stop_app").code == 0
    stopped = ctl("status")
    assert (stopped.code, "amqpctl start_app" in stopped.err) == (64, True)
    for command in ("list_queues", "list_users", "list_connections", "add_vhost late", "delete_queue kept"):
        refused = ctl(*command.split())
        assert (refused.code, "amqpctl start_app" in refused.err) == (64, True), command
    assert ctl("start_app").code == 0
    assert ctl("delete_vhost", "late").code == 65, "a refused command did something"
    assert {"name": "kept", "messages": 2} in rows(ctl, "list_queues")
    connect().channel().queue_delete("kept")


class TestTheProcess:
    """amqpctl as people run it."""

    @staticmethod
    def start(real: BrokerProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-m", "amqpd.cli", *arguments],
            env={**ENVIRONMENT, "AMQPD_DATA_DIR": str(real.data_dir)},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    def test_output_and_exit_code(self, real: BrokerProcess) -> None:
        done = self.start(real, "list_users", "-q")
        assert (done.returncode, done.stderr) == (0, "")
        assert "guest\t[administrator]\n" in done.stdout
        assert self.start(real, "list_queues", "nme").returncode == 64

    def test_it_answers_for_little_cpu(self, real: BrokerProcess) -> None:
        """Three times the 150 ms that an answer may take, which `make bench` measures: nothing heavy is imported."""
        took_s = []
        for _ in range(5):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            assert self.start(real, "list_queues").returncode == 0
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            took_s.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert min(took_s) < 0.45

    def test_a_reader_that_leaves_early(self, real: BrokerProcess) -> None:
        command = f"{sys.executable} -P -m amqpd.cli help | head -1"
        done = subprocess.run(
            ["/bin/sh", "-c", command], env=ENVIRONMENT, capture_output=True, text=True, timeout=30, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_stop(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        reachable(broker)
        out, err = io.StringIO(), io.StringIO()
        code = run(["stop", "-q", "--data-dir", str(tmp_path)], out, err, io.StringIO(), {})
        assert (code, out.getvalue(), err.getvalue()) == (0, "", "")
        eventually(lambda: not broker.running)
        assert run(["ping", "-q", "--data-dir", str(tmp_path)], out, err, io.StringIO(), {}) == 69
