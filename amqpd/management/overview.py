"""Handlers for the overview, nodes and their memory, and the live status of the web page.

RabbitMQ's figures about the Erlang runtime have counterparts where possible: threads for processes, garbage
collections, context switches, bytes read and written. Figures about Mnesia and the message store are left out.

`/amqpd/pulse` shows the current state: alarms, paused connections, sync times, delays of the event loop. Its counts
rise from the start; a client that asks twice subtracts. `/amqpd/rights` returns the caller's permissions, so that the
page offers only actions that are allowed.
"""

from __future__ import annotations

import os
import platform
import resource
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from amqpd import __version__
from amqpd.broker.queue.log_opener import opened
from amqpd.broker.vhost.exchange import DELAYED_MESSAGE
from amqpd.broker.vhost.parameters import CLUSTER_NAME
from amqpd.broker.vhost.pending import wait_done
from amqpd.config.rabbitmq_conf import PART_OF_IT
from amqpd.management.certificates import PROTOCOLS
from amqpd.management.connections import HELD_BY, may_see, pause_reasons
from amqpd.management.listing import listing, object_reply, requested_ranges, select_columns
from amqpd.management.message_counts import size_fields, unacked_not_ready
from amqpd.management.request import NO_CONTENT, ApiRequest, ApiResponse, BadRequest, ResourceNotFound, Role, reply
from amqpd.management.router import ApiRoute
from amqpd.management.samples import POLICIES, SampleRanges
from amqpd.management.stats import CHANNEL, CHURN, LAG_BOUNDS_S, LENGTHS, NODE, QUEUE, read_proc_numbers, split_stats
from amqpd.management.time_slice import TimeSlice
from amqpd.routing.registry import exchange_type_names
from amqpd.storage.fsync_thread import BOUNDS_S

if TYPE_CHECKING:
    from amqpd.auth.permissions import Kind
    from amqpd.broker.queue.queue import Queue
    from amqpd.broker.vhost.vhost import VHost


def listeners(call: ApiRequest) -> list[dict[str, Any]]:
    """Return the open network listeners."""
    return [
        {
            "node": call.node,
            "protocol": PROTOCOLS.get(listener.protocol, listener.protocol),
            "ip_address": listener.host,
            "port": listener.port,
        }
        for listener in call.server.listeners
        if listener.port
    ]


def contexts(call: ApiRequest) -> list[dict[str, Any]]:
    """Return the listeners that serve HTTP. RabbitMQ: their ports are text, those in `listeners` are numbers."""
    return [
        {
            "description": "Management API",
            "path": "/",
            "ip": each.host,
            "port": str(each.port),
            **({"ssl": "true"} if each.protocol == "https" else {}),  # RabbitMQ: a text, only for HTTPS
        }
        for each in call.server.listeners
        if each.protocol in ("http", "https")
    ]


def exchange_types() -> list[dict[str, Any]]:
    names = sorted([*exchange_type_names(), DELAYED_MESSAGE])
    return [{"name": name, "description": "", "enabled": True} for name in names]


def churn(call: ApiRequest) -> dict[str, Any]:
    """Return the objects created and removed since the start, with rates."""
    return call.rates.details(call.rates.churn, CHURN, requested_ranges(call.query))


_COUNTED: Final = (
    *("connections", "channels", "queues", "exchanges", "consumers"),
    *("messages_ready", "messages_unacked", "messages_delayed_retry", "messages_delayed"),
)


async def count_objects(call: ApiRequest, vhosts: list[VHost]) -> dict[str, int]:
    """Return the numbers of objects in the vhosts that the caller may see.

    Opens the logs of queues that were not used since the start.
    """
    slices, counts = TimeSlice(), dict.fromkeys(_COUNTED, 0)
    for vhost in vhosts:
        counts["exchanges"] += len(vhost.exchanges)
        counts["messages_delayed"] += call.broker.delays.count_of(vhost.name)
        for queue in list(vhost.queues.values()):
            await opened(queue)
            counts["queues"] += 1
            counts["consumers"] += len(queue.consumers)
            counts["messages_ready"] += queue.ready_count
            counts["messages_unacked"] += unacked_not_ready(queue)
            counts["messages_delayed_retry"] += queue.delayed_count
            await slices.yield_if_due()
    names = {vhost.name for vhost in vhosts}
    for connection in call.server.connections:
        if connection.session.vhost.name in names and may_see(call, connection.session):
            counts["connections"] += 1
            counts["channels"] += len(connection.channels.by_number)
    return counts


