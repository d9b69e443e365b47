"""The server process: builds the broker and its protocol servers, starts them, and stops cleanly.

Start: data directory and metadata (milliseconds, before anything listens), then the protocol servers in order
(AMQP, guests, the admin API), then the ready line.

Stop (SIGTERM, SIGINT): no new connections, connection.close 320 to every client, then all logs are synced and
marked clean. It takes at most five seconds, and 0.1 ms for each log that was written to; clients cannot delay it.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import uvloop

from amqpd import __version__, logging_config, process, tls
from amqpd._build import is_compiled, warning
from amqpd.auth.internal_backend import initial_rows
from amqpd.broker.broker import Broker
from amqpd.broker.vhost.parameters import cluster_id_row
from amqpd.broker.vhost.recovery import reconcile
from amqpd.config import Settings
from amqpd.connection.registry import ConnectionRegistry
from amqpd.connection.server import AmqpFrontEnd
from amqpd.management.definitions import DefinitionsError
from amqpd.management.front_end import AdminFrontEnd
from amqpd.process import Notifier
from amqpd.routing.selector import build_parsers
from amqpd.storage import journal
from amqpd.storage.data_directory import DataDirectoryInUse
from amqpd.storage.metadata.rows import Row
from amqpd.storage.metadata.store import MetadataError, SqlMetadataStore
from amqpd.storage.queue_log import LogUnusable
from amqpd.storage.storage import Storage

if TYPE_CHECKING:
    from amqpd.cluster.node import ClusterNode
    from amqpd.kafka_server.server import KafkaFrontEnd, KafkaServer
    from amqpd.listeners import Listener
    from amqpd.logging_config import LogOutput
    from amqpd.process import Reloaded
    from amqpd.protocol_server import FrontEnd, Guest
    from amqpd.storage.filesystem import Clock, FileSystem
    from amqpd.storage.metadata.store import MetadataStore

log = logging.getLogger(__name__)

EXIT_UNAVAILABLE: Final = 69
EXIT_FAILED: Final = 70

KAFKA_PYTHON: Final = "kafka-python>=3.0.12,<4"
"""The requirement of the extra `kafka` in pyproject.toml."""
# Interval and number of checks whether the broker is idle, for imports that it may need later.
REST_LOOK_S: Final = 1.0
REST_LOOKS: Final = 10
CLOCK_LOOK_S: Final = 5.0
# Delay of the second look at a data directory that is not there.
MISSING_LOOK_S: Final = 1.0


class Substitutes(NamedTuple):
    """Replacements of the clock, the disk and the database for tests. None: the real one.

    Attributes:
        metadata: Creates the store of the metadata; the argument posts calls to the loop from any thread.
    """

    clock: Clock | None = None
    filesystem: FileSystem | None = None
    metadata: Callable[[Callable[..., object]], MetadataStore] | None = None


NO_SUBSTITUTES: Final = Substitutes()


class Server:
    """One broker, in a process of its own or embedded in a test.

    Args:
        guests: Protocol servers besides AMQP and the admin API. Each is created with the broker, before the
            metadata is read.
        substitutes: A node of a cluster ignores them.
    """

    def __init__(
        self,
        settings: Settings,
        loop: asyncio.AbstractEventLoop,
        guests: Sequence[Guest] = (),
        substitutes: Substitutes = NO_SUBSTITUTES,
    ) -> None:
        self.settings = self.current_settings = settings
        # Reads the settings again for a reload; raises SettingsError. An embedded broker has nothing to read.
        self.read_settings: Callable[[], Settings] = lambda: self.current_settings
        self.loop = loop
        self.stopped = asyncio.Event()
        self._stopping = False
        # Why the server stopped without a request; "" if it did not.
        self.failed = ""
        self._suspended = False
        self.is_drained = False
        # Replaced in a process of its own; an embedded broker reports nothing.
        self.notifier = Notifier({})
        self._maintenance_timer: asyncio.TimerHandle | None = None
        self._clock_timer: asyncio.TimerHandle | None = None
        self._is_data_missing = False
        self._idle_timer: asyncio.TimerHandle | None = None
        self._definitions = _definitions_of(settings)
        self._importing = asyncio.Lock()
        self._imported = ""  # hash of the imported definitions
        self._reloading: asyncio.Task[None] | None = None
        data_dir = settings.data_dir
        _private_directory(data_dir)
        post = loop.call_soon_threadsafe
        log_options: dict[str, Any] = {
            "post": post,
            "later": loop.call_later,
            "segment_size_bytes": settings.storage.segment_size_bytes,
            "segment_age_ms": int(settings.storage.segment_age_s * 1000),
            "strict": settings.storage.recovery == "strict",
        }
        # Set for a node of a cluster.
        self.node: ClusterNode | None = None
        self.metadata: MetadataStore
        if settings.cluster.kafka:
            from amqpd.cluster.node import ClusterNode

            self.node = ClusterNode(settings, log_options)
            self.storage: Storage = self.node.storage
            self.metadata = self.node.metadata
        else:
            clock, filesystem, metadata = substitutes
            # A substitute is a simulation, or keeps everything in memory.
            if settings.storage.journal and filesystem is None:
                log_options["journal_size_bytes"] = journal.SIZE_BYTES
            self.storage = Storage(data_dir, clock=clock, filesystem=filesystem, **log_options)
            if metadata is not None:
                self.metadata = metadata(post)
            else:
                self.metadata = SqlMetadataStore(settings.metadata.url, data_dir, post)
        storage, hold_ms = self.storage, int(settings.storage.clock_steady_s * 1000)
        storage.clock_watch.begin(storage.filesystem, storage.data_dir, storage.boot_id, hold_ms)
        self.broker = Broker(settings, storage, self.metadata, loop)
        self.amqp = AmqpFrontEnd(self.broker)
        self.connections = self.amqp.connections
        admin = self._admin = AdminFrontEnd(self.broker, self)
        cluster_front_ends = []
        if self.node is not None:
            cluster_front_ends = [self.node.attach(self.broker, self.amqp, admin, self._first_rows, self.fail)]
        others = [guest(self.broker) for guest in guests]
        self.kafka: KafkaServer | None = None
        if settings.kafka.is_on:
            front_end = _kafka_front_end(self.broker, self.connections)
            self.kafka = front_end.server
            others.append(front_end)
        self.front_ends: list[FrontEnd] = [*cluster_front_ends, self.amqp, *others, admin]

    async def load_or_join(self) -> None:
        """Load the metadata, or join the cluster. Raises MetadataError, LogUnusable."""
        if self.node is None:
            self.load()
        else:
            await self.node.start()

    def load(self) -> None:
        """Read the metadata; at a first start create the first user and vhost. Raises MetadataError, LogUnusable."""
        state = self.metadata.open(self._first_rows)
        self.broker.load(reconcile(self.storage, state))
        if self.storage.strict:
            self.storage.recover_all()

    def _first_rows(self) -> list[Row]:
        """Return the rows of a first start.

        RabbitMQ: if definitions are imported, it creates no user of its own.
        """
        first = self.settings.default
        if self._definitions is not None:
            return [cluster_id_row()]
        permissions = first.configure, first.write, first.read
        hashing = self.settings.auth.password_hashing
        return [
            cluster_id_row(),
            *initial_rows(
                first.user,
                first.password,
                first.vhost,
                first.tags,
                permissions,
                hashing,
                with_scram=self.settings.kafka.is_on,
            ),
        ]

    async def import_definitions(self) -> None:
        """Import the definitions of the settings, before anything listens. Raises DefinitionsError, MetadataError."""
        if self.node is not None:
            return  # the first node of a cluster writes the first user and vhost
        if self._definitions is not None:
            await self._import_files(self._definitions)
        elif not self.broker.vhosts and not self.broker.auth.users():
            # rabbit: this also happens if the import of a first start failed, and the setting was removed since then.
            from amqpd.management.definitions_start import import_first

            await import_first(self.broker, self.settings.default)

    async def _import_files(self, path: Path) -> bool:
        """Import the files if they have changed. Return whether they have. Raises DefinitionsError, MetadataError."""
        from amqpd.management.definitions_start import import_files

        async with self._importing:
            known = self._imported
            self._imported = await import_files(self.broker, path, self.current_settings.definitions, known)
            return self._imported != known

    async def reload_definitions(self, asked_by: str) -> str:
        """Import changed definitions after a `reload`. Return their file or directory, or "". Raises as
        `import_definitions`.
        """
        path = _definitions_of(self.current_settings)
        if path is None or not await self._import_files(path):
            return ""
        log.info("%s: %s is imported again", asked_by, path)
        return str(path)

    def on_sighup(self) -> None:
        """Reload as `amqpctl reload` does, and log the result."""
        if not self.reload("SIGHUP").problem and _definitions_of(self.current_settings) is not None:
            self._reloading = self.loop.create_task(self._reload_definitions())

    async def _reload_definitions(self) -> None:
        try:
            await self.reload_definitions("SIGHUP")
        except (DefinitionsError, MetadataError) as error:
            log.error("SIGHUP: the definitions are not imported: %s", error)

    @property
    def listeners(self) -> list[Listener]:
        """Return the present listeners, in the order of the protocol servers."""
        return [one for front_end in self.front_ends for one in front_end.listeners]

    def port(self, protocol: str) -> int:
        """Return the port for `amqp`, `amqps`, `http` or a guest's protocol. Raises StopIteration if there is none."""
        return next(one.port for one in self.listeners if one.protocol == protocol)

    async def listen(self) -> None:
        """Start all protocol servers. Raises OSError if a port is in use."""
        for front_end in self.front_ends:
            await front_end.start()
        self._warm_up_when_idle(-1, REST_LOOKS)

    def apply_settings(self, settings: Settings) -> None:
        """Apply the settings that can change in a running broker. Raises OSError, and then nothing is changed."""
        for front_end in self.front_ends:
            front_end.check(settings)
        for front_end in self.front_ends:
            front_end.renew(settings)
        latest, self.current_settings = self.current_settings, settings
        # Apply only changed settings: a value that amqpctl has set stays until its setting changes.
        if settings.log.level != latest.log.level:
            logging.getLogger().setLevel(settings.log.level.upper())
        self.broker.alarms.apply_config(settings.limits, latest.limits)
        if settings.amqp.loopback_users != latest.amqp.loopback_users:
            self.broker.auth.loopback_users = frozenset(settings.amqp.loopback_users)

    def reload(self, asked_by: str) -> Reloaded:
        """Reload the settings.

        Args:
            asked_by: Name for the log.
        """
        self.notifier.reloading()
        found = process.reload(self.settings, self.current_settings, self.apply_settings, self.read_settings, asked_by)
        self.notifier.reloaded()
        return found

    def start_upkeep(self) -> None:
        """Start maintenance of the logs, every `storage.upkeep_interval_s`; `stop` ends it."""
        self._maintenance_timer = self.loop.call_later(self.settings.storage.upkeep_interval_s, self._run_maintenance)
        if self._clock_timer is None:
            self._tick_clock()

    def _tick_clock(self) -> None:
        self.storage.clock_watch.tick()
        self.check_data_directory()
        delay_s = MISSING_LOOK_S if self._is_data_missing else CLOCK_LOOK_S
        self._clock_timer = self.loop.call_later(delay_s, self._tick_clock)

    def check_data_directory(self) -> None:
        """Stop if the data directory is not there any more: the files are still open, but no start would find them.

        It must be missing twice: a backup may rename it for a moment.
        """
        was_missing, self._is_data_missing = self._is_data_missing, not self.storage.data_directory.is_in_place()
        if was_missing and self._is_data_missing:
            where = self.settings.data_dir
            self.fail(f"{where}, or .lock in it, was removed, moved or replaced while the broker used it")

    def _run_maintenance(self) -> None:
        self.start_upkeep()
        self.storage.maintain()
        self.broker.catalogue.deletions.tidy()
        self.broker.turn.schedule()

    def _warm_up_when_idle(self, turns: int, checks_left: int) -> None:
        """Start the HTTP server and build the parser of selectors when the broker is idle, or after all checks.

        The first HTTP connection starts the server before, and the first selector builds the parser. After a start,
        clients reconnect and drain their queues, which must not wait for 400 ms of CPU.
        """
        now = self.broker.turn.number
        if now == turns or checks_left == 0:
            self._admin.start_http()
            threading.Thread(target=_make_parsers, name="amqpd-selectors", daemon=True).start()
        else:
            self._idle_timer = self.loop.call_later(REST_LOOK_S, self._warm_up_when_idle, now, checks_left - 1)

    def ready_line(self, started: float) -> str:
        """Return the line that a start prints; `amqpd.testing.parse_ready_line` reads it.

        Args:
            started: Value of `time.monotonic` at the start.
        """
        took_ms = (time.monotonic() - started) * 1000
        parts = [str(each) for each in self.listeners if each.port]
        parts.append(f"data {self.settings.data_dir}")
        build = "compiled" if is_compiled() else "interpreted"
        return f"amqpd {__version__} ({build}) ready in {took_ms:.0f} ms: {', '.join(parts)}"

    # -- stop and start

    def _app_front_ends(self) -> list[FrontEnd]:
        """Return the protocol servers that `amqpctl stop_app` stops."""
        return [front_end for front_end in self.front_ends if not front_end.stays]

    @property
    def app_running(self) -> bool:
        """Return whether clients can connect: False between `stop_app` and `start_app`."""
        return any(front_end.listeners for front_end in self._app_front_ends())

    @property
    def not_ready_reason(self) -> str:
        """Return the reason why clients cannot connect, for probes; "" if they can."""
        if self._stopping:
            return "the broker stops"
        if self.is_drained:
            return "the broker is drained for maintenance"
        if self._suspended:
            return "the listeners are suspended"
        if self.node is not None and self.node.cut_off:
            return self.node.cut_off
        return "" if self.app_running else "the broker does not listen for clients"

    async def stop_app(self) -> None:
        """Stop AMQP and guests, but not the admin API. Their connections are closed within about 3 s."""
        await asyncio.gather(*(front_end.stop() for front_end in self._app_front_ends()))

    async def start_app(self) -> None:
        """Listen again. Raises OSError if a port is in use."""
        for front_end in self._app_front_ends():
            await front_end.start()
        self._suspended = self.is_drained = False

    async def suspend_listeners(self) -> None:
        """Refuse new connections, except to the admin API; open ones stay."""
        self._suspended = True
        await asyncio.gather(*(front_end.suspend() for front_end in self._app_front_ends()))

    async def resume_listeners(self) -> None:
        """Accept connections again, which also ends a drain. Raises OSError if a port is in use."""
        for front_end in self._app_front_ends():
            await front_end.resume()
        self._suspended = self.is_drained = False

    def stop(self) -> None:
        """Ask for a clean stop; may be called from a signal handler."""
        if not self._stopping:
            self._stopping = True
            self.notifier.stopping()
            self.loop.create_task(self._stop())  # `_stop` sets `stopped` at its end

    def fail(self, why: str) -> None:
        """Stop because of an error, with an exit code that lets a supervisor start the broker again."""
        log.critical("the broker stops: %s", why)
        self.failed = why
        self.stop()

    def abandon(self) -> None:
        """End the threads of a start that failed, and release the directory."""
        self.metadata.close()
        self.storage.close(clean=False)

    async def _stop(self) -> None:
        log.info("stopping: %d connections are closed", len(self.connections.by_name))
        for timer in (self._maintenance_timer, self._idle_timer, self._clock_timer):
            if timer is not None:
                timer.cancel()
        if self.node is not None:
            await self.suspend_listeners()
            await self.node.leave()
        for group in (self._app_front_ends(), [front_end for front_end in self.front_ends if front_end.stays]):
            for result in await asyncio.gather(*(front_end.stop() for front_end in group), return_exceptions=True):
                if isinstance(result, Exception):
                    log.error("a protocol server did not stop; the logs are closed anyway", exc_info=result)
        for front_end in self.front_ends:
            front_end.close()
        self.broker.alarms.stop()
        self.broker.timers.stop()
        await asyncio.sleep(0)
        self.broker.jobs.stop()
        self.broker.delays.stop()
        self.broker.republisher.stop()
        self.broker.audit.stop()
        self.broker.auth.close()
        self.broker.catalogue.stored_offsets.flush()
        self.broker.catalogue.deletions.tidy()
        self.metadata.close()
        await asyncio.sleep(0)  # callbacks of the last commits delete the files of queues
        self.broker.turn.finish()  # closing the logs settles republished messages in their source queues
        if self.node is not None:
            await self.node.close()
        clean = self.storage.data_directory.is_in_place()  # otherwise the path may name the directory of another broker
        if clean:
            self.storage.clock_watch.save()
        self.storage.close(clean=clean)
        if clean:
            log.info("stopped, all logs are synced")
        else:
            log.warning("stopped, but the logs are not closed: %s is not in its place", self.settings.data_dir)
        self.notifier.close()
        self.stopped.set()


