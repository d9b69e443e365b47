"""State of the broker process, for `amqpctl`: environment, event stream, log, status, threads.

**Environment**: settings, environment variables, command line, host names, interfaces, TLS ciphers, memory.

**Events** (`consume_event_stream`): the events of the exchange amq.rabbitmq.event (`broker/events.py`), which does
not need to exist. A client polls, each time from the end of the last answer, so a slow client costs the broker
nothing. The first request starts recording. The last COUNT_MAX events are kept; recording ends IDLE_S after the
last request.

**Log**: level, rotation, location and the last lines. Only a log file can be read; standard error cannot.

**Status**: our keys, and those of `rabbitmqctl status --formatter json`, which scripts read. Values of Erlang's
runtime are those of Python if it has such a thing, otherwise 0 or empty.

**Threads** (`runtime_thread_stats`, `maybe_stuck`): processor time, state in the kernel, and Python functions.
Clients ask several times and compare. Source: proc(5), /proc/self/task/*/stat.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import platform
import re
import socket
import ssl
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from amqpd import __version__
from amqpd._build import is_compiled
from amqpd.broker.events import Event, Events
from amqpd.config import rows, value_of
from amqpd.config.help import MASK, masked, shown
from amqpd.logging_config import LogOutput
from amqpd.management.listing import amqp_to_json
from amqpd.management.overview import THREADS_MAX, clock_state, count_objects, failed_logs, listeners, memory_by_use
from amqpd.management.request import (
    NO_CONTENT,
    ApiError,
    ApiRequest,
    ApiResponse,
    BadRequest,
    ResourceNotFound,
    Role,
    parse_int,
    reply,
)
from amqpd.management.router import ApiRoute
from amqpd.management.time_slice import TimeSlice
from amqpd.process import disk_free_bytes, process
from amqpd.tls import choose_ciphers

if TYPE_CHECKING:
    from amqpd.broker.queue.queue import Queue
    from amqpd.broker.vhost.recovery import RecoveryReport
    from amqpd.config.schema import LimitSettings
    from amqpd.process import ProcessStats


FAMILIES: Final = {"ipv4": socket.AF_INET, "ipv6": socket.AF_INET6, "any": socket.AF_UNSPEC}
RESOLVE_S: Final = 10.0
_SIOCGIFADDR: Final = 0x8915
_SECRET: Final = re.compile(r"PASS|SECRET|COOKIE|TOKEN|__URL$", re.IGNORECASE)
_IN_URI: Final = re.compile(r"(://[^:/@\s]*:)[^/@\s]*@")


async def environment(call: ApiRequest) -> ApiResponse:
    """Return all settings of this process; secrets are masked."""
    found: dict[str, Any] = {}
    for row in rows():
        value = value_of(call.server.current_settings if row.reloaded else call.broker.settings, row.name)
        if row.secret:
            found[row.name] = masked(row.name, shown(value))
        else:
            found[row.name] = value if isinstance(value, bool | int | float) else shown(value)
    return reply(found)


async def os_environment(call: ApiRequest) -> ApiResponse:
    """Return the environment variables `AMQPD_*` and `RABBITMQ_*`; secrets are masked."""
    found = {
        name: MASK if _SECRET.search(name) and value else value
        for name, value in sorted(os.environ.items())
        if name.startswith(("AMQPD_", "RABBITMQ_"))
    }
    return reply(found)


async def command_line(call: ApiRequest) -> ApiResponse:
    """Return the command line of the broker; secrets in options and URLs are masked."""
    found: list[str] = []
    for argument in sys.argv:
        name, equals, value = argument.partition("=")
        follows = bool(found) and "=" not in found[-1] and _is_secret(found[-1])
        if follows or (equals and _is_secret(name)):
            argument = MASK if follows else f"{name}={MASK if value else ''}"
        found.append(_IN_URI.sub(rf"\1{MASK}@", argument))
    return reply(found)


def _is_secret(option: str) -> bool:
    return option in {row.option for row in rows() if row.secret}


async def resolve(call: ApiRequest) -> ApiResponse:
    """Resolve the name `host` on this machine, in `family` (ipv4, ipv6, any)."""
    host, family = call.query.get("host", ""), call.query.get("family", "ipv4").lower()
    if not host or family not in FAMILIES:
        raise BadRequest(f"expected host, and family: one of {', '.join(FAMILIES)}")
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_S):
            found = await loop.getaddrinfo(host, None, family=FAMILIES[family], type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TimeoutError) as error:
        raise ResourceNotFound(f"Hostname does not resolve ({error})") from None
    return reply(list(dict.fromkeys(str(each[4][0]) for each in found)))


async def interfaces(call: ApiRequest) -> ApiResponse:
    """List the network interfaces of the machine.

    Hardware address, MTU, state and addresses. Most of it is from Linux' /sys.
    """
    found: dict[str, Any] = {}
    for _, name in socket.if_nameindex():
        about = Path("/sys/class/net", name)
        found[name] = {
            "hwaddr": _read(about / "address"),
            "mtu": _read(about / "mtu"),
            "flags": _read(about / "operstate"),
            "addr": _addresses(name),
        }
    return reply(found)


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii").strip()
    except OSError:
        return ""


def _addresses(name: str) -> list[str]:
    """Return the addresses of an interface: IPv4 by SIOCGIFADDR, IPv6 from /proc/net/if_inet6."""
    addresses = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            answer = fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            addresses.append(socket.inet_ntoa(answer[20:24]))
        except OSError:  # no IPv4 address
            pass
    for line in _read(Path("/proc/net/if_inet6")).splitlines():
        words = line.split()
        if words[-1] == name:
            addresses.append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(words[0])))
    return addresses


async def tls(call: ApiRequest) -> ApiResponse:
    """Return the TLS versions and cipher suites that a listener for AMQP offers.

    They follow from OpenSSL, the minimum version 1.2 and the setting amqp.tls.ciphers.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    choose_ciphers(context, call.broker.settings.amqp.tls.ciphers, "amqp.tls.ciphers")
    newest, oldest = context.maximum_version, context.minimum_version
    enabled = (("tlsv1.3", newest != ssl.TLSVersion.TLSv1_2), ("tlsv1.2", oldest != ssl.TLSVersion.TLSv1_3))
    versions = [name for name, is_enabled in enabled if is_enabled]
    # OpenSSL also lists suites of disabled versions. Suites older than 1.3 have the names of older protocols.
    version_of = {True: "tlsv1.3", False: "tlsv1.2"}
    suites = [_suite(each) for each in context.get_ciphers() if version_of[each["protocol"] == "TLSv1.3"] in versions]
    context.set_ciphers("ALL:COMPLEMENTOFALL:@SECLEVEL=0")
    every = [_suite(each) for each in context.get_ciphers()]
    return reply(
        {"versions": versions, "ciphers": [each["name"] for each in suites], "suites": suites, "all_suites": every}
    )


