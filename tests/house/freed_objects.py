"""A server in the test's process, and a count of the objects that its connections leave behind.

After `gc.freeze` at the start the garbage collector practically never runs, so one reference cycle keeps a connection's
buffers forever. The objects are counted in the collector's own lists, because compiled classes take no weak references.
"""

from __future__ import annotations

import asyncio
import gc
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path

import trustme
import uvloop

from amqpd.config import load
from amqpd.server import Server

WITHIN_S = 60.0


class EmbeddedServer:
    """A server in a thread of this process. more: further settings."""

    def __init__(self, data: Path, authority: trustme.CA, **more: object) -> None:
        certificate = authority.issue_cert("localhost", "127.0.0.1")
        certificate.private_key_pem.write_to_path(data / "key.pem")
        for blob in certificate.cert_chain_pems:
            blob.write_to_path(data / "certificate.pem", append=True)
        options = {
            "amqp.host": "127.0.0.1",
            "amqp.port": 0,
            "http.port": 0,
            "amqp.tls.port": 0,
            "amqp.tls.certificate": data / "certificate.pem",
            "amqp.tls.key": data / "key.pem",
            "data_dir": data / "data",
            **more,
        }
        arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        self.settings = load(arguments, {}).settings
        self.trust = ssl.create_default_context()
        authority.configure_trust(self.trust)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._serve()))
        self._thread.start()
        assert self._ready.wait(60), "the server did not start"

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.server = Server(self.settings, self.loop)
        self.server.load()
        await self.server.listen()
        self._ready.set()
        await self.server.stopped.wait()

    def call(self, function: Callable[[], object]) -> None:
        """Run the function on the loop and wait for it."""
        done = threading.Event()
        self.loop.call_soon_threadsafe(lambda: (function(), done.set()))
        assert done.wait(WITHIN_S)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.server.stop)
        self._thread.join(60)


def count_live_objects(modules: tuple[str, ...], classes: Collection[str]) -> Counter[str]:
    """Count the live objects by class: those of modules that begin so, and of these classes. Collects nothing."""
    found: Counter[str] = Counter()
    for each in gc.get_objects():
        kind = type(each)
        name = f"{kind.__module__}.{kind.__qualname__}"
        if name.startswith(modules) or kind.__name__ in classes:
            found[name] += 1
    return found


def check_nothing_is_left(count: Callable[[], Counter[str]], before: Counter[str]) -> None:
    """Wait until no more objects are alive than before. Raises: AssertionError."""
    deadline = time.monotonic() + WITHIN_S
    while left := dict(+(count() - before)):
        assert time.monotonic() < deadline, f"left after the sockets closed: {left}"
        time.sleep(0.05)
