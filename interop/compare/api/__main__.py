"""`python -m interop.compare.api`: starts a RabbitMQ, makes all calls, and records its answers again."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from interop.bench import machine
from interop.bench.rabbitmq import find_or_install
from interop.compare.__main__ import _await_http, rabbitmq
from interop.compare.api import held
from interop.compare.api.calls import ALL
from interop.compare.api.state import State
from interop.compare.party import Address


def main() -> int:
    reason = find_or_install(print)
    if reason:
        print(f"nothing was recorded: {reason}")
        return 1
    with tempfile.TemporaryDirectory(prefix="compare-api-") as folder:
        http_port = machine.free_port()
        peer = rabbitmq(Path(folder) / "rabbitmq", http_port)
        try:
            peer.start()
            _await_http(http_port)
            with State(Address(peer.host, peer.port, http_port)) as state:
                held.save(peer.version, ALL, held.hold_all(state, ALL))
        finally:
            peer.stop()
    print(f"{len(ALL)} calls were recorded")
    return 0


if __name__ == "__main__":
    sys.exit(main())
