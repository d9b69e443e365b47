"""Waiting for a broker to start, and what takes it back to its beginning or its end."""

from __future__ import annotations

import time
from typing import Final

from amqpd.cli.command import Command, Context
from amqpd.cli.errors import TIMED_OUT, UNAVAILABLE, Failure, Refused, UsageError
from amqpd.cli.nodes import is_alive, stop

GROUP: Final = "Nodes"
AWAIT_S: Final = 300
POLL_S: Final = 0.1
_NOT_STARTED: Final = "amqpd is not running, or does not serve clients yet"


def await_startup(context: Context) -> None:
    """rabbit: 69 when it does not come in time; it gives up at once where nobody answers, this waits for that too."""
    given = context.line.timeout_s
    deadline = time.monotonic() + (AWAIT_S if given is None else given)
    while not _started(context):
        if time.monotonic() >= deadline:
            raise Failure(UNAVAILABLE, _NOT_STARTED)
        time.sleep(POLL_S)
    context.done()


def wait(context: Context) -> None:
    """rabbit: 69 when the process ends meanwhile, 75 when it takes too long."""
    given = context.line.given
    if bool(context.operands) == ("pid" in given):
        text = "Cannot specify both pid and pidfile" if context.operands else "No pid or pidfile specified"
        raise UsageError(f'"{text}"')
    deadline = None if context.line.timeout_s is None else time.monotonic() + context.line.timeout_s
    if context.operands:
        path = context.operands[0]
        context.say(f"Waiting for pid file '{path}' to appear")
        pid = _pid_in(context, path, deadline)
        context.say(f"pid is {pid}")
    else:
        pid = context.line.number("pid")
    context.say(f"Waiting for the admin API on node '{context.node}' while OS process '{pid}' is running")
    while not _started(context):
        if not is_alive(pid):
            raise Failure(UNAVAILABLE, "process_not_running")
        _rest(context, deadline)
    if not is_alive(pid):
        raise Failure(UNAVAILABLE, "process_not_running")
    context.done(f"Applications 'amqpd' are running on node '{context.node}'")


def _pid_in(context: Context, path: str, deadline: float | None) -> int:
    """A file that is there but empty is being written. Raises: Failure for one that holds no number; Refused (75)."""
    from pathlib import Path

    while True:
        try:
            text = Path(path).read_text("utf-8").strip()
        except FileNotFoundError:
            text = ""
        except (OSError, UnicodeDecodeError) as error:
            raise Failure(UNAVAILABLE, f"no process id in {path}: {error}") from None
        if text:
            if not (text.isascii() and text.isdigit()):
                raise Failure(UNAVAILABLE, f"no process id in {path}: {text[:20]!r}")
            return int(text)
        _rest(context, deadline)


def _rest(context: Context, deadline: float | None) -> None:
    if deadline is not None and time.monotonic() >= deadline:
        raise Refused(
            TIMED_OUT,
            f"operation wait on node {context.node} timed out. Timeout value used: {context.timeout_ms}",
        )
    time.sleep(POLL_S)


def _started(context: Context) -> bool:
    """Whether it serves clients. Raises: Refused for what no waiting mends (77)."""
    context.client.timeout_s = 5.0
    try:
        return bool(context.client.get("/api/amqpd/app")["running"])
    except Refused as error:
        if error.exit_code not in {UNAVAILABLE, TIMED_OUT}:
            raise
        context.client.close()
        return False


def reset(context: Context) -> None:
    context.say(f"Resetting node {context.node} ...")
    context.patient()
    context.client.send("POST", "/api/amqpd/reset").checked()
    context.done()


_PID: Final = ("<pidfile>", "file with the number of the broker's process")

COMMANDS: Final = (
    Command(
        "await_startup",
        GROUP,
        "Waits for the broker to start and to serve clients",
        await_startup,
        "[--timeout <timeout>]",
        examples=(("await_startup --timeout 60", "0 as soon as clients can connect, 69 after a minute"),),
        needs_app=False,
    ),
    Command(
        "force_reset",
        GROUP,
        "Takes the broker back to its first start: the same as reset on a single node",
        reset,
        examples=(("force_reset", "after stop_app; everything declared goes with its messages"),),
        needs_app=False,
    ),
    Command(
        "reset",
        GROUP,
        "Takes the broker back to its first start: vhosts, users, queues and messages go",
        reset,
        examples=(("reset", "after stop_app; settings and the audit log stay"),),
        needs_app=False,
    ),
    Command(
        "shutdown",
        GROUP,
        "Stops the broker and waits until its process has gone",
        stop,
        "[--timeout <timeout>]",
        examples=(("shutdown", "as stop, which takes a pid file too"),),
        needs_app=False,
    ),
    Command(
        "wait",
        GROUP,
        "Waits for a broker to start, by its process: the one in a pid file, or --pid",
        wait,
        "[<pidfile>] [--pid|-P <pid>] [--timeout <timeout>]",
        0,
        1,
        (_PID,),
        ("pid",),
        examples=(
            ("wait --pid 4711 --timeout 60", "0 as soon as clients can connect, 69 if the process ends before that"),
        ),
        needs_app=False,
    ),
)