def _kafka_front_end(broker: Broker, connections: ConnectionRegistry) -> KafkaFrontEnd:
    """Return the front end of Kafka's clients. Raises OSError if it cannot run here."""
    import warnings

    try:
        # kafka-python reads its definitions with a deprecated function; tests may have warnings as errors.
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            from amqpd.kafka_server.server import KafkaFrontEnd
    except ImportError as error:  # none, or version 2, which lacks some modules
        if not (error.name or "").startswith("kafka"):
            raise
        raise OSError(f"kafka.port needs {KAFKA_PYTHON}: pip install '{KAFKA_PYTHON}'") from None
    return KafkaFrontEnd(broker, connections.unopened, connections.malloc_trimmer)


def _make_parsers() -> None:
    try:
        build_parsers()
    except OSError as error:  # no descriptor is left to read the modules
        log.warning("the parser of selectors will be built for the first selector: %s", error)


def _private_directory(path: Path) -> None:
    """Create the directory. Raises OSError."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from None


def _owner_warning(data_dir: Path) -> str:
    """Return a warning if root uses the directory of another user's broker; "" otherwise."""
    try:
        owner = (data_dir / ".lock").stat().st_uid
    except OSError:  # everything is in memory
        return ""
    if os.geteuid() != 0 or owner == 0:
        return ""
    return (
        f"amqpd runs as root, and {data_dir} belongs to user {owner}, whose broker cannot read what root writes; "
        f"after the stop: chown -R {owner} {data_dir}"
    )


