"""Diagnostics: versions, settings, names, log, memory, logins, threads; the audit log, the firehose and events.

Texts are rabbitmqctl 3.10's, measured. Exit code 65 for the firehose of a missing vhost, where rabbitmqctl reports
success.
"""

from __future__ import annotations

import re
import time
from datetime import datetime
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode

from amqpd.cli.client import quoted
from amqpd.cli.command import CONFIGURATION, MONITORING, Context, command
from amqpd.cli.errors import DATA, UNAVAILABLE, Failure, UsageError, VhostNotFound
from amqpd.cli.formatters import BY_NAME, compact
from amqpd.cli.listings import Item, Listing, plain, value, wanted
from amqpd.cli.nodes import UNITS
from amqpd.cli.terminal import bold

LEVELS: Final = ("debug", "info", "warning", "error", "critical", "none")
FOLLOW_S: Final = 0.25


PATH: Final = "/api/audit"
SHOWN_COUNT: Final = 100
"""Number of records without --since and --limit."""
RECORDS: Final = Listing(
    PATH,
    ("time", "event", "vhost", "name", "user", "peer", "result", "count", "reason"),
    plain(
        "time", "event", "vhost", "name", "user", "peer", "result", "count", "reason", "front_end", "connection",
        "details", "offset",
    ),
)  # fmt: skip
_command = partial(command, CONFIGURATION)
_monitoring = partial(command, MONITORING, needs_app=False)


@_monitoring("Displays the broker's version", examples=(("-q server_version", "only the version"),))
def server_version(context: Context) -> None:
    context.info(f"Asking node {context.node} for its version...")
    version = context.client.get("/api/amqpd/version")["version"]
    context.answer({"result": "ok", "value": version}, version)


@_monitoring(
    "Displays the version of the broker's runtime, Python",
    examples=(("erlang_version", "also whether the hot modules are compiled"),),
)
def erlang_version(context: Context) -> None:
    """Show Python's version, the runtime of this broker."""
    context.info(f"Asking node {context.node} for the version of its runtime...")
    found = context.client.get("/api/amqpd/version")
    text = f"Python {found['python']} ({found['build']})"
    context.answer({"result": "ok", "value": text}, text)


@_command(
    "Displays every setting of the broker",
    examples=(("environment --formatter json", "for programs; secrets are hidden"),),
    needs_app=False,
)
def environment(context: Context) -> None:
    context.info(f"Application environment of node {context.node} ...")
    found = context.client.get("/api/amqpd/environment")
    context.answer({"amqpd": found}, "\n".join(f"{name} = {_plain(value)}" for name, value in found.items()))


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value}"


@_command(
    "Displays the environment variables that configure the broker",
    examples=(("os_env", "AMQPD_ and RABBITMQ_ variables; secrets are hidden"),),
)
def os_env(context: Context) -> None:
    context.info(f"Listing variables that configure amqpd, defined on node {context.node}...")
    found = context.client.get("/api/amqpd/os_env")
    result = {"node": context.node, "result": "ok", "variables": found}
    context.answer(result, "\n".join(f"{name}={value}" for name, value in found.items()))


@_command(
    "Displays the command line of the broker's process",
    examples=(("command_line_arguments", "one argument per line; secrets are hidden"),),
    needs_app=False,
)
def command_line_arguments(context: Context) -> None:
    context.info(f"Command line arguments of node {context.node} ...")
    found = context.client.get("/api/amqpd/command_line")
    context.answer(found, "\n".join(found))


@_monitoring(
    "Displays the use of the broker's memory",
    "[--unit] [--timeout <timeout>]",
    examples=(("memory_breakdown --unit mb", "the parts that the broker can measure"),),
    needs_app=True,
)
def memory_breakdown(context: Context) -> None:
    unit = context.line.given.get("unit", "gb")
    if unit.lower() not in UNITS:
        raise UsageError(f"\"unit '{unit}' is not supported. Please use one of: bytes, mb, gb\"")
    context.info(f"Reporting memory breakdown on node {context.node}...")
    found = context.client.get("/api/amqpd/memory")
    total = found["total"]["rss"]
    sizes = {name: size for name, size in found.items() if name not in {"total", "strategy"}}
    result = {
        name: {"bytes": size, "percentage": round(100 * size / total, 2)}
        for name, size in sorted(sizes.items(), key=lambda pair: -pair[1])
    }
    lines = [
        f"{name}: {one['bytes'] if unit.lower() == 'bytes' else round(one['bytes'] / UNITS[unit.lower()], 4)} {unit} "
        f"({one['percentage']}%)"
        for name, one in result.items()
    ]
    context.answer(result, "\n".join(lines))


