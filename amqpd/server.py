"""The process: builds the rooms, opens the ports, says it is ready, and stops cleanly.

Start: data directory and metadata (milliseconds, before anything listens), then the AMQP port, then the ready line.
What serves HTTP is imported behind the ready line, while its port already queues connections: AMQP clients need not
wait for it.

Stop (SIGTERM, SIGINT): no new connections, connection.close 320 to every client, logs synced and marked clean; within
five seconds whatever clients do.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import ssl
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import uvloop

from amqpd import __version__, descriptors, logs, signals
from amqpd._build import is_compiled, warning
from amqpd.auth.backends import bootstrap
from amqpd.broker.broker import Broker
from amqpd.broker.catalogue.restore import reconcile
from amqpd.connection.connections import Connections
from amqpd.connection.heartbeat import Heartbeats
from amqpd.connection.transport import Transport
from amqpd.listening import Listener, bound_socket, bound_sockets
from amqpd.management.unix_socket import NAME, unix_socket
from amqpd.settings import Settings
from amqpd.storage.data_directory import DataDirectoryInUse
from amqpd.storage.log.checkpoint import UnknownFormat
from amqpd.storage.log.recovery import DamagedLog
from amqpd.storage.metadata.metadata import Metadata, MetadataError
from amqpd.storage.storage import Storage

if TYPE_CHECKING:
    from amqpd.logs import LogOutput
    from amqpd.management.http import AdminServer

log = logging.getLogger(__name__)

EXIT_UNAVAILABLE: Final = 69
STOP_WAIT_S: Final = 3.0
# How often, and how many times, it is looked whether the broker has a moment for what it may need later.
REST_LOOK_S: Final = 0.25
REST_LOOKS: Final = 40


class Server:
    """One broker process, or one embedded in a test."""

    def __init__(self, settings: Settings, loop: asyncio.AbstractEventLoop) -> None:
        self.settings = settings
        self.loop = loop
        # What AMQP clients can connect to now; the ports stay the same through `stop_app` and `start_app`.
        self.listeners: list[Listener] = []
        self.amqp_port = 0
        self.tls_port = 0
        self.http_port = 0
        self.stopped = asyncio.Event()
        self._stopping = False
        self._tls: ssl.SSLContext | None = None
        self._servers: list[asyncio.AbstractServer] = []
        self._admin: AdminServer | None = None
        self._admin_task: asyncio.Task[None] | None = None
        self._upkeep: asyncio.TimerHandle | None = None
        self._rest: asyncio.TimerHandle | None = None
        data_dir = settings.data_dir
        _private_directory(data_dir)
        post = loop.call_soon_threadsafe
        self.storage = Storage(
            data_dir,
            post=post,
            later=loop.call_later,
            segment_size_bytes=settings.storage.segment_size_bytes,
            segment_age_ms=int(settings.storage.segment_age_s * 1000),
            strict=settings.storage.recovery == "strict",
        )
        self.metadata = Metadata(settings.metadata.url, data_dir, post)
        self.broker = Broker(settings, self.storage, self.metadata, loop)
        self.connections = Connections(self.broker)
        self.heartbeats = Heartbeats(loop)

    def load(self) -> None:
        """Reads the metadata; makes the first user and vhost on a first start. Raises: MetadataError; DamagedLog."""
        first = self.settings.default
        state = self.metadata.open(lambda: bootstrap(first.user, first.password, first.vhost))
        findings = reconcile(self.storage, state)
        self.broker.start_report = findings.report
        self.broker.catalogue.deletions.take_over(findings)
        self.broker.load(findings.state)
        if self.storage.strict:
            self.storage.recover_all()

    async def listen(self) -> None:
        """Opens the AMQP ports and the HTTP socket. Raises: OSError when one is taken."""
        await self.listen_amqp()
        http_socket = bound_socket(self.settings.http.host, self.settings.http.port)
        self.http_port = http_socket.getsockname()[1]
        amqpctl_socket = unix_socket(self.settings.data_dir / NAME)
        self._admin_task = self.loop.create_task(self._serve_admin(http_socket, amqpctl_socket))
        self._admin_task.add_done_callback(_report)

    async def listen_amqp(self) -> None:
        """Opens the AMQP ports; also what `start_app` does after `stop_app`."""
        amqp = self.settings.amqp
        self.amqp_port = await self._listen("amqp", self.amqp_port or amqp.port, None)
        if amqp.tls.port is not None:
            self._tls = tls_context(self.settings)
            self.tls_port = await self._listen("amqps", self.tls_port or amqp.tls.port, self._tls)

    async def _listen(self, protocol: str, port: int, tls: ssl.SSLContext | None) -> int:
        """The port, which every socket of it has. Raises: OSError."""
        host = self.settings.amqp.host
        for sock in bound_sockets(host, port):
            port = sock.getsockname()[1]
            self.listeners.append(Listener(protocol, host or sock.getsockname()[0], port))
            server = await self.loop.create_server(
                lambda: Transport(self.broker, self.connections, self.heartbeats, tls is not None),
                sock=sock,
                backlog=descriptors.backlog(),
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else 5.0,
            )
            self._servers.append(server)
        return port

    def renew_certificate(self, settings: Settings) -> None:
        """Certificate and key of `settings` for the TLS connections to come. Raises: OSError, and keeps the former."""
        if self._tls is not None:
            tls_context(settings)  # they fit, or nothing is changed
            tls = settings.amqp.tls
            assert tls.certificate is not None  # tls_context has looked
            self._tls.load_cert_chain(tls.certificate, tls.key)

    def start_upkeep(self) -> None:
        """Looks after the logs from now on, each `storage.upkeep_interval_s`; `stop` ends it."""
        self._upkeep = self.loop.call_later(self.settings.storage.upkeep_interval_s, self._look_after_logs)

    def _look_after_logs(self) -> None:
        self.start_upkeep()
        self.storage.maintain()
        self.broker.catalogue.deletions.tidy()
        self.broker.turn.want()

    async def _serve_admin(self, http_socket: socket.socket, amqpctl_socket: socket.socket) -> None:
        # Imported here: aiohttp costs some 200 ms that AMQP clients need not wait for.
        await asyncio.sleep(0)
        from amqpd.management.http import AdminServer

        self._look_for_rest(-1, REST_LOOKS)
        self._admin = AdminServer(self.broker, self)
        await self._admin.start(http_socket, amqpctl_socket)

    def _look_for_rest(self, turns: int, looks: int) -> None:
        """SQLAlchemy's import, 250 ms of a processor, waits until nobody is served: after a start clients come back and
        drain. A declaration that comes first has it imported then.
        """
        now = self.broker.turn.number
        if now == turns or looks == 0:
            self.metadata.warm()
        else:
            self._rest = self.loop.call_later(REST_LOOK_S, self._look_for_rest, now, looks - 1)

    def ready_line(self, started: float) -> str:
        took_ms = (time.monotonic() - started) * 1000
        parts = [str(each) for each in self.listeners]
        parts.append(str(Listener("http", self.settings.http.host, self.http_port)))
        parts.append(f"data {self.settings.data_dir}")
        build = "compiled" if is_compiled() else "interpreted"
        return f"amqpd {__version__} ({build}) ready in {took_ms:.0f} ms: {', '.join(parts)}"

    # -- stop --------------------------------------------------------------------------------------------------------

    async def close_connections(self, reason: str) -> None:
        """connection.close 320 to everybody; returns when they are gone, or after STOP_WAIT_S."""
        self.heartbeats.finish_unopened()
        for connection in self.connections:
            connection.control.force(reason)
        self.broker.turn.want()
        deadline = self.loop.time() + STOP_WAIT_S
        while self.heartbeats.open_count() and self.loop.time() < deadline:  # noqa: ASYNC110  # once per stop
            await asyncio.sleep(0.01)
        self.heartbeats.abort_all()

    @property
    def amqp_running(self) -> bool:
        """Whether AMQP clients can connect: False between `stop_app` and `start_app`."""
        return bool(self._servers)

    async def stop_amqp(self) -> None:
        """`stop_app`: AMQP goes, the admin API stays."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        self.listeners.clear()
        await self.close_connections("broker forced connection closure with reason 'shutdown'")

    def stop(self) -> None:
        """Asks for a clean stop; may be called from a signal."""
        if not self._stopping:
            self._stopping = True
            self.loop.create_task(self._stop())  # ends the loop by itself

    async def _stop(self) -> None:
        log.info("stopping: %d connections are closed", len(self.connections.by_name))
        await self.stop_amqp()
        if self._admin_task is not None:
            await asyncio.wait([self._admin_task])
        if self._admin is not None:
            await self._admin.stop()
        self.heartbeats.stop()
        self.connections.give_back.stop()
        for timer in (self._upkeep, self._rest):
            if timer is not None:
                timer.cancel()
        self.broker.alarms.stop()
        self.broker.timers.stop()
        await asyncio.sleep(0)
        self.broker.dead_letters.stop()
        self.broker.auth.close()
        self.broker.catalogue.deletions.tidy()
        self.metadata.close()
        await asyncio.sleep(0)  # what its last commits were waited for by: files of deleted queues
        self.storage.close(clean=True)
        log.info("stopped, all logs are synced")
        self.stopped.set()


