"""Commands about the broker itself: state, start, stop, reset, maintenance, settings, limits of memory and disk,
clock.

Texts, units and exit codes are rabbitmqctl 3.10's, measured. `set_alarm`, `clear_alarm`, `accept_clock` and
`reload` are amqpd's own. `drain` is rabbitmq-upgrade's, which has no grace period.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from amqpd import __version__
from amqpd.cli.checks import PURPOSES
from amqpd.cli.command import CONFIGURATION, OPERATIONS, Context, command
from amqpd.cli.errors import DATA, TIMED_OUT, UNAVAILABLE, ApiRefused, AppStopped, Failure, UsageError
from amqpd.cli.formatters import compact
from amqpd.cli.terminal import bold

UNITS: Final = {"bytes": 1, "mb": 1000**2, "gb": 1000**3}
RESTORED_MAX: Final = 100
_POLL_S: Final = 0.02


_KIND: Final = ("<alarm>", "memory or disk")
_LIMIT: Final = "in bytes, or with a unit: kB, MB, GB, TB, PB (1000), or k, Ki, KiB and so on (1024)"
_PID: Final = ("<pidfile>", "file with the process ID of the broker")
_command = partial(command, "Nodes", needs_app=False)
_configuration = partial(command, CONFIGURATION)
_operation = partial(command, OPERATIONS, needs_app=False)


@_command(
    "Checks that the broker's process runs and its admin API answers",
    examples=(("ping -q -t 5", "exit code 0, 69 (unreachable) or 75 (no answer)"),),
)
def ping(context: Context) -> None:
    context.info(
        f"Will ping {context.node}. This only checks that the process answers its admin API. "
        f"Timeout: {context.timeout_ms} ms."
    )
    context.client.get("/api/amqpd/ping")
    context.success("Ping succeeded")


@command(
    "Help",
    "Displays the version of amqpctl",
    "",
    examples=(("version", "needs no broker; server_version shows the broker's version"),),
)
def version(context: Context) -> None:
    if context.line.formatter == "json":
        context.out.write(compact({"node": context.node, "result": "ok", "value": {"version": __version__}}) + "\n")
    else:
        context.out.write(__version__ + "\n")


@_command(
    "Shows the state of the node: versions, memory, disk, alarms, listeners",
    "[--unit <unit>] [--timeout <timeout>]",
    examples=(
        ("status --unit mb", "version, memory, totals, listeners"),
        ("status --formatter json", "for programs"),
    ),
)
def status(context: Context) -> None:
    unit = context.line.given.get("unit", "gb")
    if unit.lower() not in UNITS:
        raise UsageError(f"unit '{unit}' is not supported. Please use one of: bytes, mb, gb")
    found: dict[str, Any] = context.client.get("/api/amqpd/status")
    if not found["app_running"]:
        raise AppStopped
    if context.line.formatter in {"json", "erlang"}:
        context.info(f"Status of node {found['node']} ...")
        context.answer(found, "")
        return
    context.info(f"Status of node {found['node']} ...")
    text = "\n".join(
        f"{bold(title, context.out)}\n\n" + "".join(f"{line}\n" for line in lines)
        for title, lines in _sections(found, unit)
    )
    context.out.write(text)


def _restored(found: dict[str, Any]) -> Iterator[str]:
    """Yield the objects that were missing in the metadata, some hundred at most; `status --formatter json` has all."""
    for vhost in found.get("vhosts", ()):
        yield f"vhost '{vhost}', without any permissions"
    queues = found.get("queues", ())
    for queue in queues[:RESTORED_MAX]:
        known = "" if queue["arguments_known"] else " and arguments"
        yield f"queue '{queue['name']}' in vhost '{queue['vhost']}', without its bindings{known}"
    if len(queues) > RESTORED_MAX:
        yield f"and {len(queues) - RESTORED_MAX} more queues"
    for each in found.get("set_aside", ()):
        yield f"not restored: {each['path']}: {each['reason']}"


def _sections(found: dict[str, Any], unit: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the sections, with rabbitmqctl's labels where it has the same."""
    totals = found["totals"]
    yield (
        "Runtime",
        [
            f"OS PID: {found['pid']}",
            f"OS: {found['os']}",
            f"Uptime (seconds): {found['uptime_ms'] // 1000}",
            f"{found['product']} version: {found['version']} ({found['build']})",
            *_rabbitmq_version(found),
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
            f"purpose: {PURPOSES.get(one['protocol'], one['protocol'])}"
            for one in found["listeners"]
        ],
    )


