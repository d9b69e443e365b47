"""Signals: what each means to a running broker. None of them ends it uncleanly but SIGKILL and SIGQUIT.

TERM, INT   a clean stop
HUP         with a controlling terminal at the start (that terminal was closed): a clean stop; without one (a service):
            the settings are read again, and what the tree calls reloaded is taken over
USR1        the log file is opened anew, for logrotate
USR2        where every thread and task is, into the log
PIPE, XFSZ  ignored: what is written fails with EPIPE or EFBIG, and is answered there

The process's descriptors: sockets, logs and the metadata share them.

This process as the kernel sees it, and the disk it writes to: for metrics, the API and amqpctl.

What systemd is told of a service with `Type=notify`: ready, reloading, stopping, and that the loop still runs.

A datagram each, `NAME=value` lines, to the socket that NOTIFY_SOCKET names (sd_notify(3)); without that variable
nothing happens at all. With WatchdogSec= in the unit systemd ends and restarts a broker whose loop stands still:
WATCHDOG=1 is sent from the loop, twice in the time that WATCHDOG_USEC gives.
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
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from amqpd.config import Settings, SettingsError, rows, value_of
from amqpd.storage.filesystem import FileSystem

if TYPE_CHECKING:
    from amqpd.logging_config import LogOutput


log = logging.getLogger(__name__)


class Reloaded(NamedTuple):
    """What came of it. changed: settings that are taken over; waiting: those that need a restart; problem: why not."""

    changed: list[str]
    waiting: list[str]
    problem: str = ""


def has_terminal() -> bool:
    """Whether this process belongs to a terminal, which sends HUP when it is closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def ignore() -> None:
    """Before anything is written. Python ignores PIPE and XFSZ by itself; an embedder may have changed that."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)


def watch(
    loop: asyncio.AbstractEventLoop, output: LogOutput, stop: Callable[[], None], reload_all: Callable[[], object]
) -> None:
    """From now on, in the process's main thread. stop: asks for a clean end. reload_all: `reload`, of this process."""
    terminal = has_terminal()

    def hang_up() -> None:
        if terminal:
            log.info("SIGHUP: the terminal is gone, stopping")
            stop()
        else:
            reload_all()

    def new_file() -> None:
        if output.path is None:
            log.info("SIGUSR1: the log goes to standard error, there is no file to open anew (log.file)")
            return
        try:
            output.reopen()
        except OSError as error:
            log.error("SIGUSR1: %s; the log goes on where it was", error)
            return
        log.info("SIGUSR1: the log file is opened anew")

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, hang_up)
    loop.add_signal_handler(signal.SIGUSR1, new_file)
    loop.add_signal_handler(signal.SIGUSR2, write_stacks)


def reload(
    running: Settings,
    latest: Settings,
    renew: Callable[[Settings], None],
    read_settings: Callable[[], Settings],
    asked_by: str = "SIGHUP",
) -> Reloaded:
    """Takes over what can be while a broker runs, and says what has to wait.

    running: the settings of the start; latest: those that were read last. renew: hands the new ones to all that obey
    them; raises OSError. read_settings: raises SettingsError. asked_by: for the log.
    """
    try:
        fresh = read_settings()
        renew(fresh)
    except SettingsError as error:
        log.error("%s: the settings stay as they are: %s", asked_by, "; ".join(error.problems))
        return Reloaded([], [], "; ".join(error.problems))
    except OSError as error:  # ssl.SSLError is one
        log.error("%s: the settings stay as they are: the TLS certificate cannot be loaded: %s", asked_by, error)
        return Reloaded([], [], f"the TLS certificate cannot be loaded: {error}")
    changed = [row.name for row in rows() if row.reloaded and value_of(fresh, row.name) != value_of(latest, row.name)]
    waiting = [
        row.name for row in rows() if not row.reloaded and value_of(fresh, row.name) != value_of(running, row.name)
    ]
    rest = f"; changed and waiting for a restart: {', '.join(waiting)}" if waiting else ""
    taken = f"; taken over: {', '.join(changed)}" if changed else ""
    level = logging.getLevelName(logging.getLogger().level).lower()
    log.info("%s: the settings are read again, log.level is %s%s%s", asked_by, level, rest, taken)
    return Reloaded(changed, waiting)


