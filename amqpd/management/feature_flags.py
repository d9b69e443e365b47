"""Feature flags: RabbitMQ's names for what a node may have switched off, and amqpd never has.

Clients' suites, Ansible and upgrade scripts ask for the list and enable all of it; both are right here at any time.
Only flags whose feature is there are on the list.
"""

from __future__ import annotations

from typing import Any, Final

from amqpd.management.call import NO_CONTENT, BadRequest, Call, Reply, Role, reply
from amqpd.management.router import Route

FLAGS: Final = {
    "consumer_timeout": "Deliveries that are unacked for too long end their consumer",
    "direct_exchange_routing_v2": "Direct exchanges route by a table",
    "implicit_default_bindings": "Default bindings are implicit, not stored",
    "maintenance_mode_status": "Maintenance mode status",
    "quorum_queue": "Support queues of type `quorum`",
    "stream_queue": "Support queues of type `stream`",
    "stream_filtering": "Support for stream filtering",
    "stream_single_active_consumer": "Single active consumer for streams",
    "user_limits": "Configure connection and channel limits for a user",
    "virtual_host_metadata": "Virtual host metadata (description, tags, etc)",
}


def item(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "desc": FLAGS[name],
        "doc_url": "",
        "provided_by": "amqpd",
        "stability": "stable",
        "state": "enabled",
    }


async def get_flags(_call: Call) -> Reply:
    return reply([item(name) for name in sorted(FLAGS)])


async def enable(call: Call) -> Reply:
    """rabbit: 204 also for what is enabled already."""
    if call.params["name"] not in FLAGS:
        raise BadRequest("unsupported")
    return NO_CONTENT


ROUTES: Final = (
    Route("GET", "api/feature-flags", Role.MONITORING, get_flags),
    Route("PUT", "api/feature-flags/{name}/enable", Role.ADMINISTRATOR, enable),
)