@_command(
    "Resolves a host name on the broker's machine",
    "[--address-family] <hostname> [--timeout <timeout>]",
    (("<hostname>", "a host name"),),
    examples=(
        ("resolve_hostname db.example --address-family any", "one address per line; exit code 65 if there is none"),
    ),
    needs_app=False,
)
def resolve_hostname(context: Context) -> None:
    host = context.operands[0]
    family = context.line.given.get("address-family", "ipv4").lower()
    names = {"ipv4": "IPv4", "ipv6": "IPv6", "any": "any"}
    if family not in names:
        raise UsageError(f"Bad argument: address family is one of {', '.join(names)}", DATA)
    context.info(f"Asking node {context.node} to resolve hostname {host} to {names[family]} addresses...")
    answer = context.client.send("GET", f"/api/amqpd/resolve?host={quoted(host)}&family={family}")
    if answer.status == 404:
        raise Failure(DATA, answer.reason)
    found = answer.checked().data
    result = {
        "address_family": names[family], "addresses": found, "hostname": host, "node": context.node, "result": "ok",
    }  # fmt: skip
    context.answer(result, "\n".join(found))


@_command(
    "Displays how the broker's machine resolves host names",
    examples=(("resolver_info", "order of look-ups, files"),),
    needs_app=False,
)
def resolver_info(context: Context) -> None:
    context.info(f"Asking node {context.node} for its effective hostname resolver configuration...")
    context.client.get("/api/amqpd/ping")
    result = {"lookup": ["native"], "hosts_file": "/etc/hosts", "resolv_conf": "/etc/resolv.conf"}
    lines = ["Lookup order: native", "Hosts file: /etc/hosts", "Resolver conf file: /etc/resolv.conf"]
    context.answer(result, "\n".join([bold("Runtime Hostname Resolver Settings", context.out), "", *lines]))


@_monitoring(
    "Displays the network interfaces of the broker's machine",
    examples=(("list_network_interfaces", "their addresses"),),
)
def list_network_interfaces(context: Context) -> None:
    context.info(f"Asking node {context.node} to report its network interfaces ...")
    found = context.client.get("/api/amqpd/interfaces")
    lines: list[str] = []
    for name, about in found.items():
        lines += [bold(f"Interface {name}", context.out), ""]
        for key, shown in about.items():
            lines += [f"{key}: {each}" for each in (shown if isinstance(shown, list) else [shown])]
        lines.append("")
    result = {"result": "ok", "message": f"Node {context.node} reported network interfaces", "interfaces": found}
    context.answer(result, "\n".join(lines))


# -- the log -----------------------------------------------------------------------------------------------------------


@_command(
    "Sets the log level of the running broker",
    details=(("<log_level>", f"one of {', '.join(LEVELS)}"),),
    examples=(("set_log_level debug", "until the next start; the setting log.level is permanent"),),
)
def set_log_level(context: Context) -> None:
    level = context.operands[0]
    if level not in LEVELS:
        raise Failure(UNAVAILABLE, f"level {level} is not supported. Try one of {', '.join(LEVELS)}")
    context.info(f'Setting log level to "{level}" ...')
    context.change("PUT", "/api/amqpd/log_level", {"level": level})


@command(
    "Nodes", "Reopens the log file after it was renamed", examples=(("rotate_logs", "SIGUSR1 has the same effect"),)
)
def rotate_logs(context: Context) -> None:
    """Reopen the log file. rabbitmqctl's command does nothing and ends with 69."""
    context.info(f"Reopening logs for node {context.node} ...")
    found = context.client.send("POST", "/api/amqpd/rotate_logs").checked().data
    if found["file"] is None:
        context.warn("The log goes to standard error: there is no file to reopen (log.file)")
    context.success()


@_command(
    "Displays the place of the broker's log",
    examples=(("log_location", "<stderr>, or the file in log.file"),),
    needs_app=False,
)
def log_location(context: Context) -> None:
    context.info(f"Log file location(s) on node {context.node} ...")
    path = context.client.get("/api/amqpd/log_location")["file"] or "<stderr>"
    context.answer({"result": "ok", "node_name": context.node, "paths": [path]}, path)