def _reason(error: Exception) -> str:
    """Return the text of an error without its number, and with its file, if any."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


_UNUSABLE_DIR: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR})


def _advice(error: Exception, data_dir: Path) -> str:
    """Return what to do about an error of the start, as the end of its text; "" if the error says it all."""
    if isinstance(error, OSError):
        if error.errno == errno.EADDRINUSE:
            return "; stop the program that has this port, or set another one (amqp.port, http.port ...)"
        name = None if isinstance(error.filename, int) else error.filename
        path = Path(os.fsdecode(name or "/")).absolute()
        if error.errno in _UNUSABLE_DIR and path.is_relative_to(data_dir.absolute()):
            return "; the broker's user must be able to write the data directory. Another one: --data-dir DIR"
    return ""


def _print(line: str) -> bool:
    """Print to standard output, with what it cannot encode escaped: a path in another encoding.

    Return False if its reader has ended: a closed terminal, a broken pipe.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"  # none: closed before the start, or a StringIO
    try:
        print(line.encode(encoding, "backslashreplace").decode(encoding), flush=True)
        return True
    except OSError as error:
        log.warning("standard output cannot be written: %s", error.strerror)
        # The rest of the buffer must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False


def _definitions_of(settings: Settings) -> Path | None:
    return settings.load_definitions or settings.definitions.local.path


