"""The newer rabbitmqadmin (2.x, in Rust), run as it is: its commands for what amqpd has.

It decodes each answer into structures with fields that must be there, so that a command that prints a table has found
them all. The program is no package of Python's or Debian's: `cargo install rabbitmqadmin` makes it, in some minutes.
RABBITMQADMIN_NG says where it is, else it is looked for on the path; without it these are skipped.
tests/management/test_newer_fields.py holds what it wants of each answer, without it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pika
import pytest

from amqpd.testing import BrokerProcess, Vhost

PATIENCE_S = 60


def _found() -> str | None:
    """The program, if it is the newer one: the older has the same name."""
    path = os.environ.get("RABBITMQADMIN_NG") or shutil.which("rabbitmqadmin")
    if path is None or not Path(path).is_file():
        return None
    said = subprocess.run([path, "--version"], check=False, capture_output=True, text=True, timeout=PATIENCE_S)
    return path if said.returncode == 0 and said.stdout.startswith("rabbitmqadmin 2.") else None


PROGRAM = _found()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="rabbitmqadmin 2.x is not here: cargo install rabbitmqadmin")


class Said(NamedTuple):
    code: int
    text: str


class Tool:
    def __init__(self, port: int, vhost: str) -> None:
        self.port, self.vhost = port, vhost

    def __call__(self, *words: str) -> Said:
        assert PROGRAM is not None
        where = ["--host", "127.0.0.1", "--port", str(self.port), "--vhost", self.vhost, "--non-interactive"]
        command = [PROGRAM, *where, *words]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S)
        return Said(done.returncode, done.stdout + done.stderr)

    def done(self, *words: str) -> str:
        said = self(*words)
        assert said.code == 0, (words, said)
        return said.text


@pytest.fixture
def tool(amqpd_broker: BrokerProcess, amqpd_vhost: Vhost) -> Tool:
    return Tool(amqpd_broker.http_port, amqpd_vhost.name)


LISTS = (
    *("nodes", "vhosts", "users", "permissions", "connections", "channels", "queues", "exchanges", "bindings"),
    *("consumers", "parameters", "policies", "operator_policies", "vhost_limits", "user_limits", "feature_flags"),
    *("deprecated_features", "deprecated_features_in_use"),
)
HEALTH = ("local_alarms", "cluster_wide_alarms", "node_is_quorum_critical")
# One after another; {file} is in a folder of the test's own.
GROUPS = (
    "queues declare --name q --type classic --durable true",
    "exchanges declare --name x --type fanout",
    "exchanges bind --source x --destination-type queue --destination q --routing-key a",
    "exchanges unbind --source x --destination-type queue --destination q --routing-key a",
    """policies declare --name p --pattern ^q --apply-to queues --definition {"max-length":5,"max-length-bytes":100}""",
    "policies list_in",
    "policies list_matching_object --name q --type queues",
    """policies patch --name p --definition {"max-length":6}""",
    "policies update_definition --name p --definition-key max-length --new-value 7",
    "policies delete_definition_keys --name p --definition-keys max-length-bytes",
    "policies update_definitions_of_all_in --definition-key max-length --new-value 8",
    """policies declare_override --name p --override-name po --definition {"max-length":1}""",
    """policies declare_blanket --name pb --apply-to queues --definition {"max-length":9}""",
    "policies list_conflicting",
    """global_parameters set --name newer --value {"a":1}""",
    "global_parameters list",
    "global_parameters clear --name newer",
    "parameters list_all",
    "parameters list --component policy",
    "streams declare --name s --expiration 1D",
    "streams list",
    "streams delete --name s",
    "queues delete_multiple --name-pattern ^q$ --approve",
    "definitions export --file {file}",
    "definitions import --file {file}",
    "definitions export --transformations strip_cmq_keys_from_policies --file {file}",
    *(f"{group} list" for group in ("queues", "exchanges", "bindings", "connections", "channels", "vhosts", "users")),
    *(f"{group} list" for group in ("nodes", "permissions", "operator_policies", "user_limits", "vhost_limits")),
    *("deprecated_features list_used", "feature_flags enable --name quorum_queue", "plugins list_all"),
    *("users permissions", "users connections --username guest", "users limits", "queues rebalance"),
)


@pytest.mark.timeout(300)
def test_what_is_there_is_listed(tool: Tool, amqpd_vhost: Vhost) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(amqpd_vhost.url))
    channel = connection.channel()
    channel.queue_declare("mine", durable=True)
    channel.basic_consume("mine", lambda *_: None)
    channel.basic_publish("", "mine", b"x")
    for what in LISTS:
        tool.done("list", what)
    assert "mine" in tool.done("list", "queues")
    assert "mine" in tool.done("list", "consumers")
    assert "mine" in tool.done("queues", "show", "--name", "mine")
    assert "@" in tool.done("list", "nodes")
    connection.close()


@pytest.mark.timeout(300)
def test_what_is_declared_is_deleted(tool: Tool, amqpd_vhost: Vhost, tmp_path: Path) -> None:
    ann, other = f"{amqpd_vhost.name}-ann", f"{amqpd_vhost.name}-two"
    tool.done("declare", "user", "--name", ann, "--password", "secret", "--tags", "monitoring")
    tool.done("declare", "vhost", "--name", other, "--description", "another")
    tool.done("declare", "permissions", "--user", ann, "--configure", ".*", "--read", ".*", "--write", ".*")
    tool.done("declare", "exchange", "--name", "x", "--type", "topic", "--durable", "true")
    tool.done("declare", "queue", "--name", "q", "--type", "quorum", "--durable", "true")
    tool.done("declare", "stream", "--name", "s", "--expiration", "1D")
    tool.done(
        *("declare", "binding", "--source", "x", "--destination-type", "queue", "--destination", "q"),
        *("--routing-key", "a.#"),
    )
    policy = ("--name", "p", "--pattern", "^a", "--apply-to", "queues", "--priority", "1")
    tool.done("declare", "policy", *policy, "--definition", '{"max-length": 5}')
    tool.done("declare", "operator_policy", *policy, "--definition", '{"max-length": 5}')
    tool.done("declare", "vhost_limit", "--name", "max-queues", "--value", "100")
    tool.done("declare", "user_limit", "--user", ann, "--name", "max-channels", "--value", "100")
    for what, names in (("queues", "qs"), ("exchanges", "x"), ("policies", "p"), ("operator_policies", "p")):
        assert all(name in tool.done("list", what) for name in names)

    tool.done("publish", "message", "--routing-key", "q", "--payload", "hello")
    assert "hello" in tool.done("get", "messages", "--queue", "q", "--ack-mode", "ack_requeue_false")
    tool.done("publish", "message", "--routing-key", "q", "--payload", "hello")
    tool.done("purge", "queue", "--name", "q")
    out = tmp_path / "definitions.json"
    tool.done("definitions", "export_from_vhost", "--file", str(out))
    assert '"q"' in out.read_text("utf-8")
    tool.done("definitions", "import_into_vhost", "--file", str(out))

    tool.done("delete", "user_limit", "--user", ann, "--name", "max-channels")
    tool.done("delete", "vhost_limit", "--name", "max-queues")
    tool.done("delete", "operator_policy", "--name", "p")
    tool.done("delete", "policy", "--name", "p")
    tool.done(
        *("delete", "binding", "--source", "x", "--destination-type", "queue", "--destination", "q"),
        *("--routing-key", "a.#"),
    )
    tool.done("delete", "exchange", "--name", "x")
    tool.done("delete", "queue", "--name", "q")
    tool.done("delete", "stream", "--name", "s")
    tool.done("delete", "permissions", "--user", ann)
    tool.done("delete", "user", "--name", ann)
    tool.done("delete", "vhost", "--name", other)
    assert other not in tool.done("list", "vhosts")


@pytest.mark.timeout(300)
def test_the_node(tool: Tool, amqpd_broker: BrokerProcess, amqpd_vhost: Vhost) -> None:
    tool.done("show", "overview")
    tool.done("show", "churn")
    name = next(word for word in tool.done("list", "nodes").split() if "@" in word)
    tool.done("show", "memory_breakdown_in_bytes", "--node", name)
    tool.done("show", "memory_breakdown_in_percent", "--node", name)
    tool.done("auth_attempts", "stats", "--node", name)
    tool.done("rebalance", "queues")
    tool.done("feature_flags", "enable_all")
    for check in HEALTH[:3]:
        tool.done("health_check", check)
    tool.done("health_check", "port_listener", "--port", str(amqpd_broker.amqp_port))
    tool.done("health_check", "protocol_listener", "--protocol", "amqp")
    connection = pika.BlockingConnection(pika.URLParameters(amqpd_vhost.url))
    tool.done("close", "user_connections", "--username", "guest")
    with suppress(pika.exceptions.AMQPError):
        connection.process_data_events(PATIENCE_S)
    assert not connection.is_open


@pytest.mark.timeout(300)
def test_the_newer_groups_of_commands(tool: Tool, tmp_path: Path) -> None:
    for each in GROUPS:
        tool.done(*each.replace("{file}", str(tmp_path / "definitions.json")).split(" "))


@pytest.mark.timeout(300)
def test_a_vhost_that_is_protected(tool: Tool) -> None:
    tool.done("vhosts", "enable_deletion_protection", "--name", tool.vhost)
    assert tool("vhosts", "delete", "--name", tool.vhost).code != 0
    tool.done("vhosts", "disable_deletion_protection", "--name", tool.vhost)


@pytest.mark.parametrize("words", [("queues", "show", "--name", "nosuch"), ("delete", "queue", "--name", "nosuch")])
def test_what_is_not_there_is_said(tool: Tool, words: tuple[str, ...]) -> None:
    said = tool(*words)
    assert said.code != 0
    assert "panicked" not in said.text
