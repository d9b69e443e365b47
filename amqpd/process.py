"""This process: signals, file descriptors, figures for metrics, and messages to systemd.

Signals. Only SIGKILL and SIGQUIT end the broker uncleanly:

    TERM, INT   a clean stop
    HUP         if the process had a controlling terminal at its start (which was closed now): a clean stop.
                Otherwise (a service): reload the settings that can change in a running broker.
                Ignored, if it was ignored when the process was started (nohup)
    USR1        open the log file again, after log rotation
    USR2        log the stacks of all threads and tasks
    PIPE, XFSZ  ignored: the write fails with EPIPE or EFBIG and is handled there

During the start, TERM and INT end the process at once (`amqpd.__main__`); HUP, USR1 and USR2 wait until the broker is
ready: `hold`, then `watch`.

Systemd, for a service with `Type=notify`: `Notifier` reports that the broker is ready, reloads or stops, and that
its event loop runs. A report is a datagram with `NAME=value` lines to the socket in NOTIFY_SOCKET (sd_notify(3));
without this variable nothing is sent. If the unit has WatchdogSec=, systemd restarts a broker whose event loop
hangs. The loop sends WATCHDOG=1 twice in the time of WATCHDOG_USEC.
"""

from __future__ import annotations

import asyncio
import io
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from amqpd.config import Settings, SettingsError, rows, value_of
from amqpd.storage.filesystem import FileSystem

if TYPE_CHECKING:
    from amqpd.logging_config import LogOutput


log = logging.getLogger(__name__)


class Reloaded(NamedTuple):
    """The result of a reload.

    Attributes:
        changed: Settings that were applied.
        waiting: Changed settings that need a restart.
        problem: The reason why nothing was applied, or "".
    """

    changed: list[str]
    waiting: list[str]
    problem: str = ""


def has_terminal() -> bool:
    """Return whether the process has a controlling terminal, which sends HUP when it is closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def ignore() -> None:
    """Ignore PIPE and XFSZ. Python does so itself, but a program that embeds amqpd may have changed that."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)


def open_standard_streams() -> None:
    """Open /dev/null in place of closed descriptors 0, 1 and 2. A socket would get their number, and libuv aborts the
    process when it closes a socket with such a number.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        pass
    os.close(descriptor)


STDERR: Final = 2
HELD: Final = frozenset({signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2})


def hold() -> None:
    """Let the signals of HELD wait for `watch`: by default, each ends the process."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HELD)


def ignore_all() -> None:
    """Ignore all signals with handlers. Call it at the end: Python removes the handlers before the process has ended,
    and then a signal would change the exit code of a clean stop.

    A mask would not do: it holds for one thread, and the system gives the signal to another one.
    """
    for number in HELD | {signal.SIGTERM, signal.SIGINT}:
        signal.signal(number, signal.SIG_IGN)


def watch(
    loop: asyncio.AbstractEventLoop, output: LogOutput, stop: Callable[[], None], reload_all: Callable[[], object]
) -> None:
    """Install the signal handlers. Call it in the main thread.

    Args:
        stop: Asks for a clean stop.
        reload_all: Reloads the settings of this process.
    """
    terminal = has_terminal()

    def hang_up() -> None:
        if terminal:
            log.info("SIGHUP: the terminal was closed, stopping")
            stop()
        else:
            reload_all()

    def new_file() -> None:
        if output.path is None:
            log.info("SIGUSR1: the log goes to standard error, there is no file to open again (log.file)")
            return
        try:
            output.reopen()
        except OSError as error:
            log.error("SIGUSR1: %s; the log continues in the old file", error)
            if sys.stderr is not None:
                with suppress(OSError):  # the old file may be removed
                    sys.stderr.write(f"amqpd: {error}; the log continues in the old file\n")
            return
        log.info("SIGUSR1: the log file is opened again")

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGHUP, hang_up)
    loop.add_signal_handler(signal.SIGUSR1, new_file)
    loop.add_signal_handler(signal.SIGUSR2, write_stacks)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)


def reload(
    running: Settings,
    latest: Settings,
    renew: Callable[[Settings], None],
    read_settings: Callable[[], Settings],
    asked_by: str = "SIGHUP",
) -> Reloaded:
    """Read the settings again and apply those that can change in a running broker.

    Args:
        running: Settings of the start.
        latest: Settings that were read last.
        renew: Applies the new settings; raises OSError.
        read_settings: Reads the settings; raises SettingsError.
        asked_by: Name for the log.
    """
    try:
        fresh = read_settings()
        renew(fresh)
    except SettingsError as error:
        log.error("%s: the settings are unchanged: %s", asked_by, "; ".join(error.problems))
        return Reloaded([], [], "; ".join(error.problems))
    except OSError as error:  # ssl.SSLError is an OSError
        log.error("%s: the settings are unchanged: the TLS certificate cannot be loaded: %s", asked_by, error)
        return Reloaded([], [], f"the TLS certificate cannot be loaded: {error}")
    changed = [row.name for row in rows() if row.reloaded and value_of(fresh, row.name) != value_of(latest, row.name)]
    waiting = [
        row.name for row in rows() if not row.reloaded and value_of(fresh, row.name) != value_of(running, row.name)
    ]
    rest = f"; changed, but need a restart: {', '.join(waiting)}" if waiting else ""
    taken = f"; applied: {', '.join(changed)}" if changed else ""
    level = logging.getLevelName(logging.getLogger().level).lower()
    log.info("%s: the settings are reloaded, log.level is %s%s%s", asked_by, level, rest, taken)
    return Reloaded(changed, waiting)


