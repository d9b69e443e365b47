"""Health checks for load balancers and probes: 200 with `{"status": "ok"}`, or 503 with the reason.

Each of RabbitMQ's `/api/health/checks/*` checks one thing. The older `/api/healthchecks/node` checks everything and
always answers 200.
"""

from __future__ import annotations

import time
from typing import Final

from amqpd.broker.message import NO_MESSAGE, MessageRoute, make_message
from amqpd.broker.publish import router
from amqpd.broker.vhost import declare
from amqpd.broker.vhost.declaration import QueueDeclaration
from amqpd.management.certificates import expiring_listeners
from amqpd.management.overview import check_node_name, failed_logs, listeners
from amqpd.management.request import ApiRequest, ApiResponse, BadRequest, Role, reply
from amqpd.management.router import ApiRoute
from amqpd.management.time_slice import TimeSlice
from amqpd.protocol.properties import NO_PROPERTIES

ALIVENESS_QUEUE: Final = "aliveness-test"


def _ok() -> ApiResponse:
    return reply({"status": "ok"})


def _failed(reason: str, **details: object) -> ApiResponse:
    return reply({"status": "failed", "reason": reason, **details}, 503)


async def aliveness(call: ApiRequest) -> ApiResponse:
    """Send a message through a queue of the virtual host.

    Everything is in memory. A queue that did not exist is deleted again. rabbit: the caller needs the permissions
    for a queue named aliveness-test.
    """
    vhost = call.vhost()
    for kind in ("configure", "write", "read"):
        call.check(vhost.name, kind, "queue", ALIVENESS_QUEUE)
    new = declare.declare_queue(vhost, QueueDeclaration(ALIVENESS_QUEUE, False, False, False, {}))
    queue = vhost.queues[ALIVENESS_QUEUE]
    message = make_message(MessageRoute("", ALIVENESS_QUEUE), NO_PROPERTIES, b"test_message", False, None)
    delivered = False
    for destination in router.route(vhost, vhost.default_exchange, [ALIVENESS_QUEUE], NO_MESSAGE):
        destination.enqueue(message)
        delivered = queue.get(True) is not None or bool(queue.consumers)
    if new:
        declare.delete_queue(vhost, queue)
    return _ok() if delivered else _failed("the message did not come back")


async def check_alarms(call: ApiRequest) -> ApiResponse:
    """Check for alarms.

    rabbit: memory and disk, which block publishers. This check also fails for a failed log, which makes its queue
    nack.
    """
    alarms = [{"node": call.node, "resource": kind} for kind in call.broker.alarms.raised]
    failed = await failed_logs(call, TimeSlice())
    alarms += [
        {"node": call.node, "resource": "log", "vhost": queue.vhost_name, "queue": queue.name} for queue in failed
    ]
    if not alarms:
        return _ok()
    return _failed("There are alarms in effect", alarms=alarms)


async def check_audit(call: ApiRequest) -> ApiResponse:
    """Check that the audit log is writable. The broker continues without it. RabbitMQ has no such check."""
    trouble = call.broker.audit.health_problem()
    return _failed(trouble) if trouble else _ok()


async def check_vhosts(call: ApiRequest) -> ApiResponse:
    """Check that every virtual host is running."""
    down = [vhost.name for vhost in call.broker.vhosts.values() if vhost.deleted]
    if not down:
        return _ok()
    return _failed("Some virtual hosts are down", **{"virtual-hosts": down})


async def check_port(call: ApiRequest) -> ApiResponse:
    """Check that a listener has the port."""
    text = call.params["port"]
    if not (text.isascii() and text.isdecimal() and len(text) < 6):
        raise BadRequest("Not an integer")
    ports = [each["port"] for each in listeners(call)]
    if int(text) in ports:
        return reply({"status": "ok", "port": int(text)})
    return _failed("No active listener", missing=int(text), ports=ports)


async def check_protocol(call: ApiRequest) -> ApiResponse:
    """Check that a listener has the protocol."""
    names = {"amqp091": "amqp", "amqp0.9.1": "amqp", "amqps": "amqp/ssl"}
    wanted = names.get(call.params["protocol"].lower(), call.params["protocol"].lower())
    protocols = [each["protocol"] for each in listeners(call)]
    if wanted in protocols:
        return reply({"status": "ok", "protocol": wanted})
    return _failed("No active listener", missing=wanted, protocols=protocols)


async def check_quorum(call: ApiRequest) -> ApiResponse:
    """Check that no queue loses its majority when this node stops.

    Always ok: Kafka keeps the majorities in a cluster. rabbit: its text for a single node.
    """
    if call.cluster is not None:
        return reply(
            {"status": "ok", "reason": "Kafka keeps the majorities: other nodes take over the vhosts of this one"}
        )
    return reply({"status": "ok", "reason": "single node cluster"})


