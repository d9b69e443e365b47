"""RabbitMQ's rabbitmqadmin 3.10: the scenarios for the HTTP API of ../README.md."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pika

NOT_OFFERED = {
    "health": "not offered: rabbitmqadmin has no health checks",
    "scrape": "not offered: rabbitmqadmin reads JSON only",
}
VHOST = unquote(urlsplit(os.environ.get("AMQP_URL", "")).path[1:])


def admin(*words, vhost=VHOST):
    parts = urlsplit(os.environ["HTTP_URL"])
    where = ["-H", parts.hostname, "-P", str(parts.port), "-u", parts.username, "-p", parts.password]
    vhost_option = ["-V", vhost] if vhost else []
    return subprocess.run(["rabbitmqadmin", *where, *vhost_option, *words], capture_output=True, text=True, check=False)


def process(*words, vhost=VHOST):
    done = admin(*words, vhost=vhost)
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout


def rows(*words, vhost=VHOST):
    return json.loads(process("-f", "raw_json", *words, vhost=vhost))


def names(kind):
    return [each["name"] for each in rows("list", kind, "name")]


def overview():
    assert "rabbitmq_version" in process("show", "overview")
    assert len(rows("list", "nodes", vhost="")) == 1


def refused():
    done = admin("list", "queues")
    assert done.returncode and "Access refused" in done.stderr, done.stderr


def vhosts():
    process("declare", "vhost", f"name={VHOST}-made")
    assert f"{VHOST}-made" in [each["name"] for each in rows("list", "vhosts", vhost="")]
    process("delete", "vhost", f"name={VHOST}-made")
    assert f"{VHOST}-made" not in [each["name"] for each in rows("list", "vhosts", vhost="")]


def users():
    process("declare", "user", "name=admin-made", "password=secret", "tags=monitoring")
    process("declare", "permission", f"vhost={VHOST}", "user=admin-made", "configure=^c", "write=^w", "read=.*")
    found = [each for each in rows("list", "permissions", vhost="") if each["user"] == "admin-made"]
    assert [(each["vhost"], each["configure"]) for each in found] == [(VHOST, "^c")], found
    process("delete", "user", "name=admin-made")
    assert "admin-made" not in [each["name"] for each in rows("list", "users", vhost="")]


def exchanges():
    process("declare", "exchange", "name=made", "type=topic")
    [found] = [each for each in rows("list", "exchanges") if each["name"] == "made"]
    assert (found["type"], found["durable"]) == ("topic", True), found
    process("delete", "exchange", "name=made")
    assert "made" not in names("exchanges")


def queues():
    process("declare", "queue", "name=made", 'arguments={"x-max-length": 5}')
    [found] = rows("list", "queues")
    assert (found["name"], found["arguments"]) == ("made", {"x-max-length": 5}), found
    process("publish", "routing_key=made", "payload=1")
    process("purge", "queue", "name=made")
    assert rows("get", "queue=made") == []
    process("delete", "queue", "name=made")
    assert rows("list", "queues") == []


def bindings():
    process("declare", "queue", "name=bound")
    process("declare", "binding", "source=amq.topic", "destination=bound", "routing_key=a.#")
    found = [each for each in rows("list", "bindings") if each["source"]]
    assert [(each["source"], each["routing_key"]) for each in found] == [("amq.topic", "a.#")], found
    end = ("destination_type=queue", "destination=bound", f"properties_key={found[0]['properties_key']}")
    process("delete", "binding", "source=amq.topic", *end)
    assert [each for each in rows("list", "bindings") if each["source"]] == []


def messages():
    process("declare", "queue", "name=messages")
    properties = 'properties={"headers": {"n": 1}}'
    assert "published" in process("publish", "routing_key=messages", "payload=hello", properties)
    assert "NOT routed" in process("publish", "routing_key=nowhere", "payload=lost")
    [found] = rows("get", "queue=messages", "ackmode=ack_requeue_false")
    assert (found["payload"], found["properties"]["headers"]) == ("hello", {"n": 1}), found


def policies():
    def ours():  # the list has those of all virtual hosts
        return [each for each in rows("list", "policies") if (each["vhost"], each["name"]) == (VHOST, "made")]

    process("declare", "policy", "name=made", "pattern=^p", 'definition={"max-length": 3}', "apply-to=queues")
    [found] = ours()
    assert found["definition"] == {"max-length": 3}, found
    process("delete", "policy", "name=made")
    assert not ours()


def connections():
    with pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"])) as connection:
        connection.channel()

        def ours(kind):
            return [each["name"] for each in rows("list", kind, vhost="") if each.get("vhost") == VHOST]

        while not (found := ours("connections")) or not ours("channels"):
            time.sleep(0.2)  # RabbitMQ shows a connection some seconds later
        process("close", "connection", f"name={found[0]}", vhost="")
        with contextlib.suppress(pika.exceptions.AMQPError):
            while True:
                connection.process_data_events(1)
        assert connection.is_closed


def definitions():
    process("declare", "queue", "name=exported", "durable=true")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "definitions.json"
        process("export", str(file))
        assert [each["name"] for each in json.loads(file.read_text())["queues"]] == ["exported"]
        process("delete", "queue", "name=exported")
        process("import", str(file))
    assert names("queues") == ["exported"]


def version():
    return subprocess.run(["rabbitmqadmin", "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]


print(NOT_OFFERED.get(sys.argv[1]) or globals()[sys.argv[1]]() or "pass")
