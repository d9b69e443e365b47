"""The cost of the web page: for the broker with five open pages while messages flow, and the time to first paint.

    python -m interop.bench.page                 everything: half a minute
    python -m interop.bench.page --queues 10000  with ten thousand queues

Five pages are open: overview, queues, one queue, topology, connections. Each polls every three seconds, the topology
every six (`ASKED`; tests/page compares that list with a browser's requests). Their requests are sent many times to a
broker without load, and the CPU time of each is divided by its interval. It is compared with the cost of messages: S3
(durable, 1 KiB, confirmed, acked) at 100,000 a second, whose CPU time per message is measured before. CPU times are
read from the kernel, so other work on the machine does not count.

The sweep that reads all counters every five seconds while a page is open belongs to the API and is reported separately:
about 3 us for each queue, exchange, channel and connection.

First useful paint, if there is a browser: `paint` describes the method and the share of the machine.

A broker that cannot handle 100,000 a second, such as an interpreted one, is offered half of that, and so on; the table
has the rate. The page and the broker are those of the amqpd that this Python imports.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import http.client
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import amqpd.management
from amqpd.testing import BrokerFailed, BrokerProcess

from . import generator
from .generator import RunFailed
from .paint import LEAST, PAINTS, paints
from .rounds import say

LIMIT = 0.02
PAINT_MS_MAX = 300
SCRIPT_BYTES_MAX = 120 * 1024
ROUNDS = 100
RATE = 100_000
RATE_MIN = 10_000
HELD = 0.9
"""Required share of the offered rate. A run below it would measure fewer messages."""
DIST = Path(amqpd.management.__file__).parent / "page" / "dist"

_SPANS = "".join(f"&{name}_age=15&{name}_incr=5" for name in ("msg_rates", "lengths", "data_rates", "node_stats"))[1:]
_RATES = ("publish", "confirm", "deliver_get", "ack", "redeliver", "return_unroutable", "drop_unroutable")
_COLUMNS = {
    "overview": "object_totals,queue_totals,listeners," + ",".join(f"message_stats.{name}_details" for name in _RATES),
    "node": "mem_used,mem_used_details,mem_limit,mem_alarm,disk_free,disk_free_limit,disk_free_alarm,fd_used,fd_total,"
    "uptime,being_drained,io_write_bytes_details.rate,db_dir,platform",
    "queues": "name,vhost,node,type,durable,auto_delete,exclusive,arguments,state,policy,degraded,idle_since,"
    "messages,"
    "messages_ready,messages_unacknowledged,consumers,message_stats.publish_details.rate,"
    "message_stats.deliver_get_details.rate,message_stats.ack_details.rate",
    "queue": "name,vhost,type,durable,auto_delete,exclusive,arguments,node,policy,operator_policy,"
    "effective_policy_definition,state,state_reason,degraded,lost_offsets,idle_since,messages,messages_ready,"
    "messages_unacknowledged,messages_delayed_retry,messages_unmatched,messages_retained,retained_first_timestamp,"
    "message_bytes,group_by,groups_locked,groups_waiting,consumers,consumer_utilisation,single_active_consumer_tag,"
    "messages_ready_details,messages_unacknowledged_details,messages_details,message_stats.publish_details,"
    "message_stats.deliver_details,message_stats.deliver_no_ack_details,message_stats.get_details,"
    "message_stats.ack_details,message_stats.redeliver_details",
    "connections": "name,node,owner,user,vhost,user_provided_name,state,held_by,recv_oct_details.rate,"
    "send_oct_details.rate,"
    "channels,client_properties.product,client_properties.version,ssl,connected_at",
}


class Asked(NamedTuple):
    """The requests of a page and their interval."""

    every_s: float
    paths: tuple[str, ...]


ASKED: dict[str, Asked] = {
    "#/": Asked(
        3,
        (
            "/api/amqpd/pulse/{node}",
            f"/api/overview?{_SPANS}&fields={_COLUMNS['overview']}",
            f"/api/nodes/{{node}}?{_SPANS}&columns={_COLUMNS['node']}",
        ),
    ),
    "#/queues": Asked(3, (f"/api/queues?columns={_COLUMNS['queues']}&page=1&page_size=50",)),
    "#/queues/%2F/{queue}": Asked(
        3,
        (
            "/api/amqpd/rights/%2F?queue={queue}",
            "/api/amqpd/rights/%2F?exchange=amq.default",
            f"/api/queues/%2F/{{queue}}?{_SPANS}&columns={_COLUMNS['queue']}",
        ),
    ),
    "#/topology": Asked(6, ("/api/amqpd/topology",)),
    "#/connections": Asked(3, (f"/api/connections?columns={_COLUMNS['connections']}&page=1&page_size=50",)),
}
"""By the page's address."""
QUEUE = "q00007"


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m interop.bench.page", description="what the web page costs")
    parser.add_argument("--queues", type=int, default=1000, help="in the broker (default: 1000)")
    parser.add_argument("--time", type=float, default=5.0, metavar="SECONDS", help="of messages (default: 5)")
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="amqpd-bench-") as name:
        try:
            program = generator.build(Path(name))
            with BrokerProcess(Path(name) / "amqpd", settings={"log.level": "warning"}) as broker:
                return _judge(program, broker, given)
        except (BrokerFailed, RunFailed) as error:
            say(f"cannot measure: {error}")
            return 2