async def serve(
    settings: Settings,
    started: float,
    output: LogOutput,
    read_settings: Callable[[], Settings],
    guests: Sequence[Guest] = (),
    notes: Sequence[str] = (),
    substitutes: Substitutes = NO_SUBSTITUTES,
    ready_text: Callable[[Server], str] | None = None,
) -> int:
    """Run the server until it is stopped. Return the exit code."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(tls.handle_loop_exception)
    gc.disable()  # everything that is loaded stays; the collector would scan it many times
    server = Server(settings, loop, guests, substitutes)
    server.notifier = Notifier(os.environ)
    server.read_settings = read_settings
    try:
        await server.load_or_join()
        await server.import_definitions()
        await server.listen()
    except BaseException:
        server.abandon()
        raise
    process.watch(loop, output, server.stop, server.on_sighup)
    if interpreted := warning():
        log.warning(interpreted)
    if other_owner := _owner_warning(settings.data_dir):
        log.warning(other_owner)
    for note in notes:
        log.warning("%s", note)
    ready = server.ready_line(started)
    # a terminal or `docker logs` shows both streams, so the line is written once
    shown = ready if ready_text is None else ready_text(server)
    if not _print(shown) or shown is not ready or output.path is not None:
        log.info("%s", ready)
    if server.storage.power_cut:
        log.warning("the machine went down while amqpd was running: each queue is checked at its first use")
    server.notifier.ready(loop, ready)
    server.broker.alarms.start()
    server.start_upkeep()
    # The collector need not scan these objects again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    gc.enable()
    await server.stopped.wait()
    process.ignore_all()
    return EXIT_FAILED if server.failed else 0


def run(
    settings: Settings,
    started: float,
    read_settings: Callable[[], Settings],
    guests: Sequence[Guest] = (),
    notes: Sequence[str] = (),
    substitutes: Substitutes = NO_SUBSTITUTES,
    ready_text: Callable[[Server], str] | None = None,
) -> int:
    """Run the server and return its exit code.

    Args:
        read_settings: Reads the settings again for a reload; raises SettingsError.
        guests: As for `Server`.
        notes: Warnings about the settings, for the log.
        substitutes: As for `Server`.
        ready_text: Returns the line to print instead of the ready line, which is logged then.

    Returns:
        0 after a clean stop; 69 if it cannot start (port or data directory in use ...); 70 if it has stopped by
        itself.
    """
    os.umask(0o077)
    process.open_standard_streams()
    process.ignore()
    process.hold()
    sys.setswitchinterval(0.001)
    try:
        output = logging_config.begin(settings.log)
        process.raise_limit()
        return uvloop.run(serve(settings, started, output, read_settings, guests, notes, substitutes, ready_text))
    except DataDirectoryInUse as error:
        print(f"amqpd: {error}; another one: --data-dir DIR", file=sys.stderr)
    except (OSError, MetadataError, LogUnusable, DefinitionsError) as error:
        print(f"amqpd: {_reason(error)}{_advice(error, settings.data_dir)}", file=sys.stderr)
    return EXIT_UNAVAILABLE