def _suite(about: Mapping[str, Any]) -> dict[str, str]:
    """Return one of OpenSSL's cipher suites, with its parts under Erlang's names."""
    exchange, login = (str(about[key]).partition("-")[2].replace("-", "_") for key in ("kea", "auth"))
    ends = about["name"].rpartition("SHA")[2] if "SHA" in about["name"] else ""
    return {
        "name": about["name"],
        "cipher": str(about["symmetric"] or "null").replace("-", "_"),
        "key_exchange": exchange if exchange in ("any", "rsa", "psk", "srp") else f"{exchange}_{login}",
        "mac": "aead" if about["aead"] else str(about["digest"] or "null"),
        "prf": f"sha{ends}" if ends in ("256", "384") else "default_prf",
    }


async def memory(call: ApiRequest) -> ApiResponse:
    """Return the resident memory, by use."""
    found = memory_by_use(call)
    return reply({**found, "total": {"rss": sum(found.values())}, "strategy": "rss"})


COUNT_MAX: Final = 10_000
ANSWER_MAX: Final = 500
IDLE_S: Final = 30.0


class EventRecorder:
    """A recorder of the broker's events.

    Attributes:
        end: number of events recorded so far; the position behind the last one.
    """

    def __init__(self, events: Events) -> None:
        self.end = 0
        self._events = events
        self._kept: deque[Event] = deque(maxlen=COUNT_MAX)
        self._asked_at = time.monotonic()
        events.watch(self)

    def on_event(self, event: Event) -> None:
        """Record an event, or stop recording if no client has asked for IDLE_S. Cost: one append."""
        if time.monotonic() - self._asked_at > IDLE_S:
            self._events.watch(None)
            self._kept.clear()
            return
        self.end += 1
        self._kept.append(event)

    def events_since(self, position: int) -> tuple[int, list[Event]]:
        """Return the position of the next request, and the events from `position`, at most ANSWER_MAX.

        Events that are no longer kept are skipped.
        """
        self._asked_at = time.monotonic()
        first = self.end - len(self._kept)
        start = max(position, first)
        found = list(islice(self._kept, start - first, start - first + ANSWER_MAX))
        return start + len(found), found


