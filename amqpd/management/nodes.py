"""The node: /nodes, and its memory. There is one.

What RabbitMQ counts of Erlang's runtime is told where there is a counterpart: threads for processes, the collector's
runs, context switches, what the process has read and written. Of Mnesia, and of a message store that is none here,
nothing is told.
"""

from __future__ import annotations

import os
import platform
import resource
import time
from pathlib import Path
from typing import Any, Final

from amqpd import __version__
from amqpd.management.alarms import clock_state
from amqpd.management.request import Call, Reply, Role, reply
from amqpd.management.counted import NODE
from amqpd.management.message_counts import sizes
from amqpd.management.listing import listing, one
from amqpd.management.node_counts import numbers
from amqpd.management.overview import churn, contexts, exchange_types, this_node
from amqpd.management.router import Route
from amqpd.management.time_slice import Slices
from amqpd.management.spans import spans
from amqpd.config.rabbitmq_plugins import PART_OF_IT

_STATUS: Final = Path("/proc/self/status")
THREADS_MAX: Final = Path("/proc/sys/kernel/threads-max")
MEMORY_NAMES: Final = (
    *("connection_readers", "connection_writers", "connection_channels", "connection_other", "queue_procs"),
    *("queue_slave_procs", "quorum_queue_procs", "quorum_queue_dlx_procs", "stream_queue_procs"),
    *("stream_queue_replica_reader_procs", "stream_queue_coordinator_procs", "plugins", "other_proc", "metrics"),
    *("mgmt_db", "mnesia", "quorum_ets", "other_ets", "binary", "msg_index", "code", "atom", "other_system"),
    *("allocated_unused", "reserved_unallocated", "metadata_store", "metadata_store_ets"),
)


def node_item(call: Call, memory: dict[str, Any] | None) -> dict[str, Any]:
    """memory: by use, where the caller asks for it."""
    broker = call.broker
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    version = broker.settings.product[1]
    return {
        "name": call.node,
        "type": "disc",
        "running": True,
        "being_drained": call.server.drained,
        "os_pid": str(os.getpid()),
        "uptime": int((time.time() - broker.started_at) * 1000),
        "processors": os.cpu_count(),
        "run_queue": 0,
        "mem_limit": broker.alarms.memory_limit_bytes,
        "mem_alarm": "memory" in broker.alarms.raised,
        "mem_calculation_strategy": "rss",
        "disk_free_limit": broker.alarms.disk_free_limit_bytes,
        "disk_free_alarm": "disk" in broker.alarms.raised,
        "fd_total": files,
        "sockets_total": files,
        "proc_total": int(THREADS_MAX.read_text("ascii")),
        "rates_mode": "basic",
        "net_ticktime": 0,
        "db_dir": str(broker.settings.data_dir),
        "config_files": [],
        "log_files": ["<stderr>"],
        "enabled_plugins": sorted(PART_OF_IT),
        "applications": [
            {"name": "amqpd", "description": "AMQP 0-9-1 broker", "version": __version__},
            # rabbit: clients look here for the version whose API this is
            {"name": "rabbit", "description": broker.settings.product[0], "version": version},
        ],
        "auth_mechanisms": [{"name": name, "description": "", "enabled": True} for name in ("AMQPLAIN", "PLAIN")],
        "exchange_types": exchange_types(),
        "contexts": contexts(call),
        "clock": clock_state(call),
        "partitions": [],
        "cluster_links": [],
        "platform": f"Python {platform.python_version()}",
        **_counted(call),
        **churn(call),
        **({} if memory is None else {"memory": memory}),
    }


def _counted(call: Call) -> dict[str, Any]:
    """What changes, with rates. rabbit: io_sync_avg_time is ms, of those of the last sweep."""
    found = call.rates.details(call.rates.node, NODE, spans(call.query))
    took, often = found.pop("io_sync_us_details")["rate"], found["io_sync_count_details"]["rate"]
    del found["io_sync_us"]
    average = round(took / often / 1000, 3) if often else 0.0
    return {**found, "io_sync_avg_time": average, "io_sync_avg_time_details": {"rate": 0.0}}


async def get_nodes(call: Call) -> Reply:
    """The nodes: memory, disk, descriptors, alarms, rates."""
    memory = await _asked_memory(call)
    return await listing(call, [call], lambda each: node_item(each, memory), lambda _: call.node)


async def get_node(call: Call) -> Reply:
    """One node."""
    this_node(call)
    return one(call, node_item(call, await _asked_memory(call)))


# -- memory ----------------------------------------------------------------------------------------------------------


async def memory_sizes(call: Call) -> dict[str, int]:
    """Resident bytes by what they are for, in RabbitMQ's categories: program files (code), message bodies on their way
    in (connection_readers) and in queues (binary), and all else (other_proc); the others are Erlang's.
    """
    bodies = await _queued_bytes(call)
    status = numbers(_STATUS)
    code = status.get("RssFile", 0)
    total = code + status.get("RssAnon", 0) + status.get("RssShmem", 0)
    readers = min(call.broker.unfinished_bodies.kept_bytes, total - code)
    bodies = min(bodies, total - code - readers)
    used = {
        "connection_readers": readers,
        "binary": bodies,
        "code": code,
        "other_proc": total - code - readers - bodies,
    }
    return {**dict.fromkeys(MEMORY_NAMES, 0), **used}


async def _queued_bytes(call: Call) -> int:
    """Bytes of message bodies that queues keep in memory. Cost: 2 us a queue, in slices."""
    slices = Slices()
    found = 0
    for vhost in list(call.broker.vhosts.values()):
        for queue in list(vhost.queues.values()):
            if queue.opening is None and not queue.deleted:
                found += sizes(queue)["message_bytes_ram"]
            if slices.due:
                await slices.rest()
    return found


async def _asked_memory(call: Call) -> dict[str, Any] | None:
    return await _memory(call) if call.query_shows("memory") else None


async def get_memory(call: Call) -> Reply:
    """What its memory is used for, in bytes."""
    this_node(call)
    return reply({"memory": await _memory(call)})


async def _memory(call: Call) -> dict[str, Any]:
    found = await memory_sizes(call)
    total = sum(found.values())
    return {**found, "strategy": "rss", "total": {"erlang": total, "rss": total, "allocated": total}}


async def get_relative_memory(call: Call) -> Reply:
    """What its memory is used for, in per cent, rounded up."""
    this_node(call)
    found = await memory_sizes(call)
    total = max(1, sum(found.values()))
    shares: dict[str, int] = {name: -(-100 * size // total) for name, size in found.items()}
    return reply({"memory": {**shares, "total": 100}})


ROUTES: Final = (
    Route("GET", "api/nodes", Role.MONITORING, get_nodes),
    Route("GET", "api/nodes/{node}", Role.MONITORING, get_node),
    Route("GET", "api/nodes/{node}/memory", Role.MONITORING, get_memory),
    Route("GET", "api/nodes/{node}/memory/relative", Role.MONITORING, get_relative_memory),
)
