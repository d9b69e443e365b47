"""RabbitMQ's rabbitmqadmin: each of its commands, and the text it prints for each error.

The program is version 1 (tried with 3.10.8) of an installed RabbitMQ. Its own tables list its commands, and a test
checks that each command was run. Each command is one process: some 50 ms.
"""

from __future__ import annotations

import json
import runpy
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import pika
import pytest

TIMEOUT_S = 60


def _find_program() -> Path | None:
    """Return the installed rabbitmqadmin if it is the one in Python: version 2 has the same name."""
    path = shutil.which("rabbitmqadmin")
    if path is None:
        return None
    with Path(path).open("rb") as file:
        return Path(path) if file.readline().startswith(b"#!") and b"python" in Path(path).read_bytes()[:100] else None


PROGRAM = _find_program()
pytestmark = [
    pytest.mark.external,
    pytest.mark.skipif(PROGRAM is None, reason="rabbitmqadmin 1 is not here: apt install rabbitmq-server"),
]


class Result(NamedTuple):
    code: int
    out: str
    error: str


class Tool:
    """Runs rabbitmqadmin in a vhost and records its commands as `declare queue`, `get` and so on."""

    def __init__(self, path, port, vhost):
        self.path, self.port, self.vhost = path, port, vhost
        self.run_commands: set[str] = set()

    def __call__(self, *words, stdin="", **options):
        command = [sys.executable, str(self.path), "-P", str(self.port), "-V", self.vhost]
        for name, value in options.items():
            command += [f"--{name}", value]
        command += words
        process = subprocess.run(command, check=False, input=stdin, capture_output=True, text=True, timeout=TIMEOUT_S)
        self.run_commands.add(" ".join(words[:2]) if words[0] in VERBS else words[0])
        return Result(process.returncode, process.stdout, process.stderr)

    def run(self, *words, **options):
        result = self(*words, **options)
        assert result.code == 0, result
        return result.out

    def listed(self, kind, *columns):
        return json.loads(self.run("list", kind, *columns, format="raw_json"))


VERBS = ("list", "show", "declare", "delete", "close", "purge")


@pytest.fixture(scope="module")
def restore_sigpipe():
    """Restore the SIGPIPE handler: loading the program sets it so that SIGPIPE ends the process."""
    before = signal.getsignal(signal.SIGPIPE)
    yield
    signal.signal(signal.SIGPIPE, before)


@pytest.fixture(scope="module")
def tables(restore_sigpipe):
    return runpy.run_path(str(PROGRAM))


@pytest.fixture
def tool(api, v):
    return Tool(PROGRAM, api.broker.http_port, unquote(v))


DECLARATIONS = (
    ("exchange", "exchanges", ["name=x", "type=topic", 'arguments={"alternate-exchange": "amq.fanout"}'], "x"),
    ("queue", "queues", ["name=q", 'arguments={"x-max-length": 10}'], "q"),
    ("policy", "policies", ["name=p", "pattern=^a", 'definition={"max-length": 5}', "priority=3"], "p"),
    ("operator_policy", "operator_policies", ["name=o", "pattern=^a", 'definition={"max-length": 5}'], "o"),
)