def _rabbitmq_version(found: dict[str, Any]) -> list[str]:
    """Return rabbitmqctl's line, from which scripts read the version, if the setting `compat` asks for RabbitMQ."""
    return [f"RabbitMQ version: {found['product_version']}"] if found.get("product_name") == "RabbitMQ" else []


def _clock(clock: dict[str, Any]) -> list[str]:
    """Return a line about the wall clock. A broker older than 1.2 does not report it."""
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


@_command(
    "Stops AMQP and closes connections with code 320; the process and its admin API continue",
    "",
    examples=(("stop_app", "start_app starts AMQP again"),),
)
def stop_app(context: Context) -> None:
    context.info(f"Stopping amqpd application on node {context.node} ...")
    context.change("POST", "/api/amqpd/stop_app")


@_command("Starts AMQP again after stop_app", "", examples=(("start_app", "clients can connect when it returns"),))
def start_app(context: Context) -> None:
    context.info(f"Starting node {context.node} ...")
    context.change("POST", "/api/amqpd/start_app")


@_command(
    "Stops the broker and waits until its process has ended",
    "[--idempotent] [<pidfile>]",
    (("<pidfile>", "pid file of another process to wait for, for example a supervisor"),),
    examples=(("stop", "confirmed messages are on the disk, and in their queues after the next start"),),
)
def stop(context: Context) -> None:
    """Stop the broker and wait until its process has ended, so that the next one can use the data directory."""
    context.info(f"Stopping and halting node {context.node} ...")
    pids = [_pid_in(operand) for operand in context.operands]
    deadline = time.monotonic() + context.timeout_ms / 1000
    try:
        answer = context.client.send("POST", "/api/amqpd/stop")
    except ApiRefused as error:
        if error.exit_code != UNAVAILABLE or "idempotent" not in context.line.given:
            raise
        context.success(f"Node {context.node} is no longer running")
        return
    answer.checked()
    context.client.close()
    if context.client.is_local:
        pids.append(int(answer.data["pid"]))
    while any(is_alive(pid) for pid in pids) or _answers(context):
        if time.monotonic() > deadline:
            raise ApiRefused(
                TIMED_OUT, f"node {context.node} got the request to stop but still runs after {context.timeout_ms} ms"
            )
        time.sleep(_POLL_S)
    context.success()


shutdown = stop._replace(
    usage_text=None, details=(), own_name="shutdown", examples=(("shutdown", "as stop, but without a pid file"),)
)


