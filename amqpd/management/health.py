"""Health checks: 200 with `{"status": "ok"}`, or 503 with what is wrong; load balancers and probes ask them.

`/api/health/checks/*` are RabbitMQ's checks of one thing each; `/api/healthchecks/node` is its older one of everything,
which answers 200 in both cases.
"""

from __future__ import annotations

import time
from typing import Any, Final

from amqpd.broker.message import NO_MESSAGE, MessageRoute, make_message
from amqpd.broker.publish import router
from amqpd.broker.vhost import declare
from amqpd.broker.vhost.declaration import QueueDeclaration
from amqpd.management.certificates import expiring
from amqpd.management.overview import listeners, this_node
from amqpd.management.request import ApiRequest, ApiResponse, BadRequest, Role, reply
from amqpd.management.router import ApiRoute
from amqpd.protocol.properties import NO_PROPERTIES

ALIVENESS_QUEUE: Final = "aliveness-test"


def _ok() -> ApiResponse:
    return reply({"status": "ok"})


async def aliveness(call: ApiRequest) -> ApiResponse:
    """A message through a queue of the vhost and out again, in memory. The queue goes again if it was not there.

    rabbit: the caller needs the permissions for a queue called aliveness-test.
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
    return _ok() if delivered else reply({"status": "failed", "reason": "the message did not come back"}, 503)


def failed_logs(call: ApiRequest) -> list[Any]:
    """The queues whose log takes nothing more, because a write or a sync failed. Cost: a step per queue."""
    return [
        queue
        for vhost in call.broker.vhosts.values()
        for queue in vhost.queues.values()
        if queue.store is not None and queue.store.failed
    ]


async def check_alarms(call: ApiRequest) -> ApiResponse:
    """Alarms. rabbit: memory and disk, which hold publishers. A failed log only makes its queue nack; told here too."""
    alarms = [{"node": call.node, "resource": kind} for kind in call.broker.alarms.raised]
    failed = failed_logs(call)
    alarms += [
        {"node": call.node, "resource": "log", "vhost": queue.vhost_name, "queue": queue.name} for queue in failed
    ]
    if not alarms:
        return _ok()
    return reply({"status": "failed", "reason": "There are alarms in effect", "alarms": alarms}, 503)


async def check_audit(call: ApiRequest) -> ApiResponse:
    """Whether the audit log can be written. RabbitMQ has no such check; the broker goes on without."""
    trouble = call.broker.audit.trouble()
    return reply({"status": "failed", "reason": trouble}, 503) if trouble else _ok()


async def check_vhosts(call: ApiRequest) -> ApiResponse:
    """Whether every virtual host is there."""
    down = [vhost.name for vhost in call.broker.vhosts.values() if vhost.deleted]
    if not down:
        return _ok()
    return reply({"status": "failed", "reason": "Some virtual hosts are down", "virtual-hosts": down}, 503)


async def check_port(call: ApiRequest) -> ApiResponse:
    """Checks that a listener has the port."""
    text = call.params["port"]
    if not (text.isascii() and text.isdecimal() and len(text) < 6):
        raise BadRequest("Not an integer")
    ports = [each["port"] for each in listeners(call)]
    if int(text) in ports:
        return reply({"status": "ok", "port": int(text)})
    return reply({"status": "failed", "reason": "No active listener", "missing": int(text), "ports": ports}, 503)


async def check_protocol(call: ApiRequest) -> ApiResponse:
    """Checks that a listener has the protocol."""
    names = {"amqp091": "amqp", "amqp0.9.1": "amqp", "amqps": "amqp/ssl"}
    wanted = names.get(call.params["protocol"].lower(), call.params["protocol"].lower())
    protocols = [each["protocol"] for each in listeners(call)]
    if wanted in protocols:
        return reply({"status": "ok", "protocol": wanted})
    failed = {"status": "failed", "reason": "No active listener", "missing": wanted, "protocols": protocols}
    return reply(failed, 503)


async def check_quorum(call: ApiRequest) -> ApiResponse:
    """Whether the node may be stopped without queues losing their majority.

    Stopping a node leaves nobody without a majority: there is none here, Kafka has them. rabbit: its words for one
    node.
    """
    if call.cluster is not None:
        return reply({"status": "ok", "reason": "majorities are Kafka's: other nodes take what this one runs"})
    return reply({"status": "ok", "reason": "single node cluster"})


async def check_certificates(call: ApiRequest) -> ApiResponse:
    """Certificates; 503 where a certificate of a TLS listener ends within so many days, weeks, months or years.

    rabbit: a month has 30 days, a year 365; a number below 0 looks back.
    """
    text, unit = call.params["within"], call.params["unit"]
    if unit not in _UNIT_DAYS:
        raise BadRequest(f"Time unit not recognised. Supported units: {', '.join(_UNIT_DAYS)}.")
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 6):
        raise BadRequest("Invalid expiration value.")
    found = expiring(call, time.time() + int(text) * _UNIT_DAYS[unit] * 86400)
    if not found:
        return _ok()
    return reply({"status": "failed", "reason": "Certificates expiring", "expired": found}, 503)


async def check_ready(call: ApiRequest) -> ApiResponse:
    """Whether clients can connect. rabbit: of 4.x."""
    if call.server.app_running:
        return _ok()
    return reply({"status": "failed", "reason": "the application is stopped"}, 503)


async def check_connections(call: ApiRequest) -> ApiResponse:
    """Whether more connections may come.
    rabbit 4.x: a node without a limit of connections is below it; those of vhosts and users are none of its own."""
    return reply({"status": "ok", "limit": "infinity", "connections": len(call.server.connections.by_name)})


async def check_size(call: ApiRequest) -> ApiResponse:
    """Whether as many nodes are there as shall be. rabbit 4.x: a cluster has the size that it has:
    nobody says how many nodes there are to be."""
    size = 1 if call.cluster is None else len(call.cluster.status()["nodes"])
    return reply({"status": "ok", "cluster_size": size, "target_cluster_size": size})


async def check_node(call: ApiRequest) -> ApiResponse:
    """Whether the node is well. rabbit: the old single health check; the app runs and no alarm is on."""
    this_node(call)
    if not call.server.app_running:
        return reply({"status": "failed", "reason": "the application is stopped"})
    if call.broker.alarm_reason:
        return reply({"status": "failed", "reason": f"resource alarm(s) in effect: {call.broker.alarm_reason}"})
    return _ok()


async def check_store(call: ApiRequest) -> ApiResponse:
    """Whether the metadata are there. rabbit 4.x: the metadata are read before there is a listener."""
    return _ok()


async def check_leaders(call: ApiRequest) -> ApiResponse:
    """Queues of the virtual host without a serving node.
    rabbit 4.x: every queue is led by its only node. Raises: ResourceNotFound, NotAuthorised for the vhost."""
    call.vhosts()
    return _ok()


_CHECKS: Final = "api/health/checks"
_UNIT_DAYS: Final = {"days": 1, "weeks": 7, "months": 30, "years": 365}
ROUTES: Final = (
    ApiRoute("GET", "api/aliveness-test/{vhost}", Role.MANAGEMENT, aliveness),
    ApiRoute("GET", "api/healthchecks/node", Role.MONITORING, check_node),
    ApiRoute("GET", "api/healthchecks/node/{node}", Role.MONITORING, check_node),
    ApiRoute("GET", "api/health/checks/alarms", Role.MONITORING, check_alarms),
    ApiRoute("GET", "api/health/checks/local-alarms", Role.MONITORING, check_alarms),
    ApiRoute("GET", "api/health/checks/audit-log", Role.MONITORING, check_audit),
    ApiRoute("GET", "api/health/checks/virtual-hosts", Role.MONITORING, check_vhosts),
    ApiRoute("GET", "api/health/checks/port-listener/{port}", Role.MONITORING, check_port),
    ApiRoute("GET", "api/health/checks/protocol-listener/{protocol}", Role.MONITORING, check_protocol),
    ApiRoute("GET", f"{_CHECKS}/certificate-expiration/{{within}}/{{unit}}", Role.MONITORING, check_certificates),
    ApiRoute("GET", f"{_CHECKS}/ready-to-serve-clients", Role.MONITORING, check_ready),
    ApiRoute("GET", f"{_CHECKS}/is-in-service", Role.MONITORING, check_ready),
    ApiRoute("GET", f"{_CHECKS}/below-node-connection-limit", Role.MONITORING, check_connections),
    ApiRoute("GET", f"{_CHECKS}/reached-target-cluster-size", Role.MONITORING, check_size),
    ApiRoute("GET", f"{_CHECKS}/metadata-store/initialized", Role.MONITORING, check_store),
    ApiRoute("GET", f"{_CHECKS}/metadata-store/initialized/with-data", Role.MONITORING, check_store),
    ApiRoute("GET", f"{_CHECKS}/quorum-queues-without-elected-leaders/vhost/{{vhost}}", Role.MONITORING, check_leaders),
    ApiRoute(
        "GET",
        f"{_CHECKS}/quorum-queues-without-elected-leaders/vhost/{{vhost}}/pattern/{{pattern}}",
        Role.MONITORING,
        check_leaders,
    ),
    ApiRoute("GET", f"{_CHECKS}/quorum-queues-without-elected-leaders/all-vhosts", Role.MONITORING, check_leaders),
    ApiRoute("GET", "api/health/checks/node-is-quorum-critical", Role.MONITORING, check_quorum),
    ApiRoute("GET", "api/health/checks/node-is-mirror-sync-critical", Role.MONITORING, check_quorum),
)