@pytest.mark.timeout(300)
def test_every_command_runs(tool, tables, channel, tmp_path):
    """The commands run in one vhost, from declare to delete."""
    for kind, listed, words, name in DECLARATIONS:
        assert "declared" in tool.run("declare", kind, *words)
        assert name in [each["name"] for each in tool.listed(listed) if each["vhost"] == tool.vhost]
    assert "declared" in tool.run("declare", "queue", "name=votes", "queue_type=quorum")
    tool.run("declare", "binding", "source=x", "destination=q", "routing_key=a.#")
    (binding,) = [each for each in tool.listed("bindings") if each["source"] == "x"]
    assert (binding["destination"], binding["properties_key"]) == ("q", "a.%23")

    tool.run("declare", "vhost", f"name={tool.vhost}-two", "tracing=true")
    assert f"{tool.vhost}-two" in [each["name"] for each in tool.listed("vhosts", "name", "tracing")]
    tool.run("declare", "user", f"name={tool.vhost}-ann", "password=pw", "tags=monitoring")
    assert f"{tool.vhost}-ann" in [each["name"] for each in tool.listed("users")]
    user_words = [f"vhost={tool.vhost}", f"user={tool.vhost}-ann"]
    tool.run("declare", "permission", *user_words, "configure=.*", "write=.*", "read=.*")
    assert f"{tool.vhost}-ann" in [each["user"] for each in tool.listed("permissions")]
    limit = [f"vhost={tool.vhost}", "name=max-queues"]
    tool.run("declare", "vhost_limit", *limit, "value=100")
    assert {"vhost": tool.vhost, "value": {"max-queues": 100}} in tool.listed("vhost_limits")
    tool.run("declare", "parameter", "component=vhost-limits", "name=limits", 'value={"max-queues": 90}')
    assert "limits" in [each["name"] for each in tool.listed("parameters") if each["vhost"] == tool.vhost]

    assert "published" in tool.run("publish", "routing_key=q", "payload=hello", 'properties={"delivery_mode": 2}')
    assert "NOT routed" in tool.run("publish", "routing_key=nowhere", "payload=x")
    tool.run("publish", "exchange=x", "routing_key=a.b", stdin="from standard input")
    (first,) = json.loads(tool.run("get", "queue=q", "ackmode=ack_requeue_false", format="raw_json"))
    assert (first["payload"], first["properties"], first["message_count"]) == ("hello", {"delivery_mode": 2}, 1)
    assert "from standard input" in tool.run("get", "queue=q", "count=5", "encoding=auto")
    assert "purged" in tool.run("purge", "queue", "name=q")
    assert "No items" in tool.run("get", "queue=q")

    channel.basic_consume("q", lambda *_: None)
    assert [each["queue"]["name"] for each in tool.listed("consumers")] == ["q"]
    (name,) = [each["name"] for each in tool.listed("connections", "name", "vhost") if each["vhost"] == tool.vhost]
    assert f"{name} (1)" in [each["name"] for each in tool.listed("channels", "name")]
    assert "closed" in tool.run("close", "connection", f"name={name}")
    with suppress(pika.exceptions.AMQPError):
        channel.connection.process_data_events(TIMEOUT_S)
    assert not channel.connection.is_open
    assert "cluster_name=" in tool.run("show", "overview", format="kvp")
    assert tool.listed("nodes", "name", "type", "mem_used")[0]["mem_used"] > 0

    out = tmp_path / "definitions.json"
    assert "Exported" in tool.run("export", str(out))
    assert "q" in [each["name"] for each in json.loads(out.read_text("utf-8"))["queues"]]
    assert "Uploaded" in tool.run("import", str(out))

    tool.run("delete", "binding", "source=x", "destination_type=queue", "destination=q", "properties_key=a.%23")
    tool.run("delete", "vhost_limit", *limit)
    tool.run("declare", "parameter", "component=vhost-limits", "name=limits", 'value={"max-queues": 80}')
    tool.run("delete", "parameter", "component=vhost-limits", "name=limits")
    tool.run("delete", "permission", *user_words)
    tool.run("delete", "user", f"name={tool.vhost}-ann")
    tool.run("delete", "vhost", f"name={tool.vhost}-two")
    for kind, listed, _, name in DECLARATIONS:
        assert "deleted" in tool.run("delete", kind, f"name={name}")
        assert name not in [each["name"] for each in tool.listed(listed) if each["vhost"] == tool.vhost]

    known_commands = {f"{verb} {thing}" for verb, table in _by_verb(tables) for thing in table}
    assert {*known_commands, *tables["EXTRA_VERBS"], "export", "import"} <= {
        each.split(" /")[0] for each in tool.run_commands
    }


def _by_verb(tables):
    names = ("LISTABLE", "SHOWABLE", "DECLARABLE", "DELETABLE", "CLOSABLE", "PURGABLE")
    return list(zip(VERBS, (tables[name] for name in names), strict=True))


@pytest.mark.parametrize("form", ["long", "pretty_json", "kvp", "tsv", "table", "bash"])
def test_list_in_each_format(tool, form):
    tool.run("declare", "queue", "name=shown")
    assert "shown" in tool.run("list", "queues", "vhost", "name", format=form)


@pytest.mark.parametrize(
    ("words", "expected_text"),
    [
        (["declare", "queue", "name=q", "queue_type=nosuch"], "*** "),
        (["delete", "queue", "name=nosuch"], "*** Not found"),
        (["declare", "policy", "name=p", "pattern=(", 'definition={"max-length": 5}'], "*** "),
        (["declare", "policy", "name=p", "pattern=a", 'definition={"nosuch": 5}'], "*** "),
        (["close", "connection", "name=nosuch"], "*** Not found"),
        (["publish", "exchange=nosuch", "routing_key=a", "payload=x"], "*** "),
    ],
)
def test_error_is_printed_as_text(tool, words, expected_text):
    result = tool(*words)
    assert result.code == 1
    assert expected_text in result.out + result.error
    assert "Traceback" not in result.out + result.error


def test_wrong_password_is_printed_as_text(tool):
    result = tool("list", "queues", username="guest", password="wrong")
    assert result.code == 1
    assert "Access refused" in result.out + result.error