async def get_events(call: ApiRequest) -> ApiResponse:
    """Return the events since `position`.

    Without a position, or with one from before the last start, return only the position at which to begin.
    """
    events = call.broker.catalogue.events
    watch = events.watcher
    if not isinstance(watch, EventRecorder):
        watch = EventRecorder(events)
    position = parse_int("position", call.query.get("position", str(watch.end)), 0, 1 << 62)
    lost = max(0, watch.end - COUNT_MAX - position)
    position, found = watch.events_since(min(position, watch.end))
    items: list[dict[str, Any]] = [{"event": each.key, **amqp_to_json(each.headers)} for each in found]
    return reply({"position": position, "lost": lost, "events": items})


log = logging.getLogger(__name__)

LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
    "none": logging.CRITICAL + 10,
}
READ_BYTES_MAX: Final = 1 << 20
LINES_MAX: Final = 10_000


class CannotOpen(ApiError, error="cannot_open"):
    """rotate_logs cannot open the file. The log continues in the old file."""


def level_name() -> str:
    """Return the current log level, which can differ from the setting."""
    now = logging.getLogger().level
    return next((name for name, level in LEVELS.items() if level >= now), "none")


def log_file() -> Path | None:
    """Return the path of the log file, None for standard error."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, LogOutput):
            return handler.path
    return None


async def set_level(call: ApiRequest) -> ApiResponse:
    """Set the log level until the next start or SIGHUP."""
    level = call.text("level")
    if level not in LEVELS:
        raise BadRequest(f"level {level} is not supported. Try one of {', '.join(LEVELS)}")
    logging.getLogger().setLevel(LEVELS[level])
    log.info("the log level is now %s", level)
    return NO_CONTENT


async def rotate(call: ApiRequest) -> ApiResponse:
    """Reopen the log file, as SIGUSR1 does.

    A log rotation tool has renamed the old file before; this creates a new one under the old name.
    """
    path = log_file()
    for handler in logging.getLogger().handlers:
        if isinstance(handler, LogOutput) and path is not None:
            try:
                handler.reopen()
            except OSError as error:
                raise CannotOpen(f"{error}; the log continues in the old file") from error
    return reply({"file": str(path) if path is not None else None})


async def location(call: ApiRequest) -> ApiResponse:
    """Return the path of the log file, and the log level."""
    path = log_file()
    return reply({"file": str(path.absolute()) if path is not None else None, "level": level_name()})


async def tail(call: ApiRequest) -> ApiResponse:
    """Return the last `lines` lines of the log, or the lines since `position`; at most the last READ_BYTES_MAX bytes.

    A client passes the answer's `position` in its next request. A file that was rotated meanwhile is read from its
    start.
    """
    path = log_file()
    if path is None:
        raise ResourceNotFound("the log is written to standard error, not to a file (log.file)")
    lines = parse_int("lines", call.query.get("lines", "0"), 0, LINES_MAX)
    position = parse_int("position", call.query.get("position", "0"), 0, 1 << 62)
    try:
        text, end = await asyncio.to_thread(_read_log, path, position, lines)
    except OSError as error:
        raise ResourceNotFound(f"{path}: {error.strerror}") from None
    return reply({"text": text, "position": end})


def _read_log(path: Path, position: int, lines: int) -> tuple[str, int]:
    """Return whole lines, and the position behind them. Raises: OSError."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        first = 0 if lines or position > size else position
        file.seek(max(first, size - READ_BYTES_MAX))
        data = file.read(READ_BYTES_MAX)
    end = data.rfind(b"\n") + 1
    start = max(first, size - READ_BYTES_MAX)
    data = data[data.find(b"\n") + 1 if start > first else 0 : end]
    if lines:
        data = b"".join(data.splitlines(keepends=True)[-lines:])
    return data.decode("utf-8", "backslashreplace"), start + end