def write_stacks() -> None:
    """Log the stack of every thread and every task of the event loop, one record each."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        stack = "".join(traceback.format_stack(frame)).rstrip()
        log.warning("SIGUSR2: thread %s", names.get(ident, ident), extra={"stack": stack})
    for task in asyncio.all_tasks():
        text = io.StringIO()
        task.print_stack(file=text)
        log.warning("SIGUSR2: task %s", task.get_name(), extra={"stack": text.getvalue().rstrip()})


# The value for no limit.
UNLIMITED: Final = 1 << 30
# An idle broker has some 25 files open; it opens more while it imports modules, and each connection has one.
LIMIT_MIN: Final = 64
BACKLOG_MAX: Final = 1024
BACKLOG_SHARE: Final = 8


def raise_limit() -> None:
    """Raise the soft limit of open files to the hard one. Raises OSError if that is too low for a broker."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:  # for example an unlimited hard limit that the kernel bounds
            log.warning("the limit of %d open files cannot be raised to %d: %s", soft, hard, error)
    if limit() < LIMIT_MIN:
        raise OSError(
            f"the limit of open files is {limit()}, and amqpd needs {LIMIT_MIN}: ulimit -n, LimitNOFILE of systemd"
        )


def limit() -> int:
    """Return the limit of open files. Cost: a system call."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft


def backlog() -> int:
    """Return the limit for connections that wait to be accepted. The loop accepts all of them at once, before it
    can close any.
    """
    return min(BACKLOG_MAX, limit() // BACKLOG_SHARE)


_PAGE_BYTES: Final = resource.getpagesize()


class ProcessStats(NamedTuple):
    """Memory and file descriptors of this process."""

    rss_bytes: int
    fd_count: int
    fd_limit: int


def process() -> ProcessStats:
    """Return the figures of this process. Cost: about 50 us and 1 us per open file."""
    resident = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    open_files = sum(1 for _ in Path("/proc/self/fd").iterdir())
    return ProcessStats(resident * _PAGE_BYTES, open_files, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def disk_free_bytes(path: Path) -> int:
    """Return the free bytes below `path` for an unprivileged process."""
    return FileSystem().free_bytes(str(path))


BEATS: Final = 2


class Notifier:
    """Reports to systemd. Removes the variables from `environ`, so that child processes do not report in its place."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        self._address = environ.pop("NOTIFY_SOCKET", "")
        if self._address.startswith("@"):
            self._address = "\0" + self._address[1:]  # an abstract socket, without a file
        period, pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        self._beat_s = 0.0
        if period.isascii() and period.isdecimal() and pid in {"", str(os.getpid())}:
            self._beat_s = int(period) / 1e6 / BEATS
        self._timer: asyncio.TimerHandle | None = None

    def ready(self, loop: asyncio.AbstractEventLoop, status: str) -> None:
        """Report that clients can connect, and start the watchdog reports.

        Args:
            status: Text for `systemctl status`.
        """
        self.send("READY=1", f"STATUS={status}", f"MAINPID={os.getpid()}")
        if self._address and self._beat_s:
            self._beat(loop)

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self.send("WATCHDOG=1")
        self._timer = loop.call_later(self._beat_s, self._beat, loop)

    def reloading(self) -> None:
        """Report that the settings are being reloaded; `reloaded` ends it. Serves `Type=notify-reload`, too."""
        self.send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def reloaded(self) -> None:
        self.send("READY=1")

    def stopping(self) -> None:
        """Report a stop. Watchdog reports continue until `close`, because a clean stop syncs logs."""
        self.send("STOPPING=1")

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def send(self, *lines: str) -> None:
        """Send a datagram without waiting. After an error, log it and send nothing any more."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as sock:
                sock.sendto("\n".join(lines).encode("utf-8", "replace"), self._address)
        except BlockingIOError:
            log.info("systemd does not get %s: its socket is full", lines[0])
        except (OSError, ValueError) as error:
            log.warning("systemd cannot be reached, so it gets neither %s nor later reports: %s", lines[0], error)
            self._address = ""