def _pid_in(path: str) -> int:
    try:
        return int(Path(path).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise Failure(UNAVAILABLE, f"no process id in {path}: {error}") from None


def is_alive(pid: int) -> bool:
    """Return whether the process runs. A zombie (state Z) does not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in {"Z", "X"}


def _answers(context: Context) -> bool:
    """Return whether the admin API accepts connections: the only sign of a broker on another machine."""
    try:
        context.client.send("GET", "/api/amqpd/ping")
    except ApiRefused as error:
        return error.exit_code != UNAVAILABLE
    finally:
        context.client.close()
    return True


ALARMS: Final = ("memory", "disk")

_SIZE: Final = re.compile(r"([0-9]{1,18})(?:([kmgtp])(i|i?b)?)?", re.IGNORECASE)


def size_bytes(text: str) -> int:
    """Parse a size. rabbit: `k`, `KiB` and (3.13) `Ki` are 1024 bytes, `kB` is 1000; also M, G, T, P.

    Raises: UsageError (65).
    """
    found = _SIZE.fullmatch(text)
    if found is None:
        raise _bad()
    size = int(found[1])
    for _ in range(" kmgtp".index((found[2] or " ").lower())):
        size *= 1000 if (found[3] or "").lower() == "b" else 1024
    return size


def _fraction(text: str) -> float:
    """Raises: UsageError (65)."""
    try:
        return float(text)
    except ValueError:
        raise _bad() from None


def _bad(why: str = ".") -> UsageError:
    return UsageError(f"Bad argument{why}", DATA)


def _check_count(context: Context, word: str) -> None:
    """Check the operands: `word VALUE`, or one value. Raises: UsageError."""
    most = 2 if context.operands[0] == word else 1
    if len(context.operands) < most:
        raise UsageError("not enough arguments.")
    if len(context.operands) > most:
        raise UsageError("too many arguments.")


@_configuration(
    "Changes the free disk space below which publishers are blocked",
    "<disk_limit> | mem_relative <fraction>",
    (
        ("<disk_limit>", f"{_LIMIT}; the setting limits.disk_free_bytes is permanent"),
        ("mem_relative <fraction>", "multiple of the machine's memory"),
    ),
    examples=(
        ("set_disk_free_limit 1GB", "publishers are blocked if less space is free"),
        ("set_disk_free_limit mem_relative 1.5", "one and a half times the memory"),
    ),
    needs=1,
)
def set_disk_free_limit(context: Context) -> None:
    _check_count(context, "mem_relative")
    text = context.operands[-1]
    body: dict[str, object]
    if len(context.operands) == 2:
        fraction = _fraction(text)
        if not 0 <= fraction < float("inf"):
            raise _bad()
        body, said = {"mem_relative": fraction}, f"{text} times the total RAM"
    else:
        body, said = {"bytes": size_bytes(text)}, f"{text} bytes"
    context.info(f"Setting disk free limit on {context.node} to {said} ...")
    context.change("PUT", "/api/amqpd/disk_free_limit", body)


@_configuration(
    "Changes the memory use above which publishers are blocked",
    "<fraction> | absolute <value>",
    (
        ("<fraction>", "share of the memory, 0.0 to 1.0; the setting limits.memory_high_watermark is permanent"),
        ("absolute <value>", _LIMIT),
    ),
    examples=(
        ("set_vm_memory_high_watermark 0.4", "the default"),
        ("set_vm_memory_high_watermark absolute 2GB", "publishers are blocked if the broker uses more"),
    ),
    needs=1,
)
def set_vm_memory_high_watermark(context: Context) -> None:
    _check_count(context, "absolute")
    text = context.operands[-1]
    body: dict[str, object]
    if len(context.operands) == 2:
        limit_bytes = size_bytes(text)
        if not limit_bytes:
            raise _bad()
        body, said = {"bytes": limit_bytes}, f"{text} bytes"
    else:
        share = _fraction(text)
        if not 0 <= share <= 1:
            raise _bad(": The threshold should be a fraction between 0.0 and 1.0")
        body, said = {"share": share}, text
    context.info(f"Setting memory threshold on {context.node} to {said} ...")
    context.change("PUT", "/api/amqpd/memory_high_watermark", body)


@_configuration(
    "Blocks publishers as if memory or disk were low, until clear_alarm or the next start",
    "<alarm>",
    (_KIND,),
    examples=(("set_alarm disk", "publishers get connection.blocked with the reason low on disk"),),
)
def set_alarm(context: Context) -> None:
    kind = _alarm(context)
    context.info(f"Setting alarm '{kind}' on {context.node} ...")
    context.change("PUT", f"/api/amqpd/alarms/{kind}")


@_configuration(
    "Ends an alarm of set_alarm",
    "<alarm>",
    (_KIND,),
    examples=(("clear_alarm memory", "publishers continue, if enough memory is free"),),
)
def clear_alarm(context: Context) -> None:
    kind = _alarm(context)
    context.info(f"Clearing alarm '{kind}' on {context.node} ...")
    context.change("DELETE", f"/api/amqpd/alarms/{kind}")


@_configuration(
    "Accepts a changed wall clock for retention, time to live and delays",
    "",
    examples=(("accept_clock", "check the date before: messages that are too old by it are deleted"),),
)
def accept_clock(context: Context) -> None:
    context.info(f"Accepting the wall clock of {context.node} ...")
    found = context.client.send("GET", "/api/amqpd/clock").checked().data
    if found["state"] == "steady":
        context.warn("There is no jump of the clock to accept")
    context.change("PUT", "/api/amqpd/clock")


def _alarm(context: Context) -> str:
    kind = context.operands[0]
    if kind not in ALARMS:
        raise _bad(f": there is no alarm '{kind}', it is memory or disk")
    return kind


GRACE_MAX_S: Final = 3600


@_operation(
    "Starts maintenance mode: refuses new connections and closes open ones",
    "[--grace <seconds>]",
    (("--grace <seconds>", "time for clients to disconnect before they are closed; default 0"),),
    examples=(("drain --grace 30", "stops client traffic; messages stay, and the admin API answers"),),
)
def drain(context: Context) -> None:
    grace_s = context.line.number("grace") if "grace" in context.line.given else 0
    if not 0 <= grace_s <= GRACE_MAX_S:
        raise UsageError(f"--grace is from 0 to {GRACE_MAX_S} seconds")
    context.info(
        f"Will put node {context.node} into maintenance mode. The node will no longer serve any client traffic!"
    )
    context.no_timeout()  # the answer comes after the grace period
    context.change("POST", "/api/amqpd/drain", {"grace_s": grace_s})


@_operation(
    "Ends maintenance mode: clients can connect again", "", examples=(("revive", "on the same ports"),), needs_app=False
)
def revive(context: Context) -> None:
    context.info(
        f"Will put node {context.node} back into regular operating mode. The node will again serve client traffic."
    )
    context.change("POST", "/api/amqpd/revive")


@_operation(
    "Reloads settings, certificates and definitions, as SIGHUP does",
    "",
    examples=(("reload", "lists settings that changed, and those that need a restart"),),
)
def reload(context: Context) -> None:
    context.info(f"Reading the settings of node {context.node} again ...")
    context.no_timeout()  # definitions may be many
    found = context.client.send("POST", "/api/amqpd/reload").checked().data
    for text, names in (("changed", found["changed"]), ("needs a restart", found["waiting"])):
        for name in names:
            context.out.write(f"{text}: {name}\n")
    if found["imported"]:
        context.out.write(f"imported again: {found['imported']}\n")
    context.success()


AWAIT_S: Final = 300
WAIT_S: Final = 10
POLL_S: Final = 0.1
_NOT_STARTED: Final = "amqpd is not running, or does not serve clients yet"


@_command(
    "Waits for the broker to start and to serve clients",
    examples=(("await_startup --timeout 60", "exit code 0 when clients can connect, 69 after a minute"),),
)
def await_startup(context: Context) -> None:
    """rabbit: 69 after the timeout. rabbitmqctl fails at once if no node answers; this command waits for that too."""
    given = context.line.timeout_s
    deadline = time.monotonic() + (AWAIT_S if given is None else given)
    while not _started(context):
        if time.monotonic() >= deadline:
            raise Failure(UNAVAILABLE, _NOT_STARTED)
        time.sleep(POLL_S)
    context.success()


@_command(
    "Waits, 10 seconds by default, until a broker has started, with its process in a pid file or --pid",
    "[<pidfile>] [--pid|-P <pid>] [--timeout <timeout>]",
    (_PID,),
    examples=(("wait --pid 4711 --timeout 60", "exit code 0 when clients can connect, 69 if the process ends before"),),
)
def wait(context: Context) -> None:
    """rabbit: 69 if the process ends before the start is complete, 75 after the timeout, by default 10 s."""
    given = context.line.given
    if bool(context.operands) == ("pid" in given):
        text = "Cannot specify both pid and pidfile" if context.operands else "No pid or pidfile specified"
        raise UsageError(f'"{text}"')
    deadline = time.monotonic() + _wait_s(context)
    if context.operands:
        path = context.operands[0]
        context.info(f"Waiting for pid file '{path}' to appear")
        pid = _read_pid(context, path, deadline)
        context.info(f"pid is {pid}")
    else:
        pid = context.line.number("pid")
    context.info(f"Waiting for the admin API on node '{context.node}' while OS process '{pid}' is running")
    while not _started(context):
        if not is_alive(pid):
            raise Failure(UNAVAILABLE, "process_not_running")
        _pause(context, deadline)
    if not is_alive(pid):
        raise Failure(UNAVAILABLE, "process_not_running")
    context.success(f"Applications 'amqpd' are running on node '{context.node}'")


def _wait_s(context: Context) -> int:
    return WAIT_S if context.line.timeout_s is None else context.line.timeout_s


def _read_pid(context: Context, path: str, deadline: float) -> int:
    """Return the process of a pid file. An empty file is being written, one with an ended process is old.

    Raises: Failure if it has no number; ApiRefused (75).
    """
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
            if is_alive(int(text)):
                return int(text)
        _pause(context, deadline)


def _pause(context: Context, deadline: float) -> None:
    if time.monotonic() >= deadline:
        used = f"Timeout value used: {1000 * _wait_s(context)}"
        raise ApiRefused(TIMED_OUT, f"operation wait on node {context.node} timed out. {used}")
    time.sleep(POLL_S)


def _started(context: Context) -> bool:
    """Return whether the broker serves clients. Raises: ApiRefused for errors that do not end by waiting (77)."""
    context.client.timeout_s = 5.0
    try:
        return bool(context.client.get("/api/amqpd/app")["running"])
    except ApiRefused as error:
        if error.exit_code not in {UNAVAILABLE, TIMED_OUT}:
            raise
        context.client.close()
        return False


@_command(
    "Deletes vhosts, users, queues and messages, as before the first start",
    "",
    examples=(("reset", "after stop_app; keeps settings and the audit log"),),
)
def reset(context: Context) -> None:
    context.info(f"Resetting node {context.node} ...")
    context.no_timeout()
    context.change("POST", "/api/amqpd/reset")


force_reset = reset._replace(
    summary="Deletes everything, as reset does",
    own_name="force_reset",
    examples=(("force_reset", "after stop_app"),),
)