@_monitoring(
    "Displays the last lines of the log file",
    "[--number] [--timeout <timeout>]",
    examples=(("log_tail -N 100", "the last 100 lines"),),
)
def log_tail(context: Context) -> None:
    count = context.line.number("number") if "number" in context.line.given else 50
    context.info(f"Last {count} log lines on node {context.node} ...")
    found = context.client.send("GET", f"/api/amqpd/log_tail?lines={count}").checked().data
    lines = found["text"].splitlines() if count else []
    context.answer(lines, "\n".join(lines))


@_monitoring(
    "Displays new lines of the log file",
    "[--duration] [--timeout <timeout>]",
    examples=(("log_tail_stream --duration 60", "for a minute"),),
)
def log_tail_stream(context: Context) -> None:
    """Poll the log. A slow or stopped reader costs the broker nothing."""
    seconds = context.line.number("duration") if "duration" in context.line.given else None
    span = "" if seconds is None else f" for {seconds} seconds"
    context.info(f"Streaming logs from node {context.node}{span} ...")
    deadline = None if seconds is None else time.monotonic() + seconds
    position = context.client.send("GET", "/api/amqpd/log_tail?lines=1").checked().data["position"]
    while deadline is None or time.monotonic() < deadline:
        found = context.client.send("GET", f"/api/amqpd/log_tail?position={position}").checked().data
        position = found["position"]
        context.out.write(found["text"])
        context.out.flush()
        time.sleep(FOLLOW_S)


# -- logins ------------------------------------------------------------------------------------------------------------


@_monitoring(
    "Lists the numbers of logins that were tried, succeeded and failed",
    "[--by-source] [--timeout <timeout>]",
    examples=(("list_node_auth_attempt_stats --by-source", "by address, user and protocol, if that is enabled"),),
    needs_app=True,
)
def list_node_auth_attempt_stats(context: Context) -> None:
    context.info(f'Listing authentication attempts for node "{context.node}" ...')
    by_source = "by-source" in context.line.given
    # The API needs the node's own name; --node can be another one.
    node = quoted(context.client.get("/api/amqpd/app")["node"])
    found = context.client.get(f"/api/auth/attempts/{node}{'/source' if by_source else ''}")
    if context.line.formatter in {"json", "erlang"}:
        context.answer({"result": "ok", "node": context.node, "attempts": found}, "")
        return
    if not found:
        context.out.write(f"Node {context.node} reported no authentication attempt stats\n")
        return
    counts = ("protocol", "auth_attempts", "auth_attempts_failed", "auth_attempts_succeeded")
    columns = ("remote_address", "username", *counts) if by_source else counts
    context.show(columns, [[each[name] for name in columns] for each in found])


@_command("Resets the numbers of logins to 0", examples=(("reset_node_auth_attempt_metrics", "also those by source"),))
def reset_node_auth_attempt_metrics(context: Context) -> None:
    context.info(f"Reset auth attempt metrics on node {context.node} ...")
    node = quoted(context.client.get("/api/amqpd/app")["node"])
    context.change("DELETE", f"/api/auth/attempts/{node}")


@_command(
    "Counts logins by address and user", examples=(("enable_auth_attempt_source_tracking", "until the next start"),)
)
def enable_auth_attempt_source_tracking(context: Context) -> None:
    _track_sources(context, True)


@_command(
    "Counts logins only by protocol",
    examples=(("disable_auth_attempt_source_tracking", "the state after a start"),),
)
def disable_auth_attempt_source_tracking(context: Context) -> None:
    _track_sources(context, False)


def _track_sources(context: Context, on: bool) -> None:
    context.info(f"{'Enabling' if on else 'Disabling'} authentication attempt source tracking ...")
    context.change("PUT", "/api/amqpd/auth_attempt_sources", {"on": on})


@_monitoring(
    "Displays status, settings and all lists, for a support request",
    examples=(("report", "everything, on standard output"),),
    needs_app=True,
)
def report(context: Context) -> None:
    """Run status, cluster_status, environment and every list, as rabbitmqctl does."""
    context.info(f"Reporting server status of node {context.node} ...\n")
    names = ["status", "cluster_status", "environment", "list_connections", "list_channels"]
    for name in names:
        _part(context, name, "/")
    for vhost in context.client.get("/api/vhosts?columns=name"):
        for name in ("list_queues", "list_exchanges", "list_bindings", "list_consumers", "list_permissions",
                     "list_policies", "list_global_parameters", "list_parameters"):  # fmt: skip
            _part(context, name, vhost["name"])