async def check_certificates(call: ApiRequest) -> ApiResponse:
    """Check that no certificate of a TLS listener expires within the given days, weeks, months or years.

    rabbit: a month has 30 days, a year 365. A negative number looks back.
    """
    text, unit = call.params["within"], call.params["unit"].lower()
    if unit not in _UNIT_DAYS:
        raise BadRequest(f"Time unit not recognised. Supported units: {', '.join(_UNIT_DAYS)}.")
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 6):
        raise BadRequest("Invalid expiration value.")
    found = expiring_listeners(call, time.time() + int(text) * _UNIT_DAYS[unit] * 86400)
    if not found:
        return _ok()
    return _failed("Certificates expiring", expired=found)


async def check_ready(call: ApiRequest) -> ApiResponse:
    """Check that clients can connect. rabbit: in 4.x."""
    if call.server.app_running:
        return _ok()
    return _failed("the application is stopped")


async def check_connections(call: ApiRequest) -> ApiResponse:
    """Check that the node is below its limit of connections.

    Always ok: a node has no limit; those of vhosts and users do not count. rabbit: in 4.x.
    """
    return reply({"status": "ok", "limit": "infinity", "connections": len(call.server.connections.by_name)})


async def check_size(call: ApiRequest) -> ApiResponse:
    """Check that the cluster has its target size. Always ok: there is no setting for a target size. rabbit: in 4.x."""
    size = 1 if call.cluster is None else len(call.cluster.status()["nodes"])
    return reply({"status": "ok", "cluster_size": size, "target_cluster_size": size})


async def check_node(call: ApiRequest) -> ApiResponse:
    """Check the whole node; 200 also if the check fails.

    rabbit: the old single check. The node must accept clients and have no alarm.
    """
    check_node_name(call)
    if not call.server.app_running:
        return reply({"status": "failed", "reason": "the application is stopped"})
    if call.broker.alarm_reason:
        return reply({"status": "failed", "reason": f"resource alarm(s) in effect: {call.broker.alarm_reason}"})
    return _ok()


async def check_store(call: ApiRequest) -> ApiResponse:
    """Check that the metadata are loaded. Always ok: they are loaded before any listener opens. rabbit: in 4.x."""
    return _ok()


async def check_leaders(call: ApiRequest) -> ApiResponse:
    """Check that every queue of the virtual host has a leader.

    Always ok: the node that owns a vhost leads its queues. rabbit: in 4.x. Raises: ResourceNotFound, NotAuthorised
    for the vhost.
    """
    call.vhosts()
    return _ok()


_CHECKS: Final = "api/health/checks"
_UNIT_DAYS: Final = {"days": 1, "weeks": 7, "months": 30, "years": 365}
ROUTES: Final = (
    ApiRoute("GET", "api/aliveness-test/{vhost}", Role.MANAGEMENT, aliveness),
    ApiRoute("GET", "api/healthchecks/node", Role.MANAGEMENT, check_node),
    ApiRoute("GET", "api/healthchecks/node/{node}", Role.MANAGEMENT, check_node),
    ApiRoute("GET", "api/health/checks/alarms", Role.MANAGEMENT, check_alarms),
    ApiRoute("GET", "api/health/checks/local-alarms", Role.MANAGEMENT, check_alarms),
    ApiRoute("GET", "api/health/checks/audit-log", Role.MONITORING, check_audit),
    ApiRoute("GET", "api/health/checks/virtual-hosts", Role.MANAGEMENT, check_vhosts),
    ApiRoute("GET", "api/health/checks/port-listener/{port}", Role.MANAGEMENT, check_port),
    ApiRoute("GET", "api/health/checks/protocol-listener/{protocol}", Role.MANAGEMENT, check_protocol),
    ApiRoute("GET", f"{_CHECKS}/certificate-expiration/{{within}}/{{unit}}", Role.MANAGEMENT, check_certificates),
    ApiRoute("GET", f"{_CHECKS}/ready-to-serve-clients", Role.MANAGEMENT, check_ready),
    ApiRoute("GET", f"{_CHECKS}/is-in-service", Role.MANAGEMENT, check_ready),
    ApiRoute("GET", f"{_CHECKS}/below-node-connection-limit", Role.MANAGEMENT, check_connections),
    ApiRoute("GET", f"{_CHECKS}/reached-target-cluster-size", Role.MANAGEMENT, check_size),
    ApiRoute("GET", f"{_CHECKS}/metadata-store/initialized", Role.MANAGEMENT, check_store),
    ApiRoute("GET", f"{_CHECKS}/metadata-store/initialized/with-data", Role.MANAGEMENT, check_store),
    ApiRoute("GET", f"{_CHECKS}/quorum-queues-without-elected-leaders/vhost/{{vhost}}", Role.MANAGEMENT, check_leaders),
    ApiRoute(
        "GET",
        f"{_CHECKS}/quorum-queues-without-elected-leaders/vhost/{{vhost}}/pattern/{{pattern}}",
        Role.MANAGEMENT,
        check_leaders,
    ),
    ApiRoute("GET", f"{_CHECKS}/quorum-queues-without-elected-leaders/all-vhosts", Role.MANAGEMENT, check_leaders),
    ApiRoute("GET", "api/health/checks/node-is-quorum-critical", Role.MANAGEMENT, check_quorum),
    ApiRoute("GET", "api/health/checks/node-is-mirror-sync-critical", Role.MANAGEMENT, check_quorum),
)