async def overview(call: ApiRequest) -> ApiResponse:
    """Return totals, rates, listeners and versions of the broker. `fields` selects fields, as `columns` does."""
    broker = call.broker
    counts = await count_objects(call, call.vhosts())
    item: dict[str, Any] = {
        "management_version": __version__,
        "rabbitmq_version": broker.settings.product[1],
        "product_name": broker.settings.product[0],
        "product_version": broker.settings.product[1],
        "amqpd_version": __version__,
        # RabbitMQ: versions of the runtime. Clients require these fields.
        "erlang_version": f"Python {platform.python_version()}",
        "erlang_full_version": f"Python {' '.join(sys.version.split())}",
        "release_series_support_status": "supported",
        "sample_retention_policies": {name: [step.age_s for step in steps] for name, steps in POLICIES.items()},
        "statistics_db_event_queue": 0,
        "rates_mode": "basic",
        "cluster_name": broker.cluster_name,
        "node": call.node,
        "exchange_types": exchange_types(),
        "object_totals": {
            name: counts[name] for name in ("channels", "connections", "consumers", "exchanges", "queues")
        },
        "queue_totals": {
            "messages": counts["messages_ready"] + counts["messages_unacked"] + counts["messages_delayed_retry"],
            "messages_ready": counts["messages_ready"],
            "messages_unacknowledged": counts["messages_unacked"],
            "messages_delayed": counts["messages_delayed"],
            "messages_delayed_retry": counts["messages_delayed_retry"],
        },
        "enable_queue_totals": True,
        "disable_stats": False,
    }
    if call.caller.has(Role.MONITORING):
        within = requested_ranges(call.query)
        shown = split_stats(await call.rates.totals(QUEUE, within))
        published = await _published(call, within)
        item["message_stats"] = {**shown.stats, **published, **call.rates.unroutable(within)}
        for name in LENGTHS:
            item["queue_totals"][f"{name}_details"] = shown.lengths[f"{name}_details"]
        item["churn_rates"] = churn(call)
        item["listeners"] = listeners(call)
        item["contexts"] = [{"node": call.node, **each} for each in contexts(call)]
    return object_reply(call, select_columns(item, call.query.get("fields", "")))


async def _published(call: ApiRequest, within: SampleRanges) -> dict[str, Any]:
    """Return the counts of publishes, each message once, also if several queues received it."""
    totals = await call.rates.totals(CHANNEL, within)
    return {name: totals[name] for name in ("publish", "publish_details", "confirm", "confirm_details")}


async def cluster_name(call: ApiRequest) -> ApiResponse:
    """Return the cluster name that clients see."""
    return reply({"name": call.broker.cluster_name})


async def put_cluster_name(call: ApiRequest) -> ApiResponse:
    """Set the cluster name that clients see in server-properties. It is a global parameter."""
    name = call.text("name")
    await wait_done(partial(call.broker.global_parameters.declare, CLUSTER_NAME, name))
    return NO_CONTENT


