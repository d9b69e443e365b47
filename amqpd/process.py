"""Signals: what each means to a running broker. None of them ends it uncleanly but SIGKILL and SIGQUIT.

TERM, INT   a clean stop
HUP         with a controlling terminal at the start (that terminal was closed): a clean stop; without one (a service):
            the settings are read again, and what the tree calls reloaded is taken over
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
from typing import TYPE_CHECKING, NamedTuple

from amqpd.config import Settings, SettingsError, rows, value_of

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
    changed = [
        row.name for row in rows() if row.reloaded and value_of(fresh, row.name) != value_of(latest, row.name)
    ]
    waiting = [
        row.name
        for row in rows()
        if not row.reloaded and value_of(fresh, row.name) != value_of(running, row.name)
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