_PURPOSES: Final = {
    "amqp": "AMQP 0-9-1",
    "amqp/ssl": "AMQP 0-9-1 over TLS",
    "http": "HTTP API",
    "https": "HTTPS API",
    "http/prometheus": "Prometheus exporter API over HTTP",
}
_CATEGORIES: Final = (
    "allocated_unused", "atom", "binary", "code", "connection_channels", "connection_other", "connection_readers",
    "connection_writers", "metrics", "mgmt_db", "mnesia", "msg_index", "other_ets", "other_proc", "other_system",
    "plugins", "queue_procs", "queue_slave_procs", "quorum_ets", "quorum_queue_dlx_procs", "quorum_queue_procs",
    "reserved_unallocated", "stream_queue_coordinator_procs", "stream_queue_procs", "stream_queue_replica_reader_procs",
)  # fmt: skip
"""RabbitMQ's categories of memory. Those that do not exist here are 0."""


def version_item() -> dict[str, Any]:
    return {
        "product": "amqpd",
        "version": __version__,
        "build": "compiled" if is_compiled() else "interpreted",
        "python": platform.python_version(),
    }


async def app(call: ApiRequest) -> ApiResponse:
    """Return whether clients can connect. Cost: none, so clients can poll it."""
    return reply({"running": call.server.app_running, "node": call.node})


async def status(call: ApiRequest) -> ApiResponse:
    """Return listeners, memory, disk, totals and alarms. `totals=false` omits the totals, which cost a
    step per queue.
    """
    stats = process()
    failed = await failed_logs(call, TimeSlice())
    found = {**_own_status(call, failed), **_rabbitmq_status(call, stats)}
    if call.query.get("totals") != "false":
        found["totals"] = await _totals(call)
    return reply(found)


async def _totals(call: ApiRequest) -> dict[str, int]:
    vhosts = list(call.broker.vhosts.values())
    totals = await count_objects(call, vhosts)
    totals["bindings"] = sum(len(exchange.bindings) for vhost in vhosts for exchange in vhost.exchanges.values())
    totals["virtual_hosts"] = len(vhosts)
    totals["users"] = len(call.broker.auth.users())
    totals["connection_count"] = totals["connections"]
    totals["queue_count"] = totals["queues"]
    totals["virtual_host_count"] = len(vhosts)
    return totals


def _own_status(call: ApiRequest, failed: list[Queue]) -> dict[str, Any]:
    broker = call.broker
    path = log_file()
    return {
        "node": call.node,
        **version_item(),
        "pid": os.getpid(),
        "uptime_ms": int(broker.uptime_s() * 1000),
        "os": f"{platform.system()} {platform.release()}",
        "data_dir": str(broker.settings.data_dir),
        "log_level": level_name(),
        "log_file": str(path) if path is not None else None,
        "app_running": call.server.app_running,
        "listeners": [
            {
                **each,
                "interface": f"[{each['ip_address']}]" if ":" in each["ip_address"] else each["ip_address"] or "[::]",
                "purpose": _PURPOSES.get(each["protocol"], each["protocol"]),
            }
            for each in listeners(call)
        ],
        "alarms": [
            *broker.alarms.raised.values(),
            *(f"the log of queue '{each.name}' in vhost '{each.vhost_name}' failed" for each in failed),
        ],
        "alarms_by_hand": sorted(broker.alarms.raised_by_hand),
        "clock": clock_state(call),
        "disk_free_limit_bytes": broker.alarms.disk_free_limit_bytes,
        "disk_free_bytes": disk_free_bytes(broker.settings.data_dir),
        "unsynced_bytes": broker.storage.commits.unsynced_bytes,
        "restored": _restored(broker.start_report),
    }


def _rabbitmq_status(call: ApiRequest, stats: ProcessStats) -> dict[str, Any]:
    broker = call.broker
    settings = broker.settings
    sockets = len(call.server.connections.by_name)
    return {
        "product_name": settings.product[0],
        "product_version": settings.product[1],
        "rabbitmq_version": settings.product[1],
        "release_series_support_status": "supported",
        "erlang_version": f"Python {platform.python_version()}",
        "crypto_lib_version": ssl.OPENSSL_VERSION,
        "uptime": int(broker.uptime_s()),
        "is_under_maintenance": call.server.is_drained,
        "processes": {"used": threading.active_count(), "limit": int(THREADS_MAX.read_text("ascii"))},
        "run_queue": 0,
        "net_ticktime": 0,
        "vm_memory_calculation_strategy": "rss",
        "vm_memory_high_watermark_setting": _memory_setting(call.server.current_settings.limits),
        "vm_memory_high_watermark_limit": broker.alarms.memory_limit_bytes,
        "memory": {
            "rss_bytes": stats.rss_bytes,
            "limit_bytes": broker.alarms.memory_limit_bytes,
            **dict.fromkeys(_CATEGORIES, 0),
            **memory_by_use(call),
            "strategy": "rss",
            "total": {"allocated": stats.rss_bytes, "erlang": 0, "rss": stats.rss_bytes},
        },
        "disk_free": disk_free_bytes(settings.data_dir),
        "disk_free_limit": broker.alarms.disk_free_limit_bytes,
        "file_descriptors": {
            "used": stats.fd_count,
            "limit": stats.fd_limit,
            "total_used": stats.fd_count,
            "total_limit": stats.fd_limit,
            "sockets_used": sockets,
            "sockets_limit": stats.fd_limit,
        },
        "config_files": [],
        "data_directory": str(settings.data_dir),
        "raft_data_directory": str(settings.data_dir),
        "enabled_plugin_file": "",
        "active_plugins": [],
        "log_files": [str(path) if (path := log_file()) is not None else "<stderr>"],
        "totals": {},
    }