def clock_state(call: ApiRequest) -> dict[str, Any]:
    """Return whether the clock holds back a jump, its size, and how long it is held."""
    watch = call.broker.storage.clock_watch
    return {
        "state": "held" if watch.held else "steady",
        "jump_s": watch.jump_ms / 1000,
        "held_for_s": -(-watch.remaining_ms // 1000),
    }


def check_node_name(call: ApiRequest) -> None:
    """Raise ResourceNotFound if the path names another node. Nagios's checks name it rabbit@HOST."""
    host = call.node.partition("@")[2]
    if call.params.get("node", call.node) not in (call.node, f"rabbit@{host}"):
        raise ResourceNotFound(f"no node '{call.params['node']}'")


async def extensions(call: ApiRequest) -> ApiResponse:
    """List extensions of the page. RabbitMQ: scripts of its page; the management plugin's own is always first."""
    return reply([{"javascript": "dispatcher.js"}])


async def auth_attempts(call: ApiRequest) -> ApiResponse:
    """Return the login methods of the page, basic auth only. RabbitMQ: also OAuth 2 servers (UAA)."""
    return reply({"oauth_enabled": False, "enable_uaa": False, "uaa_client_id": "", "uaa_location": ""})


_STATUS: Final = Path("/proc/self/status")
THREADS_MAX: Final = Path("/proc/sys/kernel/threads-max")
MEMORY_NAMES: Final = (
    *("connection_readers", "connection_writers", "connection_channels", "connection_other", "queue_procs"),
    *("queue_slave_procs", "quorum_queue_procs", "quorum_queue_dlx_procs", "stream_queue_procs"),
    *("stream_queue_replica_reader_procs", "stream_queue_coordinator_procs", "plugins", "other_proc", "metrics"),
    *("mgmt_db", "mnesia", "quorum_ets", "other_ets", "binary", "msg_index", "code", "atom", "other_system"),
    *("allocated_unused", "reserved_unallocated", "metadata_store", "metadata_store_ets"),
)


def node_item(call: ApiRequest, memory: dict[str, Any] | None) -> dict[str, Any]:
    """Return a node. `memory` has its memory use, if the caller asked for it."""
    broker = call.broker
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    version = broker.settings.product[1]
    return {
        "name": call.node,
        "type": "disc",
        "running": True,
        "being_drained": call.server.is_drained,
        "os_pid": str(os.getpid()),
        "uptime": int(broker.uptime_s() * 1000),
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
            # RabbitMQ: clients look here for the version of the API
            {"name": "rabbit", "description": broker.settings.product[0], "version": version},
        ],
        "auth_mechanisms": [{"name": name, "description": "", "enabled": True} for name in ("AMQPLAIN", "PLAIN")],
        "exchange_types": exchange_types(),
        "contexts": contexts(call),
        "clock": clock_state(call),
        "partitions": [],
        "cluster_links": [],
        "platform": f"Python {platform.python_version()}",
        **_node_counters(call),
        **churn(call),
        **({} if memory is None else {"memory": memory}),
    }


def _node_counters(call: ApiRequest) -> dict[str, Any]:
    """Return counters with rates. RabbitMQ: io_sync_avg_time is in ms, here for the syncs of the last sweep."""
    found = call.rates.details(call.rates.node, NODE, requested_ranges(call.query))
    sync_us, sync_count = found.pop("io_sync_us_details")["rate"], found["io_sync_count_details"]["rate"]
    del found["io_sync_us"]
    average = round(sync_us / sync_count / 1000, 3) if sync_count else 0.0
    return {**found, "io_sync_avg_time": average, "io_sync_avg_time_details": {"rate": 0.0}}


async def get_nodes(call: ApiRequest) -> ApiResponse:
    """List the nodes with memory, disk, descriptors, alarms and rates."""
    memory = await _memory_if_requested(call)
    return await listing(call, [call], lambda each: node_item(each, memory), lambda _: call.node)


async def get_node(call: ApiRequest) -> ApiResponse:
    """Return one node."""
    check_node_name(call)
    return object_reply(call, node_item(call, await _memory_if_requested(call)))


# -- memory ----------------------------------------------------------------------------------------------------------


async def memory_sizes(call: ApiRequest) -> dict[str, int]:
    """Return resident bytes by RabbitMQ's categories.

    Used are code (program files), connection_readers (incoming message bodies), binary (message bodies in queues) and
    other_proc (the rest). The other categories exist only in Erlang and are 0.
    """
    bodies = await _queued_bytes(call)
    used = memory_by_use(call)
    bodies = min(bodies, used["other_proc"])
    used["other_proc"] -= bodies
    return {**dict.fromkeys(MEMORY_NAMES, 0), **used, "binary": bodies}


def memory_by_use(call: ApiRequest) -> dict[str, int]:
    """Return resident bytes: program files, message bodies being received, and everything else."""
    sizes = read_proc_numbers(_STATUS)
    code = sizes.get("RssFile", 0)
    total = code + sizes.get("RssAnon", 0) + sizes.get("RssShmem", 0)
    readers = min(call.broker.unfinished_bodies.kept_bytes, total - code)
    return {"connection_readers": readers, "code": code, "other_proc": total - code - readers}


async def _queued_bytes(call: ApiRequest) -> int:
    """Return the bytes of message bodies that queues keep in memory. Cost: 2 us per queue, in slices."""
    slices = TimeSlice()
    found = 0
    for vhost in list(call.broker.vhosts.values()):
        for queue in list(vhost.queues.values()):
            if queue.opening is None and not queue.deleted:
                found += size_fields(queue)["message_bytes_ram"]
            await slices.yield_if_due()
    return found


async def _memory_if_requested(call: ApiRequest) -> dict[str, Any] | None:
    return await _memory(call) if call.query_shows("memory") else None


async def get_memory(call: ApiRequest) -> ApiResponse:
    """Return the node's memory use in bytes, by category."""
    check_node_name(call)
    return reply({"memory": await _memory(call)})