def _report(task: asyncio.Task[None]) -> None:
    """The admin API did not start: AMQP goes on without it, and the log says why."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("the admin API is not available: %s", error, exc_info=error)


def _private_directory(path: Path) -> None:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def tls_context(settings: Settings) -> ssl.SSLContext:
    """TLS 1.2 and 1.3 from `amqp.tls.*`. Raises: OSError, ssl.SSLError."""
    tls = settings.amqp.tls
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if tls.certificate is None:
        raise OSError("amqp.tls.port is set but amqp.tls.certificate is not")
    context.load_cert_chain(tls.certificate, tls.key)
    if tls.ca is not None:
        context.load_verify_locations(tls.ca)
    if tls.fail_if_no_peer_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
    elif tls.verify_peer:
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def _print(line: str) -> None:
    """To a reader who may be gone: a terminal that is closed, a pipe. That is no reason not to serve."""
    try:
        print(line, flush=True)
    except OSError as error:
        log.warning("standard output cannot be written: %s", error.strerror)
        # What is left in the buffer must not fail once more at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


async def serve(
    settings: Settings, started: float, output: LogOutput, read_settings: Callable[[], Settings]
) -> int:
    """Runs until stopped. Returns the exit code."""
    descriptors.raise_limit()
    loop = asyncio.get_running_loop()
    gc.disable()  # nothing that is loaded goes again, and the collector would walk over all of it, many times
    server = Server(settings, loop)
    server.load()
    await server.listen()
    signals.watch(server, output, read_settings)
    if interpreted := warning():
        log.warning(interpreted)
    ready = server.ready_line(started)
    _print(ready)
    log.info("%s", ready)
    if server.storage.power_cut:
        log.warning("the machine went down while the last broker ran: each queue is checked when it is first used")
    server.broker.alarms.start()
    server.start_upkeep()
    # What is there now stays: the collector need not look at it again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    gc.enable()
    await server.stopped.wait()
    return 0


def run(settings: Settings, started: float, read_settings: Callable[[], Settings]) -> int:
    """The server's main: 0 after a clean stop, 69 when it cannot start (port taken, data directory in use ...).

    read_settings: reads them once more, for a reload; raises SettingsError.
    """
    os.umask(0o077)
    signals.ignore()
    sys.setswitchinterval(0.001)
    try:
        return uvloop.run(serve(settings, started, logs.begin(settings.log), read_settings))
    except DataDirectoryInUse as error:
        print(f"amqpd: data directory {error} is in use by another broker", file=sys.stderr)
    except (OSError, MetadataError, DamagedLog, UnknownFormat, ssl.SSLError) as error:
        print(f"amqpd: {error}", file=sys.stderr)
    return EXIT_UNAVAILABLE