def _part(context: Context, name: str, vhost: str) -> None:
    line = context.line._replace(command=name, operands=[], given={**context.line.given, "vhost": vhost})
    command = context.commands[name]
    try:
        command.run(context.with_line(line))
    except VhostNotFound:
        context.warn(f"vhost '{vhost}' was deleted meanwhile")
    context.out.write("\n")


PAGE_COUNT: Final = 500
AUDIT_FOLLOW_S: Final = 1.0


@command(
    "Logs",
    "Shows logins, declarations, deletions and other changes, with user, address and result",
    "[--since <time>] [--until <time>] [--where <SQL>] [--limit <number>] [--follow] [--no-table-headers] "
    "[<column> ...]",
    columns=RECORDS.names(),
    shown=len(RECORDS.default),
    examples=(
        ("audit_log", f"the last {SHOWN_COUNT} records"),
        ("audit_log --where \"event = 'queue.deleted' AND name = 'orders'\"", "the user that deleted it"),
        ("audit_log --since 2026-11-22T08:00:00 --formatter json", "all records since a time, as JSON"),
        ("audit_log --follow", "the last records and new ones, until Ctrl-C"),
    ),
    needs_app=False,
)
def audit_log(context: Context) -> None:
    columns = wanted(RECORDS, context.operands)
    given = context.line.given
    follow: bool = "follow" in given
    if follow and context.line.formatter == "json" and not context.line.stream:
        raise UsageError("--follow has no end, so --formatter json is not possible: use json_stream or csv")
    query: dict[str, object] = {each: given[each] for each in ("since", "until", "where") if each in given}
    left = context.line.number("limit")
    if "since" not in given and "where" not in given:
        query["last"] = left or SHOWN_COUNT
    context.info("Audit log ...")
    rows: list[list[Any]] = []
    shown = False
    try:
        while True:
            count = min(left, PAGE_COUNT) if left else PAGE_COUNT
            path = f"{PATH}?{urlencode({**query, 'count': count})}"
            found = context.client.send("GET", path).accepted().data
            items: list[Item] = found["records"]
            rows += [[value(item, RECORDS, name) for name in columns] for item in items]
            query = {each: it for each, it in query.items() if each not in ("since", "last")}
            query["offset"] = found["next_offset"]
            full = bool(left) and len(items) >= left
            left = max(0, left - len(items))
            over = full or found["ended"]
            if over and found["lost"]:
                context.warn(f"{found['lost']} records could not be written and are lost")
            if not follow:
                if over:
                    context.show(columns, rows)
                    return
                continue
            if rows:
                _show_more(context, columns, rows, first=not shown)
                rows, shown = [], True
            if full:
                return
            if over:
                time.sleep(AUDIT_FOLLOW_S)
    except KeyboardInterrupt:
        return


def _show_more(context: Context, columns: Any, rows: list[list[Any]], *, first: bool) -> None:
    """Write the next rows of a list; only the first have headings."""
    context.out.write(BY_NAME[context.line.formatter](columns, rows, context.line.headers and first))
    context.out.flush()


INTERVAL_S: Final = 5
INTERVAL_MAX_S: Final = 3600
ROUNDS: Final = 5
PAUSE_S: Final = 0.5
COLUMNS: Final = ("thread", "user", "system", "idle")


def _threads(context: Context) -> dict[int, dict[str, Any]]:
    return {each["id"]: each for each in context.client.get("/api/amqpd/threads")}


@_monitoring(
    "Displays the CPU use of each thread of the broker",
    "[--sample-interval <seconds>] [--no-table-headers] [--timeout <timeout>]",
    examples=(("runtime_thread_stats --sample-interval 10", "percent of 10 seconds"),),
)
def runtime_thread_stats(context: Context) -> None:
    """Show each thread's share of the interval in percent. A new thread counts from its start."""
    interval_s = context.line.number("sample-interval") if "sample-interval" in context.line.given else INTERVAL_S
    if not 0 < interval_s <= INTERVAL_MAX_S:
        raise UsageError(f"Invalid options for this command:\n--sample-interval : {interval_s}")
    context.info(f"Will collect runtime thread stats on {context.node} for {interval_s} seconds...")
    before, began = _threads(context), time.monotonic()
    time.sleep(interval_s)
    after, took_s = _threads(context), time.monotonic() - began
    rows = []
    for number, each in after.items():
        first = before.get(number, {"user_s": 0.0, "system_s": 0.0})
        user, system = (round(100 * max(0.0, each[name] - first[name]) / took_s, 2) for name in ("user_s", "system_s"))
        rows.append([each["name"], user, system, round(max(0.0, 100 - user - system), 2)])
    context.show(COLUMNS, rows)


