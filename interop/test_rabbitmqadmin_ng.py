"""The newer rabbitmqadmin (2.x, written in Rust), run unchanged: its commands for features of amqpd.

It decodes answers into structures with required fields, so a printed table proves that all fields exist. It is no
Python or Debian package: `cargo install rabbitmqadmin` builds it in some minutes. RABBITMQADMIN_NG is its path;
otherwise the PATH is searched. Without it these tests are skipped. tests/management/test_newer_fields.py checks its
required fields without the program.
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


def _find_program() -> str | None:
    """Return the program's path if it is the newer version; the older one has the same name."""
    path = os.environ.get("RABBITMQADMIN_NG") or shutil.which("rabbitmqadmin")
    if path is None or not Path(path).is_file():
        return None
    version = subprocess.run([path, "--version"], check=False, capture_output=True, text=True, timeout=PATIENCE_S)
    return path if version.returncode == 0 and version.stdout.startswith("rabbitmqadmin 2.") else None


PROGRAM = _find_program()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="rabbitmqadmin 2.x is not here: cargo install rabbitmqadmin")


class Output(NamedTuple):
    code: int
    text: str


class Tool:
    def __init__(self, port: int, vhost: str) -> None:
        self.port, self.vhost = port, vhost

    def __call__(self, *words: str) -> Output:
        assert PROGRAM is not None
        where = ["--host", "127.0.0.1", "--port", str(self.port), "--vhost", self.vhost, "--non-interactive"]
        command = [PROGRAM, *where, *words]
        process = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S)
        return Output(process.returncode, process.stdout + process.stderr)

    def process(self, *words: str) -> str:
        output = self(*words)
        assert output.code == 0, (words, output)
        return output.text


@pytest.fixture
def tool(amqpd_broker: BrokerProcess, amqpd_vhost: Vhost) -> Tool:
    return Tool(amqpd_broker.http_port, amqpd_vhost.name)


LISTS = (
    *("nodes", "vhosts", "users", "permissions", "connections", "channels", "queues", "exchanges", "bindings"),
    *("consumers", "parameters", "policies", "operator_policies", "vhost_limits", "user_limits", "feature_flags"),
    *("deprecated_features", "deprecated_features_in_use"),
)
HEALTH = ("local_alarms", "cluster_wide_alarms", "node_is_quorum_critical")
# Executed in this order. {file} is in a temporary folder of the test.
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
def test_existing_objects_are_listed(tool: Tool, amqpd_vhost: Vhost) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(amqpd_vhost.url))
    channel = connection.channel()
    channel.queue_declare("mine", durable=True)
    channel.basic_consume("mine", lambda *_: None)
    channel.basic_publish("", "mine", b"x")
    for what in LISTS:
        tool.run("list", what)
    assert "mine" in tool.run("list", "queues")
    assert "mine" in tool.run("list", "consumers")
    assert "mine" in tool.run("queues", "show", "--name", "mine")
    assert "@" in tool.run("list", "nodes")
    connection.close()


