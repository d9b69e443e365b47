"""`BrokerThread` and `embedded`: a broker in the test's own process, in a thread or on the test's event loop."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Self

from amqpd.testing.broker_fixture import FAST_HASHING, NO_FILE, BrokerFixture, close_all, options_of, reserve_port
from amqpd.testing.control import BrokerFailed, Control, NotRunning, NotSupported, ThreadControl

if TYPE_CHECKING:
    import asyncio

    from amqpd.protocol_server import Guest
    from amqpd.server import Server, Substitutes
    from amqpd.testing.substitutes import BrokerSubstitutes


class BrokerThread(BrokerFixture):
    """A broker in a thread of this process, with an event loop of its own. Clients of any kind may use it.

    It starts in about 30 ms; the first one of a process also imports the server. It shares the interpreter's lock with
    the test. Its log goes to `logging` of this process. It does not read `./amqpd.toml`. It cannot be killed: use a
    `BrokerProcess` for that.

    Args:
        data_dir: Directory for messages and metadata; None: a temporary one, which `close` removes.
        memory: Messages and metadata are in memory. They survive `stop` and `start`, not `close`.
        settings: Settings by their dotted names. auth.password_hashing is a fast one by default.
        guests: See `amqpd.protocol_server`.
        start_timeout_s: Time limit of a start.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        memory: bool = False,
        settings: Mapping[str, object] | None = None,
        guests: Sequence[Guest] = (),
        start_timeout_s: float = 60.0,
    ) -> None:
        super().__init__(data_dir, settings, start_timeout_s)
        self._memory = memory
        self._guests = guests
        self._substitutes: BrokerSubstitutes | None = None
        self._run: _Run | None = None
        self._ports: dict[str, tuple[str, int]] = {}

    def start(self, *, same_ports: bool = True) -> Self:
        """Start the broker and return when it accepts connections.

        Args:
            same_ports: A later start uses the ports of the first one, so that clients can reconnect.

        Raises:
            BrokerFailed: It did not start; the cause is its error.
            RuntimeError: It is running.
        """
        from amqpd.testing.substitutes import BrokerSubstitutes

        if self._run is not None:
            raise RuntimeError("the broker is already running")
        if self._substitutes is None:
            self._substitutes = BrokerSubstitutes(self._memory)
        options = options_of({**FAST_HASHING, **self.settings}, self._ports if same_ports else {})
        close_all(self._reserved_sockets)
        run = _Run(partial(_server, self.data_dir, options, self._guests, self._substitutes.for_start()))
        run.begin(self._substitutes, self.start_timeout_s)
        self._run = run
        self._ports = {each.protocol: (each.host, each.port) for each in reversed(run.server.listeners) if each.port}
        return self

    def stop(self, timeout_s: float = 30.0) -> None:
        """Stop the broker cleanly; `start` continues with its data. Does nothing if it is not running.

        Raises: BrokerFailed: It takes longer, or has ended by itself.
        """
        run, self._run = self._run, None
        if run is None:
            return
        run.end(timeout_s)
        self._reserved_sockets += [reserve_port(host, port) for host, port in self._ports.values()]

    def kill(self) -> NoReturn:
        """Raise NotSupported: a thread cannot be killed."""
        raise NotSupported("a broker in a thread cannot be killed: use a BrokerProcess")

    def close(self) -> None:
        """Stop the broker, and remove its temporary data and those in memory. Raises: BrokerFailed."""
        try:
            super().close()
        finally:
            self._substitutes = None

    @property
    def running(self) -> bool:
        return self._run is not None and self._run.is_alive

    @property
    def server(self) -> Server:
        """Return the server, for tests that inspect it. Only its thread may use it: see `loop`.

        Raises: NotRunning.
        """
        return self._running_one().server

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the broker's event loop, for `asyncio.run_coroutine_threadsafe`. Raises: as `server`."""
        return self._running_one().server.loop

    def _running_one(self) -> _Run:
        if self._run is None:
            raise NotRunning("the broker is not running")
        return self._run

    def _control(self) -> Control:
        return self._running_one().control

    def _listeners(self) -> Mapping[str, tuple[str, int]]:
        return self._ports