async def _memory(call: ApiRequest) -> dict[str, Any]:
    found = await memory_sizes(call)
    total = sum(found.values())
    return {**found, "strategy": "rss", "total": {"erlang": total, "rss": total, "allocated": total}}


async def get_relative_memory(call: ApiRequest) -> ApiResponse:
    """Return the node's memory use in per cent, rounded up, by category."""
    check_node_name(call)
    found = await memory_sizes(call)
    total = max(1, sum(found.values()))
    shares: dict[str, int] = {name: -(-100 * size // total) for name, size in found.items()}
    return reply({"memory": {**shares, "total": 100}})


FAILED_LOGS_MAX: Final = 20


async def get_live_status(call: ApiRequest) -> ApiResponse:
    """Return alarms, paused connections, sync times and delays of the event loop."""
    broker = call.broker
    slices = TimeSlice()
    held = dict.fromkeys(HELD_BY.values(), 0)
    for connection in list(call.server.connections):
        for word in pause_reasons(connection.read_pause.reasons):
            held[word] += 1
        await slices.yield_if_due()
    times, lag = broker.storage.sync_times, call.rates.loop_lag
    failed = await failed_logs(call, slices)
    return reply(
        {
            "alarms": list(broker.alarms.raised.values()),
            "failed_logs": [{"vhost": q.vhost_name, "name": q.name} for q in failed[:FAILED_LOGS_MAX]],
            "failed_log_count": len(failed),
            "app_running": call.server.app_running,
            "held": held,
            "unsynced_bytes": int(broker.storage.commits.unsynced_bytes),
            "sync": _histogram(BOUNDS_S, times.by_time, times.total_s),
            "loop_lag": _histogram(LAG_BOUNDS_S, lag.counts, lag.total_s),
        }
    )


async def get_live_status_of(call: ApiRequest) -> ApiResponse:
    """Return the pulse of a node of the cluster."""
    check_node_name(call)
    return await get_live_status(call)


async def failed_logs(call: ApiRequest, slices: TimeSlice) -> list[Queue]:
    """Return the queues whose log rejects writes because a write or a sync failed. Cost: linear."""
    found: list[Queue] = []
    for vhost in list(call.broker.vhosts.values()):
        for queue in list(vhost.queues.values()):
            if queue.store is not None and queue.store.failed:
                found.append(queue)
            await slices.yield_if_due()
    return found


def _histogram(bounds_s: tuple[float, ...], counts: list[int], total_s: float) -> dict[str, Any]:
    """Return a histogram. `counts` are not cumulative and have one more item for values above the last bound."""
    return {"bounds_s": list(bounds_s), "counts": list(counts), "total_s": total_s}


async def get_rights(call: ApiRequest) -> ApiResponse:
    """Return the caller's permissions on the queue or exchange of the query, which need not exist."""
    kinds = [kind for kind in ("queue", "exchange") if kind in call.query]
    if len(kinds) != 1:
        raise BadRequest("either queue or exchange is required")
    vhost, name = call.vhost(), call.query[kinds[0]]
    inside = call.may_enter(vhost.name)
    permissions: tuple[Kind, ...] = ("configure", "write", "read")
    return reply({kind: inside and call.is_allowed(vhost.name, kind, name) for kind in permissions})


ROUTES: Final = (
    ApiRoute("GET", "api/auth", Role.PUBLIC, auth_attempts),
    ApiRoute("GET", "api/overview", Role.MANAGEMENT, overview),
    ApiRoute("GET", "api/cluster-name", Role.MANAGEMENT, cluster_name),
    ApiRoute("PUT", "api/cluster-name", Role.ADMINISTRATOR, put_cluster_name),
    ApiRoute("GET", "api/extensions", Role.MANAGEMENT, extensions),
    ApiRoute("GET", "api/nodes", Role.MONITORING, get_nodes),
    ApiRoute("GET", "api/nodes/{node}", Role.MONITORING, get_node),
    ApiRoute("GET", "api/nodes/{node}/memory", Role.MONITORING, get_memory),
    ApiRoute("GET", "api/nodes/{node}/memory/relative", Role.MONITORING, get_relative_memory),
    ApiRoute("GET", "api/amqpd/pulse", Role.MONITORING, get_live_status),
    ApiRoute("GET", "api/amqpd/pulse/{node}", Role.MONITORING, get_live_status_of),
    ApiRoute("GET", "api/amqpd/rights/{vhost}", Role.MANAGEMENT, get_rights),
)
