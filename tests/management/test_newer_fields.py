"""Fields that rabbitmqadmin 2.x requires in an answer; without them it prints nothing.

These are the fields of its decoder (rabbitmq_http_client 0.92) that are not optional, with their types.
interop/test_rabbitmqadmin_ng.py runs the program.
"""

from __future__ import annotations

import pytest

NAMED = {"name": str, "vhost": str}
QUEUE = {**NAMED, "type": str, "durable": bool, "auto_delete": bool, "exclusive": bool, "arguments": dict}
EXCHANGE = {**NAMED, "type": str, "durable": bool, "auto_delete": bool, "arguments": dict}
POLICY = {**NAMED, "pattern": str, "apply-to": str, "priority": int, "definition": dict}
FEATURE = {"name": str, "desc": str, "doc_url": str, "provided_by": str}
CHURN = dict.fromkeys(
    (
        *("connection_created", "connection_closed", "queue_declared", "queue_created", "queue_deleted"),
        *("channel_created", "channel_closed"),
    ),
    int,
)
MEMORY = dict.fromkeys(
    (
        *("connection_readers", "connection_writers", "connection_channels", "connection_other", "queue_procs"),
        *("quorum_queue_procs", "stream_queue_procs", "stream_queue_replica_reader_procs", "plugins", "other_proc"),
        *("stream_queue_coordinator_procs", "metadata_store", "metrics", "mgmt_db", "mnesia", "quorum_ets", "binary"),
        *("metadata_store_ets", "other_ets", "msg_index", "code", "atom", "other_system", "allocated_unused"),
        "reserved_unallocated",
    ),
    int,
)
FIELDS = {
    "/api/overview": {
        **dict.fromkeys(("cluster_name", "node", "erlang_version", "erlang_full_version", "rabbitmq_version"), str),
        **dict.fromkeys(("product_name", "product_version"), str),
        "statistics_db_event_queue": int,
        "churn_rates": CHURN,
        "message_stats": dict,
        "queue_totals": {"messages": int, "messages_details": {"rate": float}},
        "object_totals": dict.fromkeys(("connections", "channels", "queues", "exchanges", "consumers"), int),
        "listeners": [{"node": str, "protocol": str, "port": int, "ip_address": str}],
    },
    "/api/nodes": [{"name": str, "being_drained": bool, "run_queue": int, "proc_total": int, "os_pid": str}],
    "/api/nodes/{node}/memory": {
        "memory": {**MEMORY, "strategy": str, "total": dict.fromkeys(("rss", "allocated", "erlang"), int)}
    },
    "/api/connections": [
        {
            **dict.fromkeys(("name", "node", "protocol", "user"), str),
            "connected_at": int,
            "client_properties": dict,
            "channels": int,
        }
    ],
    "/api/connections/username/guest": [{"name": str, "node": str, "user": str, "vhost": str}],
    "/api/channels": [
        {
            "number": int,
            "name": str,
            "connection_details": {"name": str, "peer_host": str, "peer_port": int},
            **dict.fromkeys(("vhost", "state"), str),
            "confirm": bool,
            **dict.fromkeys(("consumer_count", "prefetch_count"), int),
            **dict.fromkeys(("messages_unacknowledged", "messages_unconfirmed"), int),
        }
    ],
    "/api/consumers": [
        {
            "consumer_tag": str,
            **dict.fromkeys(("active", "ack_required", "exclusive"), bool),
            **dict.fromkeys(("prefetch_count", "consumer_timeout"), int),
            "arguments": dict,
            "queue": NAMED,
        }
    ],
    "/api/queues": [QUEUE],
    "/api/queues/detailed": [QUEUE],
    "/api/queues?page=1&page_size=1": {
        **dict.fromkeys(("filtered_count", "item_count", "page", "page_count", "page_size", "total_count"), int),
        "items": [QUEUE],
    },
    "/api/exchanges": [EXCHANGE],
    "/api/bindings": [
        {
            **dict.fromkeys(("vhost", "source", "destination", "destination_type", "routing_key"), str),
            "arguments": dict,
            "properties_key": str,
        }
    ],
    "/api/vhosts": [{"name": str}],
    "/api/users": [{"name": str, "tags": list}],
    "/api/whoami": {"name": str, "tags": list},
    "/api/permissions": [{"user": str, "vhost": str, "configure": str, "read": str, "write": str}],
    "/api/policies": [POLICY],
    "/api/operator-policies": [POLICY],
    "/api/parameters": [{"name": str, "vhost": str, "component": str, "value": dict}],
    "/api/vhost-limits": [{"vhost": str, "value": dict}],
    "/api/feature-flags": [{**FEATURE, "state": str, "stability": str}],
    "/api/deprecated-features": [{**FEATURE, "deprecation_phase": str}],
    "/api/deprecated-features/used": [{**FEATURE, "deprecation_phase": str}],
    "/api/auth/attempts/{node}": [
        {"protocol": str, "auth_attempts": int, "auth_attempts_failed": int, "auth_attempts_succeeded": int}
    ],
    "/api/definitions": {
        **dict.fromkeys(("users", "vhosts", "permissions", "parameters", "policies"), list),
        "queues": [{**NAMED, "durable": bool, "auto_delete": bool, "arguments": dict}],
        "exchanges": list,
        "bindings": list,
    },
    "/api/definitions/{vhost}": dict.fromkeys(("parameters", "policies", "queues", "exchanges", "bindings"), list),
}


@pytest.fixture(scope="module")
def path_names(api, amqpd_broker):
    """Create one object of each kind. Yield the node and vhost for paths."""
    import pika

    vhost = "newer-fields"
    api.send_ok("PUT", f"/api/vhosts/{vhost}")
    api.send_ok("PUT", f"/api/permissions/{vhost}/guest", {"configure": ".*", "write": ".*", "read": ".*"})
    for kind in ("policies", "operator-policies"):
        body = {"pattern": "^a", "definition": {"max-length": 5}, "apply-to": "queues", "priority": 1}
        api.send_ok("PUT", f"/api/{kind}/{vhost}/p", body)
    api.send_ok("PUT", f"/api/vhost-limits/{vhost}/max-queues", {"value": 100})
    parameters = pika.ConnectionParameters("127.0.0.1", amqpd_broker.amqp_port, vhost)
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    channel.queue_bind("q", "amq.topic", "a")
    channel.basic_consume("q", lambda *_: None)
    yield {"node": api.get("/api/overview")["node"], "vhost": vhost}
    connection.close()
    api.send_ok("DELETE", f"/api/vhosts/{vhost}")


def missing(expected, found, path=""):
    """Return the places where an answer differs from the expected fields and types."""
    if isinstance(expected, dict):
        if not isinstance(found, dict):
            return [path]
        absent = [f"{path}.{name}" for name in expected if name not in found]
        return absent + [
            each
            for name in expected
            if name in found
            for each in missing(expected[name], found[name], f"{path}.{name}")
        ]
    if isinstance(expected, list):
        if not isinstance(found, list) or not found:
            return [f"{path}[]"]
        return [each for item in found for each in missing(expected[0], item, f"{path}[]")]
    types = (int, float) if expected is float else (expected,)
    is_valid = isinstance(found, types) and (expected is bool or not isinstance(found, bool))
    return [] if is_valid else [f"{path}: {found!r}"]


@pytest.mark.parametrize("path", FIELDS)
def test_answer_has_each_field(api, path_names, path):
    found = api.get(path.format(**path_names))
    assert missing(FIELDS[path], found) == []
