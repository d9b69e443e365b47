"""The broker itself: is it there, how is it, stop and start."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

from amqpd import __version__
from amqpd.cli.command import Command, Context
from amqpd.cli.errors import TIMED_OUT, UNAVAILABLE, AppStopped, Failure, Refused, UsageError
from amqpd.cli.formatters import compact
from amqpd.cli.terminal import bold

UNITS: Final = {"bytes": 1, "mb": 1000**2, "gb": 1000**3}
_PURPOSES: Final = {
    "amqp": "AMQP 0-9-1",
    "amqps": "AMQP 0-9-1 over TLS",
    "http": "HTTP API",
    "https": "HTTPS API",
}
RESTORED_MAX: Final = 100
_POLL_S: Final = 0.02


def ping(context: Context) -> None:
    context.say(
        f"Will ping {context.node}. This only checks that the process answers its admin API. "
        f"Timeout: {context.timeout_ms} ms."
    )
    context.client.get("/api/amqpd/ping")
    context.done("Ping succeeded")


def version(context: Context) -> None:
    if context.line.formatter == "json":
        context.out.write(compact({"node": context.node, "result": "ok", "value": {"version": __version__}}) + "\n")
    else:
        context.out.write(__version__ + "\n")


def status(context: Context) -> None:
    unit = context.line.given.get("unit", "gb")
    if unit.lower() not in UNITS:
        raise UsageError(f"unit '{unit}' is not supported. Please use one of: bytes, mb, gb")
    found: dict[str, Any] = context.client.get("/api/amqpd/status")
    if not found["app_running"]:
        raise AppStopped
    if context.line.formatter in {"json", "erlang"}:
        context.say(f"Status of node {found['node']} ...")
        context.answer(found, "")
        return
    context.say(f"Status of node {found['node']} ...")
    text = "\n".join(
        f"{bold(title, context.out)}\n\n" + "".join(f"{line}\n" for line in lines)
        for title, lines in _sections(found, unit)
    )
    context.out.write(text)


def _restored(found: dict[str, Any]) -> Iterator[str]:
    """What the metadata had lost. Some hundred lines at most: all of it is in `status --formatter json`."""
    for vhost in found.get("vhosts", ()):
        yield f"vhost '{vhost}', in which nobody has any right"
    queues = found.get("queues", ())
    for queue in queues[:RESTORED_MAX]:
        known = "" if queue["arguments_known"] else " and arguments"
        yield f"queue '{queue['name']}' in vhost '{queue['vhost']}', without its bindings{known}"
    if len(queues) > RESTORED_MAX:
        yield f"and {len(queues) - RESTORED_MAX} queues more"
    for each in found.get("set_aside", ()):
        yield f"not restored: {each['path']}: {each['reason']}"


def _sections(found: dict[str, Any], unit: str) -> Iterator[tuple[str, list[str]]]:
    """rabbitmqctl's sections and labels, where there is such a thing here."""
    totals = found["totals"]
    yield (
        "Runtime",
        [
            f"OS PID: {found['pid']}",
            f"OS: {found['os']}",
            f"Uptime (seconds): {found['uptime_ms'] // 1000}",
            f"{found['product']} version: {found['version']} ({found['build']})",
            f"Node name: {found['node']}",
            f"Python: {found['python']}",
            f"Log level: {found['log_level']}",
            *_clock(found.get("clock", {})),
        ],
    )
    yield "Data directory", [f"Node data directory: {found['data_dir']}"]
    alarms = [compact(alarm) if isinstance(alarm, dict) else str(alarm) for alarm in found["alarms"]]
    yield "Alarms", alarms or ["(none)"]
    restored = list(_restored(found.get("restored", {})))
    if restored:
        yield "Restored at this start", restored
    yield (
        "Memory",
        [
            f"Total memory used: {_amount(found['memory']['rss_bytes'], unit)}",
            *_limit(found["memory"].get("limit_bytes"), unit),
            f"Waiting to be synced to disk: {_amount(found['unsynced_bytes'], unit)}",
        ],
    )
    files = found["file_descriptors"]
    yield "File Descriptors", [f"Total: {files['used']}, limit: {files['limit']}"]
    low_bytes = found.get("disk_free_limit_bytes")
    watermark = [] if low_bytes is None else [f"Low free disk space watermark: {_amount(low_bytes, unit)}"]
    yield "Free Disk Space", [*watermark, f"Free disk space: {_amount(found['disk_free_bytes'], unit)}"]
    yield (
        "Totals",
        [
            f"Connection count: {totals['connections']}",
            f"Channel count: {totals['channels']}",
            f"Queue count: {totals['queues']}",
            f"Exchange count: {totals['exchanges']}",
            f"Binding count: {totals['bindings']}",
            f"Consumer count: {totals['consumers']}",
            f"Virtual host count: {totals['virtual_hosts']}",
            f"User count: {totals['users']}",
        ],
    )
    yield (
        "Listeners",
        [
            f"Interface: {one['ip_address']}, port: {one['port']}, protocol: {one['protocol']}, "
            f"purpose: {_PURPOSES.get(one['protocol'], one['protocol'])}"
            for one in found["listeners"]
        ],
    )


