"""amqpctl against a real broker: one command sees the changes of another."""

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
"""The environment of a process that must import the same amqpd as this one."""
UNUSUAL_NAME = 'nasty/ä "q"\t%2F?'


def wait_for_admin_api(broker: BrokerProcess) -> None:
    """Wait for the admin API, which starts shortly after the ready line."""
    eventually((broker.data_dir / "amqpctl.sock").exists)


@pytest.fixture(scope="module")
def real() -> Iterator[BrokerProcess]:
    broker = BrokerProcess()
    with broker:
        wait_for_admin_api(broker)
        yield broker
    broker.close()


@pytest.fixture(scope="module")
def ctl(real: BrokerProcess) -> Ctl:
    def call(*arguments: str, stdin: str = "", environment: dict[str, str] | None = None) -> Result:
        out, err = io.StringIO(), io.StringIO()
        variables = {"AMQPD_DATA_DIR": str(real.data_dir)} if environment is None else environment
        code = run(arguments, out, err, io.StringIO(stdin), variables)
        return Result(code, out.getvalue(), err.getvalue())

    return call


@pytest.fixture
def connect(real: BrokerProcess) -> Iterator[Callable[..., pika.BlockingConnection]]:
    """Return a function that opens connections as guest. Those left open are closed afterwards."""
    connections: list[pika.BlockingConnection] = []

    def open_connection(name: str = "test", vhost: str = "/") -> pika.BlockingConnection:
        parameters = pika.ConnectionParameters(
            "127.0.0.1", real.amqp_port, vhost, client_properties={"connection_name": name}
        )
        connections.append(pika.BlockingConnection(parameters))
        return connections[-1]

    yield open_connection
    for connection in connections:
        if connection.is_open:
            connection.close()


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


def fill_queue(channel: BlockingChannel, name: str, count: int) -> None:
    channel.queue_declare(name, durable=True, arguments={"x-max-length": 1000})
    channel.confirm_delivery()
    for _ in range(count):
        channel.basic_publish("", name, b"hello")


def test_ping_and_status_of_running_broker(real: BrokerProcess, ctl: Ctl) -> None:
    assert ctl("ping").code == 0
    lines = ctl("status").out.splitlines()
    assert f"OS PID: {real.pid}" in lines
    assert f"Node data directory: {real.data_dir}" in lines
    assert any(f"port: {real.amqp_port}, protocol: amqp, purpose: AMQP 0-9-1" in line for line in lines)
    found = json.loads(ctl("status", "--formatter", "json").out)
    assert (found["pid"], found["version"], found["app_running"]) == (real.pid, __version__, True)


def test_vhost_is_added_listed_and_deleted(ctl: Ctl) -> None:
    assert ctl("add_vhost", "shop", "--description", "web shop", "--tags", "web,eu").code == 0
    assert ctl("add_vhost", "shop").code == 0
    assert "shop" in ctl("list_vhosts", "-s").out.splitlines()
    shown = rows(ctl, "list_vhosts", "name", "description", "tags")
    assert {"name": "shop", "description": "web shop", "tags": ["web", "eu"]} in shown
    assert ctl("delete_vhost", "shop").code == 0
    assert ctl("delete_vhost", "shop").code == 65
    assert "shop" not in ctl("list_vhosts", "-s").out.splitlines()


def test_user_is_added_changed_and_deleted(real: BrokerProcess, ctl: Ctl) -> None:
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


def test_permissions_are_set_listed_and_cleared(ctl: Ctl) -> None:
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


def test_queue_is_listed_purged_and_deleted(ctl: Ctl, connect: Connect) -> None:
    channel = connect().channel()
    fill_queue(channel, UNUSUAL_NAME, 3)
    found = {row["name"]: row for row in rows(ctl, "list_queues", "name", "messages", "durable", "arguments", "type")}
    assert found[UNUSUAL_NAME] == {
        "name": UNUSUAL_NAME,
        "messages": 3,
        "durable": True,
        "arguments": {"x-max-length": 1000},
        "type": "classic",
    }
    assert '[{"x-max-length",1000}]' in ctl("list_queues", "arguments").out
    assert ctl("delete_queue", UNUSUAL_NAME, "--if-empty").err == "Error:\nQueue is not empty\n"
    assert ctl("purge_queue", UNUSUAL_NAME).code == 0
    channel.basic_consume(UNUSUAL_NAME, lambda *_: None)
    assert ctl("delete_queue", UNUSUAL_NAME, "-u") == (
        64,
        f"Deleting queue '{UNUSUAL_NAME}' on vhost '/' if queue is unused ...\n",
        "Error:\nQueue is in use\n",
    )
    deleted = ctl("delete_queue", UNUSUAL_NAME, "-q", "--if-empty")
    assert deleted == (0, "Queue was successfully deleted with 0 ready messages\n", "")
    assert ctl("delete_queue", UNUSUAL_NAME).code == 64
    assert ctl("purge_queue", UNUSUAL_NAME).code == 69
    assert ctl("list_queues", "-p", "nope").code == 0


def test_exchanges_and_bindings_are_listed(ctl: Ctl, connect: Connect) -> None:
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