@pytest.mark.timeout(300)
def test_objects_are_declared_used_and_deleted(tool: Tool, amqpd_vhost: Vhost, tmp_path: Path) -> None:
    ann, other = f"{amqpd_vhost.name}-ann", f"{amqpd_vhost.name}-two"
    tool.run("declare", "user", "--name", ann, "--password", "secret", "--tags", "monitoring")
    tool.run("declare", "vhost", "--name", other, "--description", "another")
    tool.run("declare", "permissions", "--user", ann, "--configure", ".*", "--read", ".*", "--write", ".*")
    tool.run("declare", "exchange", "--name", "x", "--type", "topic", "--durable", "true")
    tool.run("declare", "queue", "--name", "q", "--type", "quorum", "--durable", "true")
    tool.run("declare", "stream", "--name", "s", "--expiration", "1D")
    tool.run(
        *("declare", "binding", "--source", "x", "--destination-type", "queue", "--destination", "q"),
        *("--routing-key", "a.#"),
    )
    policy = ("--name", "p", "--pattern", "^a", "--apply-to", "queues", "--priority", "1")
    tool.run("declare", "policy", *policy, "--definition", '{"max-length": 5}')
    tool.run("declare", "operator_policy", *policy, "--definition", '{"max-length": 5}')
    tool.run("declare", "vhost_limit", "--name", "max-queues", "--value", "100")
    tool.run("declare", "user_limit", "--user", ann, "--name", "max-channels", "--value", "100")
    for what, names in (("queues", "qs"), ("exchanges", "x"), ("policies", "p"), ("operator_policies", "p")):
        assert all(name in tool.run("list", what) for name in names)

    tool.run("publish", "message", "--routing-key", "q", "--payload", "hello")
    assert "hello" in tool.run("get", "messages", "--queue", "q", "--ack-mode", "ack_requeue_false")
    tool.run("publish", "message", "--routing-key", "q", "--payload", "hello")
    tool.run("purge", "queue", "--name", "q")
    out = tmp_path / "definitions.json"
    tool.run("definitions", "export_from_vhost", "--file", str(out))
    assert '"q"' in out.read_text("utf-8")
    tool.run("definitions", "import_into_vhost", "--file", str(out))

    tool.run("delete", "user_limit", "--user", ann, "--name", "max-channels")
    tool.run("delete", "vhost_limit", "--name", "max-queues")
    tool.run("delete", "operator_policy", "--name", "p")
    tool.run("delete", "policy", "--name", "p")
    tool.run(
        *("delete", "binding", "--source", "x", "--destination-type", "queue", "--destination", "q"),
        *("--routing-key", "a.#"),
    )
    tool.run("delete", "exchange", "--name", "x")
    tool.run("delete", "queue", "--name", "q")
    tool.run("delete", "stream", "--name", "s")
    tool.run("delete", "permissions", "--user", ann)
    tool.run("delete", "user", "--name", ann)
    tool.run("delete", "vhost", "--name", other)
    assert other not in tool.run("list", "vhosts")


@pytest.mark.timeout(300)
def test_node_health_and_overview_commands(tool: Tool, amqpd_broker: BrokerProcess, amqpd_vhost: Vhost) -> None:
    tool.run("show", "overview")
    tool.run("show", "churn")
    name = next(word for word in tool.run("list", "nodes").split() if "@" in word)
    tool.run("show", "memory_breakdown_in_bytes", "--node", name)
    tool.run("show", "memory_breakdown_in_percent", "--node", name)
    tool.run("auth_attempts", "stats", "--node", name)
    tool.run("rebalance", "queues")
    tool.run("feature_flags", "enable_all")
    for check in HEALTH[:3]:
        tool.run("health_check", check)
    tool.run("health_check", "port_listener", "--port", str(amqpd_broker.amqp_port))
    tool.run("health_check", "protocol_listener", "--protocol", "amqp")
    connection = pika.BlockingConnection(pika.URLParameters(amqpd_vhost.url))
    tool.run("close", "user_connections", "--username", "guest")
    with suppress(pika.exceptions.AMQPError):
        connection.process_data_events(PATIENCE_S)
    assert not connection.is_open


@pytest.mark.timeout(300)
def test_newer_command_groups_succeed(tool: Tool, tmp_path: Path) -> None:
    for each in GROUPS:
        tool.run(*each.replace("{file}", str(tmp_path / "definitions.json")).split(" "))


@pytest.mark.timeout(300)
def test_protected_vhost_cannot_be_deleted(tool: Tool) -> None:
    tool.run("vhosts", "enable_deletion_protection", "--name", tool.vhost)
    assert tool("vhosts", "delete", "--name", tool.vhost).code != 0
    tool.run("vhosts", "disable_deletion_protection", "--name", tool.vhost)


@pytest.mark.parametrize("words", [("queues", "show", "--name", "nosuch"), ("delete", "queue", "--name", "nosuch")])
def test_missing_queue_is_an_error(tool: Tool, words: tuple[str, ...]) -> None:
    output = tool(*words)
    assert output.code != 0
    assert "panicked" not in output.text