def _clock(clock: dict[str, Any]) -> list[str]:
    """Return a line about the wall clock. A broker of before 1.2 says nothing of it."""
    if clock.get("state") != "held":
        return ["Wall clock: steady"] if clock else []
    ahead = f"{abs(clock['jump_s']):.0f} s {'ahead' if clock['jump_s'] > 0 else 'behind'}"
    return [
        f"Wall clock: set, {ahead}; retention, time to live and delays follow in {clock['held_for_s']} s",
        "To have them follow now: amqpctl accept_clock",
    ]


def _limit(limit_bytes: int | None, unit: str) -> list[str]:
    return [f"Memory available: {_amount(limit_bytes, unit)}"] if limit_bytes else []


def _amount(size_bytes: int, unit: str) -> str:
    divisor = UNITS[unit.lower()]
    return f"{size_bytes} bytes" if divisor == 1 else f"{round(size_bytes / divisor, 4)} {unit}"


def stop_app(context: Context) -> None:
    context.say(f"Stopping amqpd application on node {context.node} ...")
    _post(context, "/api/amqpd/stop_app")
    context.done()


def start_app(context: Context) -> None:
    context.say(f"Starting node {context.node} ...")
    _post(context, "/api/amqpd/start_app")
    context.done()


def stop(context: Context) -> None:
    """Returns once the process is gone, so that the data directory is free for the next one."""
    context.say(f"Stopping and halting node {context.node} ...")
    pids = [_pid_in(operand) for operand in context.operands]
    deadline = time.monotonic() + context.timeout_ms / 1000
    try:
        answer = context.client.send("POST", "/api/amqpd/stop")
    except Refused as error:
        if error.exit_code != UNAVAILABLE or "idempotent" not in context.line.given:
            raise
        context.done(f"Node {context.node} is no longer running")
        return
    answer.checked()
    context.client.close()
    if context.client.is_local:
        pids.append(int(answer.data["pid"]))
    while any(is_alive(pid) for pid in pids) or _answers(context):
        if time.monotonic() > deadline:
            raise Refused(
                TIMED_OUT,
                f"node {context.node} was told to stop but is still there after {context.timeout_ms} ms",
            )
        time.sleep(_POLL_S)
    context.done()


def _pid_in(path: str) -> int:
    from pathlib import Path

    try:
        return int(Path(path).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise Failure(UNAVAILABLE, f"no process id in {path}: {error}") from None


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and waits for its parent (state Z) does not."""
    from pathlib import Path

    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in {"Z", "X"}


def _answers(context: Context) -> bool:
    """Whether the admin API still takes connections: all there is to see of a broker on another machine."""
    try:
        context.client.send("GET", "/api/amqpd/ping")
    except Refused as error:
        return error.exit_code != UNAVAILABLE
    finally:
        context.client.close()
    return True


def _post(context: Context, path: str) -> None:
    context.client.send("POST", path).checked()


VERSION: Final = Command(
    "version",
    "Help",
    "Displays CLI tools version",
    version,
    examples=(("version", "asks no broker; for the broker's version, see status"),),
)

COMMANDS: Final = (
    VERSION,
    Command(
        "ping",
        "Nodes",
        "Checks that the broker's process is up and answers its admin API",
        ping,
        "[--timeout <timeout>]",
        examples=(("ping -q -t 5", "exit code 0, 69 (not there) or 75 (silent)"),),
        needs_app=False,
    ),
    Command(
        "start_app",
        "Nodes",
        "Starts AMQP again after stop_app",
        start_app,
        examples=(("start_app", "clients can connect once it returns"),),
        needs_app=False,
    ),
    Command(
        "status",
        "Nodes",
        "Shows the state of the node: versions, memory, disk, alarms, listeners",
        status,
        "[--unit <unit>] [--timeout <timeout>]",
        options=("unit",),
        examples=(
            ("status --unit mb", "version, memory, totals, listeners"),
            ("status --formatter json", "for a program to read"),
        ),
        needs_app=False,
    ),
    Command(
        "stop",
        "Nodes",
        "Stops the broker and waits until its process has gone",
        stop,
        "[--idempotent] [<pidfile>]",
        0,
        1,
        (("<pidfile>", "file with the number of one more process to wait for, such as a supervisor's"),),
        ("idempotent",),
        examples=(("stop", "what was confirmed is on the disk, and there after the next start"),),
        needs_app=False,
    ),
    Command(
        "stop_app",
        "Nodes",
        "Stops AMQP (connections are closed with code 320) but leaves the process and its admin API running",
        stop_app,
        examples=(("stop_app", "start_app takes it back"),),
        needs_app=False,
    ),
)