def _judge(program: Path, broker: BrokerProcess, given: argparse.Namespace) -> int:
    client = Client(broker.http_port)
    rate, message_us = _message_us(program, broker, client, given.time)
    client.declare(given.queues)
    pages = client.cost(broker.pid)
    messages = message_us * rate / 1000
    share = pages.cpu_ms / messages
    print("| | |\n|---|---|")
    print(f"| S3 at {rate:,} messages/s, CPU per message | {message_us:.2f} us: {messages:.0f} ms a second |")
    beside = f"five pages beside {given.queues:,} queues, {pages.requests:.1f} requests a second"
    print(f"| {beside}, CPU | {pages.cpu_ms:.1f} ms a second |")
    print(f"| what they bring | {pages.size_bytes / 1024:.1f} KiB a second |")
    print(f"| of a message's CPU | {share * 100:+.1f} %; {LIMIT * 100:.0f} % is what it may be |")
    failed = share > LIMIT
    script = script_bytes()
    if script:
        print(f"| script, gzipped | {script / 1024:.1f} KiB of {SCRIPT_BYTES_MAX / 1024:.0f} |")
        failed = failed or script > SCRIPT_BYTES_MAX
    for path, found in (paints(broker.http_port) if script else {}).items():
        must = "the machine's share and the browser's" if path == LEAST else f"{PAINT_MS_MAX} is what it may be"
        took = f"{found.median_ms:.0f} ms (best {found.best_ms:.0f}); {must}"
        print(f"| first useful paint of {path}, median of {PAINTS} by {found.browser} | {took} |")
        failed = failed or (path != LEAST and found.median_ms > PAINT_MS_MAX)
    return int(failed)


def _message_us(program: Path, broker: BrokerProcess, client: Client, seconds: float) -> tuple[int, float]:
    """Return the rate that the broker accepted, and the CPU cost of a message, the least of three runs. Raises:
    RunFailed.
    """
    rate = RATE
    while rate >= RATE_MIN:
        try:
            runs = [_run(program, broker, rate, seconds) for _ in range(3)]
        except RunFailed as error:
            if "have not come" not in str(error):
                raise
            say(str(error))
            client.clear()
            runs = []
        held = [run["cpu_us"] for run in runs if run["rate"] > rate * HELD]
        if held:
            return rate, min(held)
        say(f"{rate:,} messages/s are more than this broker takes here: half of it")
        rate //= 2
    raise RunFailed(f"this broker does not take {RATE_MIN:,} messages/s, or the machine is too busy to offer them")


def _run(program: Path, broker: BrokerProcess, rate: int, seconds: float) -> generator.Result:
    options = ["-s", "S3", "--time", f"{seconds}", "--warm", "1", "--rate", f"{rate}"]
    found = generator.run(program, "127.0.0.1", broker.amqp_port, broker.pid, options)
    say(f"S3 at {found['rate']:,.0f} messages/s: {found['cpu_us']:.3f} us")
    return found


def cpu_s(pid: int) -> float:
    """Return the CPU time of all threads of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


AUTHORISED: Final = {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}


class Cost(NamedTuple):
    """Cost per second: CPU milliseconds of the broker, requests, and bytes of their answers."""

    cpu_ms: float
    requests: float
    size_bytes: float


class Client:
    """Sends the requests of five open pages. port: of the HTTP API."""

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(self, method: str, path: str, body: object = None) -> bytes:
        """Send one request. Raises: RunFailed."""
        self.connection.request(method, path, None if body is None else json.dumps(body), AUTHORISED)
        answer = self.connection.getresponse()
        content = answer.read()
        if answer.status >= 400:
            raise RunFailed(f"{method} {path}: {answer.status} {content[:200]!r}")
        return content

    def declare(self, queues: int) -> None:
        """Declare queues, half of them bound to an exchange, so that the page has a picture to draw."""
        names = [f"q{number:05}" for number in range(queues)]
        document: dict[str, Any] = {
            "queues": [{"vhost": "/", "name": name, "durable": False} for name in names],
            "bindings": [
                {"vhost": "/", "source": "amq.topic", "destination": name, "destination_type": "queue",
                 "routing_key": name} for name in names[::2]
            ],
        }  # fmt: skip
        self.ask("POST", "/api/definitions", document)

    def clear(self) -> None:
        """Delete all queues, which a failed run may have left."""
        for queue in json.loads(self.ask("GET", "/api/queues?columns=name")):
            self.ask("DELETE", f"/api/queues/%2F/{quote(queue['name'], safe='')}")

    def cost(self, pid: int) -> Cost:
        """Return the cost of all pages per second."""
        node = json.loads(self.ask("GET", "/api/overview"))["node"]
        began_s, at_s = cpu_s(pid), time.monotonic()
        time.sleep(3)
        idle = (cpu_s(pid) - began_s) / (time.monotonic() - at_s)
        cpu_ms = requests = size_bytes = 0.0
        for every_s, paths in ASKED.values():
            began_s, at_s = cpu_s(pid), time.monotonic()
            for _ in range(ROUNDS):
                size_bytes += sum(len(self.ask("GET", path.format(node=node, queue=QUEUE))) for path in paths) / (
                    ROUNDS * every_s
                )
            used_s = cpu_s(pid) - began_s - idle * (time.monotonic() - at_s)
            cpu_ms += used_s * 1000 / (ROUNDS * every_s)
            requests += len(paths) / every_s
        return Cost(cpu_ms, requests, size_bytes)


def script_bytes() -> int:
    """Return the gzipped bytes of all scripts; 0 if the page is not built."""
    return sum(len(gzip.compress(path.read_bytes(), 9)) for path in DIST.glob("*.js"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
