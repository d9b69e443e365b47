"""The newer rabbitmqadmin, 2.x: the scenarios for the HTTP API of ../README.md. It prints tables for people only."""

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pika

NOT_OFFERED = {"scrape": "not offered: rabbitmqadmin reads JSON only"}
VHOST = unquote(urlsplit(os.environ.get("AMQP_URL", "")).path[1:])


def admin(*words):
    parts = urlsplit(os.environ["HTTP_URL"])
    login = ["--username", parts.username, "--password", parts.password, "--vhost", VHOST]
    where = ["--host", parts.hostname, "--port", str(parts.port), *login, "--non-interactive"]
    return subprocess.run([os.environ["RABBITMQADMIN_NG"], *where, *words], capture_output=True, text=True, check=False)


def process(*words):
    done = admin(*words)
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout


def rows(*words):
    return [line.split() for line in process(*words).splitlines()]


def names(kind):
    return [row[0] for row in rows("list", kind) if row]


def own(kind):
    """Return the words of each row of this vhost. The lists have those of other programs that run meanwhile."""
    return [set(row) for row in rows("list", kind) if VHOST in row]


def overview():
    assert "version" in process("show", "overview")
    assert any("@" in word for row in rows("list", "nodes") for word in row)


def refused():
    done = admin("list", "queues")
    assert done.returncode and "Login failed" in done.stderr, done


def vhosts():
    process("declare", "vhost", "--name", f"{VHOST}-made", "--description", "by rabbitmqadmin")
    assert f"{VHOST}-made" in names("vhosts")
    process("delete", "vhost", "--name", f"{VHOST}-made")
    assert f"{VHOST}-made" not in names("vhosts")


def users():
    process("declare", "user", "--name", "ng-made", "--password", "secret", "--tags", "monitoring")
    process("declare", "permissions", "--user", "ng-made", "--configure", "^c", "--write", "^w", "--read", ".*")
    assert any({"ng-made", "^c", "^w"} <= row for row in own("permissions"))
    process("delete", "user", "--name", "ng-made")
    assert "ng-made" not in names("users")


def exchanges():
    process("declare", "exchange", "--name", "made", "--type", "topic", "--durable", "true")
    assert any({"made", "topic", "true"} <= row for row in own("exchanges"))
    process("delete", "exchange", "--name", "made")
    assert not any("made" in row for row in own("exchanges"))


def queues():
    arguments = '{"x-max-length": 5}'
    process("declare", "queue", "--name", "made", "--type", "classic", "--durable", "true", "--arguments", arguments)
    assert "x-max-length" in process("queues", "show", "--name", "made")
    process("publish", "message", "--routing-key", "made", "--payload", "1")
    process("purge", "queue", "--name", "made")
    process("delete", "queue", "--name", "made")
    assert not any("made" in row for row in own("queues"))


def bindings():
    process("declare", "queue", "--name", "bound", "--type", "classic", "--durable", "true")
    ends = ["--source", "amq.topic", "--destination-type", "queue", "--destination", "bound", "--routing-key", "a.#"]
    process("declare", "binding", *ends)
    assert any({"amq.topic", "bound", "a.#"} <= row for row in own("bindings"))
    process("delete", "binding", *ends)
    assert not any("amq.topic" in row for row in own("bindings"))


def messages():
    process("declare", "queue", "--name", "messages", "--type", "classic", "--durable", "true")
    process("publish", "message", "--routing-key", "messages", "--payload", "hello")
    assert "hello" in process("get", "messages", "--queue", "messages", "--ack-mode", "ack_requeue_false")
    assert "hello" not in process("get", "messages", "--queue", "messages", "--ack-mode", "ack_requeue_false")


def policies():
    limit = ["--definition", '{"max-length": 3}', "--apply-to", "queues", "--priority", "1"]
    process("declare", "policy", "--name", "made", "--pattern", "^p", *limit)
    assert any({"made", "^p"} <= row for row in own("policies"))
    process("delete", "policy", "--name", "made")
    assert not any("made" in row for row in own("policies"))


def connections():
    with pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"])) as connection:
        connection.channel()
        found = []
        while not found:
            time.sleep(0.2)  # RabbitMQ shows a connection some seconds later
            listed = process("list", "channels").splitlines()  # the list of connections has no vhosts
            found = [re.search(r"\S+:\d+ -> \S+:\d+", line) for line in listed if VHOST in line.split()]
        assert found[0][0] in process("list", "connections")
        process("close", "connection", "--name", found[0][0])
        with contextlib.suppress(pika.exceptions.AMQPError):
            while True:
                connection.process_data_events(1)
        assert connection.is_closed


def definitions():
    process("declare", "queue", "--name", "exported", "--type", "classic", "--durable", "true")
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "definitions.json")
        process("definitions", "export_from_vhost", "--file", file)
        process("delete", "queue", "--name", "exported")
        process("definitions", "import_into_vhost", "--file", file)
    assert "exported" in names("queues")


def health():
    for check in ("local_alarms", "cluster_wide_alarms", "node_is_quorum_critical"):
        process("health_check", check)
    process("health_check", "protocol_listener", "--protocol", "amqp")


def version():
    program = os.environ["RABBITMQADMIN_NG"]
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]


print(NOT_OFFERED.get(sys.argv[1]) or globals()[sys.argv[1]]() or "pass")