def _memory_setting(limits: LimitSettings) -> dict[str, float]:
    if limits.memory_bytes:
        return {"absolute": limits.memory_bytes}
    return {"relative": limits.memory_high_watermark}


def _restored(report: RecoveryReport) -> dict[str, Any]:
    """Return the objects that this start repaired or set aside: see amqpd/broker/vhost/recovery.py."""
    return {
        "vhosts": report.vhosts,
        "queues": [{"vhost": each.vhost, "name": each.name, "arguments_known": each.whole} for each in report.queues],
        "set_aside": [{"path": path, "reason": reason} for path, reason in report.set_aside],
    }


TASKS: Final = Path("/proc/self/task")
TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
FRAMES_MAX: Final = 3


async def get_threads(_call: ApiRequest) -> ApiResponse:
    """List the threads of the process, with their processor time.

    `user_s` and `system_s` count from the start of the thread. `state` is the kernel's letter: R runs, S sleeps, D
    waits for a disk. `at` has the innermost Python functions, the current one first; it is empty for other threads.
    """
    named = {thread.native_id: thread for thread in threading.enumerate()}
    frames = sys._current_frames()  # the only way to see the functions of other threads
    found: list[dict[str, Any]] = []
    for task in sorted(TASKS.iterdir(), key=lambda path: int(path.name)):
        try:
            # The name is in parentheses, because it can contain spaces.
            name, _, rest = (task / "stat").read_text("utf-8", "replace").partition("(")[2].rpartition(")")
        except OSError:  # the thread has ended
            continue
        words = rest.split()
        thread = named.get(int(task.name))
        frame = frames.get(thread.ident) if thread is not None and thread.ident is not None else None
        at: list[str] = []
        while frame is not None and len(at) < FRAMES_MAX:
            at.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
            frame = frame.f_back
        found.append(
            {
                "id": int(task.name),
                "name": thread.name if thread is not None else name,
                "state": words[0],
                "user_s": round(int(words[11]) * TICK_S, 3),
                "system_s": round(int(words[12]) * TICK_S, 3),
                "at": at,
            }
        )
    return reply(found)


ROUTES: Final = (
    ApiRoute("GET", "api/amqpd/environment", Role.ADMINISTRATOR, environment),
    ApiRoute("GET", "api/amqpd/os_env", Role.ADMINISTRATOR, os_environment),
    ApiRoute("GET", "api/amqpd/command_line", Role.ADMINISTRATOR, command_line),
    ApiRoute("GET", "api/amqpd/resolve", Role.ADMINISTRATOR, resolve),
    ApiRoute("GET", "api/amqpd/interfaces", Role.MONITORING, interfaces),
    ApiRoute("GET", "api/amqpd/tls", Role.MONITORING, tls),
    ApiRoute("GET", "api/amqpd/memory", Role.MONITORING, memory),
    ApiRoute("GET", "api/amqpd/events", Role.ADMINISTRATOR, get_events),
    ApiRoute("PUT", "api/amqpd/log_level", Role.ADMINISTRATOR, set_level),
    ApiRoute("POST", "api/amqpd/rotate_logs", Role.ADMINISTRATOR, rotate),
    ApiRoute("GET", "api/amqpd/log_location", Role.MONITORING, location),
    ApiRoute("GET", "api/amqpd/log_tail", Role.ADMINISTRATOR, tail),
    ApiRoute("GET", "api/amqpd/app", Role.MANAGEMENT, app),
    ApiRoute("GET", "api/amqpd/status", Role.MONITORING, status),
    ApiRoute("GET", "api/amqpd/threads", Role.ADMINISTRATOR, get_threads),
)
