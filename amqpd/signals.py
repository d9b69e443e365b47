"""Signals: what each means to a running broker. None of them ends it uncleanly but SIGKILL and SIGQUIT.

TERM, INT   a clean stop
HUP         with a controlling terminal at the start (that terminal was closed): a clean stop; without one (a service):
            the settings are read again, and obeyed as far as RELOADED goes
USR1        the log file is opened anew, for logrotate
USR2        where every thread and task is, into the log
PIPE, XFSZ  ignored: what is written fails with EPIPE or EFBIG, and is answered there
"""

from __future__ import annotations

import asyncio
import io
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from amqpd.settings import Settings, SettingsError, rows, value_of

if TYPE_CHECKING:
    from amqpd.logs import LogOutput

log = logging.getLogger(__name__)

RELOADED: Final = (
    "log.level", "amqp.tls.certificate", "amqp.tls.key", "http.tls.certificate", "http.tls.key",
)  # fmt: skip


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
    loop: asyncio.AbstractEventLoop, output: LogOutput, stop: Callable[[], None], reload_all: Callable[[], None]
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


def take_over(
    running: Settings, renew: Callable[[Settings], None], read_settings: Callable[[], Settings]
) -> list[str]:
    """log.level, and the TLS certificates and keys for connections to come; all or nothing.

    running: the settings of the start. renew: hands them to the front ends; raises OSError. read_settings: raises
    SettingsError. Returns the names of those that have changed and have to wait. Raises: SettingsError, OSError.
    """
    fresh = read_settings()
    renew(fresh)
    logging.getLogger().setLevel(fresh.log.level.upper())
    return [
        row.name
        for row in rows()
        if row.name not in RELOADED and value_of(fresh, row.name) != value_of(running, row.name)
    ]


def reload(take: Callable[[], list[str]]) -> None:
    """What SIGHUP does. take: `take_over`, of this process; what it raises is told in the log."""
    try:
        waiting = take()
    except SettingsError as error:
        log.error("SIGHUP: the settings stay as they are: %s", "; ".join(error.problems))
        return
    except OSError as error:  # ssl.SSLError is one
        log.error("SIGHUP: the settings stay as they are: the TLS certificate cannot be loaded: %s", error)
        return
    level = logging.getLevelName(logging.getLogger().level).lower()
    rest = f"; changed and waiting for a restart: {', '.join(waiting)}" if waiting else ""
    log.info("SIGHUP: the settings are read again, log.level is %s%s", level, rest)


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
