"""`cluster_import`: what a stopped broker's data directory holds, into the running cluster that is asked.

The directory is read by a program of its own (`python -m amqpd.dump`), and stays as it is. First its definitions go
to the cluster, then the messages of each durable queue, in their order, with the exchange and routing key they came by.
A queue that is there already is never added to: then nothing is imported.

If it ends in the middle, nothing is lost at the source, and what has arrived stays: delete the vhosts in the cluster
and begin anew.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, Final

from amqpd.cli.client import quoted
from amqpd.cli.command import Command, Context
from amqpd.cli.errors import DATA, Failure

OWN: Final = frozenset({"cluster_name", "internal_cluster_id"})
"""Global parameters that a cluster has of its own."""


def cluster_import(context: Context) -> None:
    (directory,) = context.operands
    context.say(f"Importing {directory} into node {context.node} ...")
    context.patient()
    queues = messages = 0
    with _lines(directory) as lines:
        definitions = next(lines)["definitions"]
        parameters = definitions.get("global_parameters", [])
        definitions["global_parameters"] = [each for each in parameters if each["name"] not in OWN]
        _check_new(context, definitions)
        context.client.send("POST", "/api/definitions", definitions).checked()
        for line in lines:
            if "messages" in line:
                path = f"/api/amqpd/append/{quoted(line['vhost'])}/{quoted(line['queue'])}"
                context.client.send("POST", path, {"messages": line["messages"]}).checked()
            elif "count" in line:
                queues, messages = queues + 1, messages + line["count"]
                left = f", {line['left']} left out" if line["left"] else ""
                context.say(f"queue '{line['queue']}' in vhost '{line['vhost']}': {line['count']} messages{left}")
    context.done(f"{queues} queues, {messages} messages; {directory} is left as it was")


def _check_new(context: Context, definitions: dict[str, Any]) -> None:
    """Raises: Failure, a queue of them is there already."""
    there = {each["name"] for each in context.client.get("/api/vhosts?columns=name")}
    for vhost in sorted({each["vhost"] for each in definitions["queues"]} & there):
        names = {each["name"] for each in context.client.get(f"/api/queues/{quoted(vhost)}?columns=name")}
        both = sorted(names & {each["name"] for each in definitions["queues"] if each["vhost"] == vhost})
        if both:
            raise Failure(DATA, f"vhost '{vhost}' has a queue '{both[0]}' already: nothing is imported")


@contextmanager
def _lines(directory: str) -> Iterator[Iterator[dict[str, Any]]]:
    """What the reading program writes. Raises: Failure, with its own words, where it cannot go to its end."""
    command = [sys.executable, "-P", "-m", "amqpd.dump", directory]
    reading = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert reading.stdout is not None  # a pipe
    try:
        yield _read(reading, reading.stdout)
    finally:
        reading.kill()
        reading.communicate()


def _read(reading: subprocess.Popen[bytes], out: IO[bytes]) -> Iterator[dict[str, Any]]:
    for text in out:
        line = json.loads(text)
        if "end" in line:
            return
        yield line
    said = reading.communicate()[1].decode("utf-8", "replace").strip().splitlines()
    raise Failure(DATA, said[-1] if said else f"reading ended with exit code {reading.returncode}")


COMMANDS: Final = (
    Command(
        "cluster_import", "Cluster", "Brings a stopped broker's vhosts and messages into this one", cluster_import,
        "<directory>", 1, 1, (("<directory>", "data directory of a broker that does not run"),),
        examples=(("cluster_import /var/lib/amqpd", "into the cluster that this node is of"),),
    ),
)  # fmt: skip