class _Run:
    """One run of a server in a thread. make_server: creates it on the running loop."""

    server: Server
    control: ThreadControl

    def __init__(self, make_server: Callable[[], Server]) -> None:
        self._make_server = make_server
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._is_abandoned = False
        self._thread = threading.Thread(target=self._serve, name="amqpd-broker", daemon=True)
        self._substitutes: BrokerSubstitutes

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def begin(self, substitutes: BrokerSubstitutes, timeout_s: float) -> None:
        """Start the thread, and return when clients can connect. Raises: BrokerFailed."""
        self._substitutes = substitutes
        self._thread.start()
        if not self._ready.wait(timeout_s):
            self._is_abandoned = True
            raise BrokerFailed(f"the broker was not ready within {timeout_s:g} s")
        if self._error is not None:
            self._thread.join()
            raise BrokerFailed(f"the broker did not start: {self._error}") from self._error

    def end(self, timeout_s: float) -> None:
        """Stop the server and wait for the thread. Raises: BrokerFailed."""
        if self._thread.is_alive():
            self.server.loop.call_soon_threadsafe(self.server.stop)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise BrokerFailed(f"the broker did not stop within {timeout_s:g} s")
        if self._error is not None:
            raise BrokerFailed(f"the broker has ended: {self._error}") from self._error
        if self.server.failed:
            raise BrokerFailed(f"the broker has ended: {self.server.failed}")

    def _serve(self) -> None:
        import asyncio

        import uvloop

        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve_until_stopped())
        except BaseException as error:  # noqa: BLE001  # the test's thread raises it
            self._error = error
        finally:
            self._ready.set()

    async def _serve_until_stopped(self) -> None:
        import asyncio

        from amqpd import tls
        from amqpd.testing.commands import BrokerCommands

        asyncio.get_running_loop().set_exception_handler(tls.handle_loop_exception)
        async with _started(self._make_server()) as server:
            self.server = server
            self.control = ThreadControl(server.loop, BrokerCommands(server.broker, self._substitutes).run)
            server.start_upkeep()
            self._ready.set()
            if self._is_abandoned:  # the caller of `begin` does not wait any more
                server.stop()
            await server.stopped.wait()


def _server(data_dir: Path, options: Sequence[str], guests: Sequence[Guest], substitutes: Substitutes | None) -> Server:
    """Return a new server on the running loop. Raises: SettingsError, OSError."""
    import asyncio

    from amqpd.config import load
    from amqpd.server import NO_SUBSTITUTES, Server

    settings = load(["--data-dir", str(data_dir.absolute()), *options], NO_FILE).settings
    return Server(settings, asyncio.get_running_loop(), guests, substitutes or NO_SUBSTITUTES)


@asynccontextmanager
async def _started(server: Server) -> AsyncIterator[Server]:
    """Start the server, and stop it at the end."""
    try:
        await server.load_or_join()
    except BaseException:
        server.abandon()
        raise
    try:
        await server.import_definitions()
        await server.listen()
        yield server
    finally:
        server.stop()
        await server.stopped.wait()


@asynccontextmanager
async def embedded(
    data_dir: str | os.PathLike[str], *, settings: Mapping[str, object] | None = None, guests: Sequence[Guest] = ()
) -> AsyncIterator[Server]:
    """Run a broker on this process's event loop, on free ports of 127.0.0.1. It is stopped cleanly at the end.

    It serves tests that inspect the broker, or bring their own protocol server. Blocking clients must run in
    threads, because the broker shares the event loop.

    Args:
        settings: As for `BrokerProcess`.
        guests: See `amqpd.protocol_server`.

    Raises: SettingsError, OSError, MetadataError, as a start.
    """
    async with _started(_server(Path(data_dir), options_of(settings or {}, {}), guests, None)) as server:
        yield server