@_monitoring(
    "Detects threads of the broker that make no progress",
    examples=(("maybe_stuck", "compares the threads for 2.5 seconds and shows their places in the code"),),
)
def maybe_stuck(context: Context) -> None:
    """Show threads that run, or wait for a disk, at the same place in every round.

    A thread that waits for work sleeps, and is not shown. rabbit: Erlang processes at the same place.
    """
    context.info(f"Asking node {context.node} to detect potentially stuck threads...")
    suspicious = {number: each for number, each in _threads(context).items() if each["state"] in ("R", "D")}
    _tell(context, f"There are {len(_threads(context))} threads.")
    for turn in range(ROUNDS, 0, -1):
        _tell(context, f"Investigated {len(suspicious)} threads this round, {int(turn * PAUSE_S * 1000)}ms to go.")
        time.sleep(PAUSE_S)
        now = _threads(context)
        suspicious = {
            number: each
            for number, each in suspicious.items()
            if number in now
            and now[number]["state"] == each["state"]
            and now[number]["at"] == each["at"] != []
            # The thread that answers this request is at the same place each time.
            and not any("get_threads" in place for place in each["at"])
        }
    _tell(context, f"Found {len(suspicious)} suspicious threads.")
    for each in suspicious.values():
        what = "waits for a disk" if each["state"] == "D" else "runs"
        context.out.write(f"{each['name']} {what} at {' < '.join(each['at'])}\n")


def _tell(context: Context, text: str) -> None:
    context.out.write(f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S} {text}\n")
    context.out.flush()


@command(
    "Virtual hosts",
    "Stops the firehose of a vhost",
    "[--vhost <vhost>]",
    examples=(("trace_off -p shop", "messages of vhost shop are no longer copied"),),
)
def trace_off(context: Context) -> None:
    _trace(context, False)


@command(
    "Virtual hosts",
    "Starts the firehose of a vhost: copies of published and delivered messages, until the next start",
    "[--vhost <vhost>]",
    examples=(("trace_on -p shop", "the exchange amq.rabbitmq.trace of vhost shop gets the copies"),),
)
def trace_on(context: Context) -> None:
    _trace(context, True)


def _trace(context: Context, on: bool) -> None:
    context.info(f'{"Starting" if on else "Stopping"} tracing for vhost "{context.vhost}" ...')
    message = f"Trace {'enabled' if on else 'disabled'} for vhost {context.vhost}"
    body = {"vhost": context.vhost, "on": on}
    context.change("POST", "/api/amqpd/trace", body, VhostNotFound(context.vhost), message)


@_monitoring(
    "Displays events of the broker as they occur, one JSON object per line",
    "[--duration <seconds>] [--pattern <pattern>]",
    examples=(("consume_event_stream --pattern '^queue' --duration 60", "created and deleted queues, for a minute"),),
    needs_app=True,
)
def consume_event_stream(context: Context) -> None:
    """Poll events and write a JSON object per line, with every --formatter (rabbit)."""
    given = context.line.given
    seconds = context.line.number("duration") if "duration" in given else None
    try:
        pattern = re.compile(given.get("pattern", ""))
    except re.error as error:
        raise UsageError(f"Invalid options for this command:\n--pattern : {error}") from None
    span = "" if seconds is None else f" for {seconds} seconds"
    context.warn(f"Streaming events from node {context.node}{span} ...")
    deadline = None if seconds is None else time.monotonic() + seconds
    position = context.client.get("/api/amqpd/events")["position"]
    while True:
        found = context.client.get(f"/api/amqpd/events?position={position}")
        position = found["position"]
        if found["lost"]:
            context.err.write(f"{found['lost']} events are missing: there were too many at once\n")
        for each in found["events"]:
            if pattern.search(each["event"]):
                context.out.write(compact(each) + "\n")
        context.out.flush()
        if deadline is not None and time.monotonic() >= deadline:
            return
        if not found["events"]:
            time.sleep(FOLLOW_S)
