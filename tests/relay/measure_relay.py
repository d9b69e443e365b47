"""Measure the cost of a proxied connection: messages per second and processor time of each node, direct and proxied.

    python -P tests/relay/measure_relay.py [MESSAGES [BODY_BYTES]]

One publisher without confirms, one consumer without acks, a transient queue, the same bytes each time; direct and
proxied runs alternate. The clients are plain sockets in threads of this process, so the processor time of the nodes
can be compared.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

from relay_rig import Rig
from test_backpressure import open_client_at, publish

from amqpd.protocol import methods

TICKS = os.sysconf("SC_CLK_TCK")


def used_s(pid: int) -> float:
    """Return the processor time of a process, user and kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def run(rig: Rig, node: str, count: int, size: int, queue: str) -> tuple[float, dict[str, float]]:
    """Return the seconds, and the processor seconds of each node."""
    with open_client_at(rig, node) as publisher, open_client_at(rig, node) as consumer:
        publisher.sendall(methods.frame(1, methods.QueueDeclare(queue=queue)))
        publisher.recv(4096)
        consumer.sendall(methods.frame(1, methods.BasicConsume(queue=queue, consumer_tag="c", no_ack=True)))
        consumer.recv(4096)
        batch = publish(queue, bytes(size)) * 100
        method_size = 7 + 2 + 2 + 2 + 8 + 1 + 1 + len(queue) + 1  # basic.deliver with the tag "c" and no exchange
        expected = count * (method_size + 8 + 14 + 8 + size)
        before = {name: used_s(rig[name].pid) for name in "ab"}
        started = time.monotonic()
        sender = threading.Thread(target=lambda: [publisher.sendall(batch) for _ in range(count // 100)])
        sender.start()
        got = read_until_quiet(consumer, expected)
        sender.join()
        took = time.monotonic() - started
        after = {name: used_s(rig[name].pid) - before[name] for name in "ab"}
        assert got >= count * size, (got, expected)
        return took, after


def read_until_quiet(sock: socket.socket, expected: int) -> int:
    """Return the bytes received until none arrives for a second."""
    sock.settimeout(1)
    got = 0
    try:
        while got < expected:
            data = sock.recv(1 << 20)
            assert data
            got += len(data)
    except TimeoutError:
        pass
    return got


def main(count: int, size: int) -> None:
    with Rig(Path(tempfile.mkdtemp(prefix="relay-"))) as rig:
        rig.own("v", "b")
        for turn in range(4):
            for node in "ba":
                took, used = run(rig, node, count, size, f"q{turn}{node}")
                shown = ", ".join(f"{name} {used[name] / count * 1e6:.2f} us" for name in "ab")
                kind = "direct " if node == "b" else "relayed"
                rate = f"{count / took:9.0f} messages/s of {size} bytes"
                print(f"{kind} {rate}; processor per message: {shown}", flush=True)


if __name__ == "__main__":
    main(*(int(each) for each in (sys.argv[1:] + ["200000", "100"][len(sys.argv) - 1 :])))