def test_connections_channels_and_consumers_are_listed_and_closed(ctl: Ctl, connect: Connect) -> None:
    connection = connect('my"name')
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_qos(prefetch_count=7)
    channel.queue_declare("mine", exclusive=True)
    channel.basic_consume("mine", lambda *_: None, consumer_tag="ctag", exclusive=True, arguments={"x-priority": 3})
    columns = ("pid", "peer_port", "name", "user", "state", "protocol", "client_properties")
    lines = ctl("list_connections", "-s", *columns).out.splitlines()
    own_connection = next(line.split("\t") for line in lines if '{"connection_name","my\\"name"}' in line)
    assert own_connection[3:6] == ["guest", "running", "{0,9,1}"]
    shown = rows(ctl, "list_channels", "pid", "connection", "confirm", "consumer_count", "number", "vhost")
    own_channels = [row for row in shown if row["connection"] == own_connection[0]]
    assert [(row["confirm"], row["consumer_count"], row["number"], row["vhost"]) for row in own_channels] == [
        (True, 1, 1, "/")
    ]
    consumers = ctl("list_consumers", "-s").out.splitlines()
    assert f'mine\t{own_channels[0]["pid"]}\tctag\ttrue\t7\ttrue\t[{{"x-priority",3}}]' in consumers
    queue = next(
        row for row in rows(ctl, "list_queues", "name", "owner_pid", "exclusive_consumer_pid") if row["name"] == "mine"
    )
    assert (queue["owner_pid"], queue["exclusive_consumer_pid"]) == (own_connection[0], own_channels[0]["pid"])

    assert ctl("close_connection", own_connection[0], "Closed via rabbitmqctl").code == 0
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        connection.process_data_events(time_limit=5)
    assert closed.value.reply_code == 320
    assert "Closed via rabbitmqctl" in closed.value.reply_text
    eventually(lambda: own_connection[0] not in ctl("list_connections", "pid").out)
    second_close = ctl("close_connection", own_connection[0], "again")
    assert (second_close.code, "already closed" in second_close.err) == (0, True)


def test_close_all_connections_of_a_vhost(ctl: Ctl, connect: Connect) -> None:
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


def test_stop_app_and_start_app(real: BrokerProcess, ctl: Ctl, connect: Connect) -> None:
    before = connect()
    fill_queue(before.channel(), "kept", 2)
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
    assert ctl("delete_vhost", "late").code == 65, "a refused command changed something"
    assert {"name": "kept", "messages": 2} in rows(ctl, "list_queues")
    connect().channel().queue_delete("kept")


class TestProcess:
    """amqpctl as a process."""

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

    def test_process_prints_result_and_sets_exit_code(self, real: BrokerProcess) -> None:
        process = self.start(real, "list_users", "-q")
        assert (process.returncode, process.stderr) == (0, "")
        assert "guest\t[administrator]\n" in process.stdout
        assert self.start(real, "list_queues", "nme").returncode == 64

    def test_command_needs_little_cpu_time(self, real: BrokerProcess) -> None:
        """The limit is three times the 150 ms that `make bench` measures, so imports must stay light."""
        cpu_times_s = []
        for _ in range(5):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            assert self.start(real, "list_queues").returncode == 0
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu_times_s.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert min(cpu_times_s) < 0.45

    def test_closed_output_pipe_is_not_an_error(self, real: BrokerProcess) -> None:
        command = f"{sys.executable} -P -m amqpd.cli help | head -1"
        process = subprocess.run(
            ["/bin/sh", "-c", command], env=ENVIRONMENT, capture_output=True, text=True, timeout=30, check=False
        )
        assert (process.returncode, process.stderr) == (0, "")


@pytest.mark.parametrize(("module", "word"), [("amqpd.cli", "help"), ("amqpd", "--help")])
@pytest.mark.parametrize(
    ("redirection", "code", "text"),
    [
        (">/dev/full", 74, "standard output cannot be written: No space left on device\n"),
        (">&-", 0, ""),
        (">/dev/full 2>&-", 74, ""),
    ],
)
def test_output_that_cannot_be_written(module: str, word: str, redirection: str, code: int, text: str) -> None:
    command = f"exec {sys.executable} -P -m {module} {word} {redirection}"
    process = subprocess.run(
        ["/bin/sh", "-c", command], env=ENVIRONMENT, capture_output=True, text=True, timeout=30, check=False
    )
    assert (process.returncode, process.stderr.partition(": ")[2]) == (code, text)


@pytest.mark.parametrize("output", ["", ">&-"])
def test_error_that_cannot_be_written_keeps_its_exit_code(output: str) -> None:
    command = f"exec {sys.executable} -P -m amqpd.cli nosuch {output} 2>/dev/full"
    process = subprocess.run(["/bin/sh", "-c", command], env=ENVIRONMENT, timeout=30, check=False)
    assert process.returncode == 64


def test_stop_ends_the_broker(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        wait_for_admin_api(broker)
        out, err = io.StringIO(), io.StringIO()
        code = run(["stop", "-q", "--data-dir", str(tmp_path)], out, err, io.StringIO(), {})
        assert (code, out.getvalue(), err.getvalue()) == (0, "", "")
        eventually(lambda: not broker.running)
        assert run(["ping", "-q", "--data-dir", str(tmp_path)], out, err, io.StringIO(), {}) == 69
