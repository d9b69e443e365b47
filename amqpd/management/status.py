"""What `amqpctl status` shows: our own words, and beside them the keys of `rabbitmqctl status --formatter json`, which
scripts read. What RabbitMQ says of its runtime is said of ours where there is such a thing, and is 0 or empty else."""

from __future__ import annotations

import os
import platform
import ssl
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from amqpd import __version__
from amqpd._build import is_compiled
from amqpd.management.alarms import clock_state
from amqpd.management.request import Call, Reply, Role, reply
from amqpd.management.diagnostics import memory_by_use
from amqpd.management.health import failed_logs
from amqpd.management.overview import Totals, listeners
from amqpd.management.router import Route
from amqpd.management.server_log import level_name, log_file
from amqpd.metrics import disk_free_bytes, process

if TYPE_CHECKING:
    from amqpd.broker.vhost.recovery import Report
    from amqpd.metrics import Process
    from amqpd.config import LimitSettings

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
"""What RabbitMQ tells the memory of its runtime apart by; those without a meaning here are 0."""
_PID_MAX: Final = Path("/proc/sys/kernel/threads-max")


def version_item(call: Call) -> dict[str, Any]:
    return {
        "product": "amqpd",
        "version": __version__,
        "build": "compiled" if is_compiled() else "interpreted",
        "python": platform.python_version(),
    }


async def app(call: Call) -> Reply:
    """Whether clients can connect: what those ask who wait for it. Cost: none."""
    return reply({"running": call.server.app_running, "node": call.node})


async def status(call: Call) -> Reply:
    """Listeners, memory, disk, totals, alarms. `totals=false` in the query leaves out what costs a step per queue."""
    here = process()
    found = {**_ours(call, here), **_rabbits(call, here)}
    if call.query.get("totals") != "false":
        found["totals"] = await _totals(call)
    return reply(found)


async def _totals(call: Call) -> dict[str, int]:
    vhosts = list(call.broker.vhosts.values())
    totals = await Totals().count(call, vhosts)
    totals["bindings"] = sum(len(exchange.bindings) for vhost in vhosts for exchange in vhost.exchanges.values())
    totals["virtual_hosts"] = len(vhosts)
    totals["users"] = len(call.broker.auth.users())
    totals["connection_count"] = totals["connections"]
    totals["queue_count"] = totals["queues"]
    totals["virtual_host_count"] = len(vhosts)
    return totals


def _ours(call: Call, here: Process) -> dict[str, Any]:
    broker = call.broker
    path = log_file()
    return {
        "node": call.node,
        **version_item(call),
        "pid": os.getpid(),
        "uptime_ms": int((time.time() - broker.started_at) * 1000),
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
            *(f"the log of queue '{each.name}' in vhost '{each.vhost_name}' failed" for each in failed_logs(call)),
        ],
        "alarms_by_hand": sorted(broker.alarms.by_hand),
        "clock": clock_state(call),
        "disk_free_limit_bytes": broker.alarms.disk_free_limit_bytes,
        "disk_free_bytes": disk_free_bytes(broker.settings.data_dir),
        "unsynced_bytes": broker.storage.commits.unsynced_bytes,
        "restored": _restored(broker.start_report),
    }


def _rabbits(call: Call, here: Process) -> dict[str, Any]:
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
        "uptime": int(time.time() - broker.started_at),
        "is_under_maintenance": call.server.drained,
        "processes": {"used": threading.active_count(), "limit": int(_PID_MAX.read_text("ascii"))},
        "run_queue": 0,
        "net_ticktime": 0,
        "vm_memory_calculation_strategy": "rss",
        "vm_memory_high_watermark_setting": _memory_setting(call.server.latest.limits),
        "vm_memory_high_watermark_limit": broker.alarms.memory_limit_bytes,
        "memory": {
            "rss_bytes": here.rss_bytes,
            "limit_bytes": broker.alarms.memory_limit_bytes,
            **dict.fromkeys(_CATEGORIES, 0),
            **memory_by_use(call),
            "strategy": "rss",
            "total": {"allocated": here.rss_bytes, "erlang": 0, "rss": here.rss_bytes},
        },
        "disk_free": disk_free_bytes(settings.data_dir),
        "disk_free_limit": broker.alarms.disk_free_limit_bytes,
        "file_descriptors": {
            "used": here.fd_count,
            "limit": here.fd_limit,
            "total_used": here.fd_count,
            "total_limit": here.fd_limit,
            "sockets_used": sockets,
            "sockets_limit": here.fd_limit,
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


def _restored(report: Report) -> dict[str, Any]:
    """What this start had to make good: see amqpd/broker/vhost/recovery.py."""
    return {
        "vhosts": report.vhosts,
        "queues": [
            {"vhost": each.vhost, "name": each.name, "arguments_known": each.whole} for each in report.queues
        ],
        "set_aside": [{"path": path, "reason": reason} for path, reason in report.set_aside],
    }


ROUTES: Final = (
    Route("GET", "api/amqpd/app", Role.MANAGEMENT, app),
    Route("GET", "api/amqpd/status", Role.MONITORING, status),
)