def write_stacks() -> None:
    """Where every thread and every task of the loop is, one record each."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        stack = "".join(traceback.format_stack(frame)).rstrip()
        log.warning("SIGUSR2: thread %s", names.get(ident, ident), extra={"stack": stack})
    for task in asyncio.all_tasks():
        text = io.StringIO()
        task.print_stack(file=text)
        log.warning("SIGUSR2: task %s", task.get_name(), extra={"stack": text.getvalue().rstrip()})


# What stands for no limit.
UNLIMITED: Final = 1 << 30
BACKLOG_MAX: Final = 1024
BACKLOG_SHARE: Final = 8


def raise_limit() -> int:
    """The soft limit becomes the hard one, which is what the administrator grants. Returns it. Raises: nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:  # an unlimited hard limit, say, that the kernel bounds all the same
            log.warning("the limit of %d open files stays, it cannot be raised to %d: %s", soft, hard, error)
    return limit()


def limit() -> int:
    """How many there may be. Cost: a system call."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft


def backlog() -> int:
    """Connections that may wait to be accepted: the loop takes all of them at once, before anything can be closed."""
    return min(BACKLOG_MAX, limit() // BACKLOG_SHARE)


_PAGE_BYTES: Final = resource.getpagesize()


class ProcessStats(NamedTuple):
    """This process, as the kernel sees it. limits: what it may have."""

    rss_bytes: int
    fd_count: int
    fd_limit: int


def process() -> ProcessStats:
    """Cost: some 50 us and 1 us per open file."""
    resident = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    open_files = sum(1 for _ in Path("/proc/self/fd").iterdir())
    return ProcessStats(resident * _PAGE_BYTES, open_files, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def disk_free_bytes(path: Path) -> int:
    """What an unprivileged process may still write below `path`."""
    return FileSystem().free_bytes(str(path))


BEATS: Final = 2


class Notifier:
    """The variables are taken out of `environ`: no process that this one starts is to speak for it."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        self._address = environ.pop("NOTIFY_SOCKET", "")
        if self._address.startswith("@"):
            self._address = "\0" + self._address[1:]  # a name without a file
        period, pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        self._beat_s = 0.0
        if period.isascii() and period.isdecimal() and pid in {"", str(os.getpid())}:
            self._beat_s = int(period) / 1e6 / BEATS
        self._timer: asyncio.TimerHandle | None = None

    def ready(self, loop: asyncio.AbstractEventLoop, status: str) -> None:
        """Clients can connect. status: what `systemctl status` shows. From now on the watchdog is fed."""
        self.tell("READY=1", f"STATUS={status}", f"MAINPID={os.getpid()}")
        if self._address and self._beat_s:
            self._beat(loop)

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self.tell("WATCHDOG=1")
        self._timer = loop.call_later(self._beat_s, self._beat, loop)

    def reloading(self) -> None:
        """The settings are being read again; `reloaded` ends it. For `Type=notify-reload`, too."""
        self.tell("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def reloaded(self) -> None:
        self.tell("READY=1")

    def stopping(self) -> None:
        """The watchdog is fed until `close`: a clean stop syncs logs."""
        self.tell("STOPPING=1")

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def tell(self, *lines: str) -> None:
        """Never waits. A manager that cannot be reached is a line in the log, and then nobody is told any more."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as sock:
                sock.sendto("\n".join(lines).encode("utf-8", "replace"), self._address)
        except BlockingIOError:
            log.info("systemd is not told %s: its socket is full", lines[0])
        except (OSError, ValueError) as error:
            log.warning("systemd cannot be told %s, nor anything further: %s", lines[0], error)
            self._address = ""
