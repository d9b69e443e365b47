"""`amqpd --ephemeral`: the line that it prints, what it overrides, and when it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from amqpd.config import EXIT_USAGE
from amqpd.testing.broker_fixture import environment

COMMAND = [sys.executable, "-P", "-m", "amqpd", "--ephemeral"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Return a function that starts the command; its temporary directories are below tmp_path."""
    processes: list[subprocess.Popen[str]] = []
    pipe = subprocess.PIPE

    def run(command: list[str], **variables: str) -> subprocess.Popen[str]:
        env = environment({"TMPDIR": str(tmp_path), **variables})
        process = subprocess.Popen(command, env=env, cwd=tmp_path, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        processes.append(process)
        return process

    yield run
    for process in processes:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            stream.close()  # type: ignore[union-attr]


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def errors_of(process: subprocess.Popen[str]) -> str:
    """Return its standard error. `communicate` would close its standard input, which ends it."""
    assert process.stderr is not None
    return process.stderr.read()


def wait_until_gone(path: Path) -> None:
    deadline = time.monotonic() + 60
    while any(path.glob("amqpd-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not list(path.glob("amqpd-*"))


def test_line_with_urls_and_end_with_standard_input(start: Callable, tmp_path: Path) -> None:
    process = start(COMMAND, AMQPD_AMQP__PORT="1", AMQPD_DATA_DIR=str(tmp_path / "kept"))
    urls = line_of(process).split(" ")
    assert [urlsplit(url).scheme for url in urls] == ["amqp", "http"]
    amqp = urlsplit(urls[0])
    assert (amqp.username, amqp.password, amqp.hostname, amqp.path) == ("guest", "guest", "127.0.0.1", "/%2F")
    assert amqp.port is not None
    socket.create_connection(("127.0.0.1", amqp.port), 60).close()
    assert len(list(tmp_path.glob("amqpd-*"))) == 1
    process.stdin.close()
    assert process.wait(60) == 0
    assert not list(tmp_path.iterdir()), "neither its directory nor that of the environment"


def test_ports_and_cluster_of_a_developers_broker_do_not_count(start: Callable, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        names = ("KAFKA", "METRICS")
        variables = {f"AMQPD_{name}__PORT": str(taken.getsockname()[1]) for name in names}
        process = start(COMMAND, **variables)
        assert [urlsplit(url).scheme for url in line_of(process).split(" ")] == ["amqp", "http"]
    member = {"KAFKA": "127.0.0.1:9", "NAME": "shop", "SECRET": "s" * 40}
    process = start(COMMAND, **{f"AMQPD_CLUSTER__{name}": value for name, value in member.items()})
    errors = errors_of(process)
    assert process.wait(60) == EXIT_USAGE
    assert "--ephemeral joins no cluster: cluster.kafka is in environment AMQPD_CLUSTER__KAFKA" in errors


@pytest.mark.slow
def test_second_signal_does_not_keep_the_directory(start: Callable, tmp_path: Path) -> None:
    """The parent sends SIGTERM and ends, so standard input is closed while the broker stops."""
    process = start(COMMAND)
    line_of(process)
    for number in range(500):
        (tmp_path / next(tmp_path.glob("amqpd-*")) / f"file{number}").touch()
    process.terminate()
    process.stdin.close()
    while process.poll() is None:
        process.terminate()
    assert process.returncode == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_json_line_with_kafka_and_end_with_signal(start: Callable, tmp_path: Path) -> None:
    pytest.importorskip("kafka")
    options = ["--formatter", "json", "--default.password", "p/q", "--default.vhost", "shop"]
    options += ["--amqp.host", "", "--kafka.port", "0", "--kafka.host", "127.0.0.2"]
    process = start([*COMMAND, *options])
    found = json.loads(line_of(process))
    assert sorted(found) == ["amqp_url", "http_url", "kafka_bootstrap", "pid"]
    assert found["amqp_url"].startswith("amqp://guest:p%2Fq@127.0.0.1:") and found["amqp_url"].endswith("/shop")
    assert found["pid"] == process.pid
    host, _, port = found["kafka_bootstrap"].partition(":")
    assert host == "127.0.0.2"
    socket.create_connection((host, int(port)), 60).close()
    process.stdin.write("not read")
    process.stdin.flush()
    assert process.poll() is None
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(60) == 0
    wait_until_gone(tmp_path)


@pytest.mark.slow
def test_end_with_parent(start: Callable, tmp_path: Path) -> None:
    parent = start(["sh", "-c", '"$@" < /dev/null & wait', "sh", *COMMAND])
    assert line_of(parent).startswith("amqp://")
    parent.kill()
    parent.wait(60)
    wait_until_gone(tmp_path)


@pytest.mark.slow
def test_file_and_environment_of_another_broker_do_not_count(start: Callable, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        text = f'[metadata]\nurl = "sqlite:///{tmp_path}/other.db"\n[log]\nfile = "{tmp_path}/other.log"\n'
        (tmp_path / "amqpd.toml").write_text(f"{text}[kafka]\nport = {port}\nadvertised = 'other:9092'\n", "utf-8")
        process = start(COMMAND, AMQPD_METRICS__PORT=str(port))
        assert len(line_of(process).split(" ")) == 2
        process.stdin.close()
        assert process.wait(60) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["amqpd.toml"]


@pytest.mark.slow
def test_failed_start_leaves_nothing(start: Callable, tmp_path: Path) -> None:
    process = start([*COMMAND, "--amqp.port", "ninety"])
    errors = errors_of(process)
    assert process.wait(60) == EXIT_USAGE
    assert "amqp.port" in errors
    assert not list(tmp_path.iterdir())
