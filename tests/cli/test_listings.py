from __future__ import annotations

import json
from typing import Any

import pytest
from fake_broker import Ctl, FakeBroker

from amqpd.cli.commands import COMMANDS
from amqpd.cli.streams import LISTS

QUEUES = [
    {
        "name": "orders",
        "messages": 3,
        "consumers": 1,
        "durable": True,
        "arguments": {"x-max-length": 10},
        "policy": None,
        "owner_pid_details": None,
        "type": "classic",
    },
    {"name": "reply", "messages": 0, "arguments": {}, "owner_pid_details": {"name": "a -> b", "pid": "<n@h.3.0>"}},
]
CONNECTION = {
    "pid": "<n@h.3.0>",
    "user": "guest",
    "peer_host": "127.0.0.1",
    "peer_port": 4711,
    "state": "running",
    "protocol": "AMQP 0-9-1",
    "client_properties": {"product": "pika", "connection_name": "NAME", "capabilities": {"basic.nack": True}},
}
CONSUMER = {
    "queue": {"name": "orders", "vhost": "/"},
    "channel_details": {"pid": "<n@h.4.0>", "name": "a -> b (1)"},
    "consumer_tag": "ctag",
    "ack_required": True,
    "prefetch_count": 2,
    "active": True,
    "activity_status": "up",
    "arguments": {"x-priority": 3},
}
BINDING = {
    "source": "",
    "vhost": "/",
    "destination": "orders",
    "destination_type": "queue",
    "routing_key": "orders",
    "arguments": {},
    "properties_key": "orders",
}


def test_list_queues_prints_like_rabbitmqctl(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["GET", "/api/queues/%2F"] = (200, QUEUES)
    assert ctl("list_queues") == (
        0,
        "Timeout: 60.0 seconds ...\nListing queues for vhost / ...\nname\tmessages\norders\t3\nreply\t0\n",
        "",
    )
    assert ctl("list_queues", "-q").out == "name\tmessages\norders\t3\nreply\t0\n"
    assert ctl("list_queues", "-s").out == "orders\t3\nreply\t0\n"
    assert ctl("list_queues", "-t", "5").out.startswith("Timeout: 5.0 seconds ...\n")


def test_columns_are_in_requested_order(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["GET", "/api/queues/%2F"] = (200, QUEUES)
    broker.answers["GET", "/api/connections"] = (200, [{"name": "a -> b", "pid": "<n@h.3.0>"}])
    expected = 'messages\tname\towner_pid\targuments\n3\torders\t\t[{"x-max-length",10}]\n0\treply\t<n@h.3.0>\t[]\n'
    assert ctl("list_queues", "-q", "messages", "name", "owner_pid", "arguments").out == expected
    assert ctl("list_queues", "-q", "messages,name", "owner_pid,arguments", "name").out == expected


def test_exclusive_consumer_pid_is_shown(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["GET", "/api/queues/%2F"] = (200, QUEUES)
    shared = {**CONSUMER, "queue": {"name": "reply"}, "exclusive": False}
    broker.answers["GET", "/api/consumers/%2F"] = (200, [{**CONSUMER, "exclusive": True}, shared])
    assert ctl("list_queues", "-s", "name", "exclusive_consumer_pid").out == "orders\t<n@h.4.0>\nreply\t\n"


def test_only_shown_columns_are_requested(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["GET", "/api/consumers/%2F"] = (200, [CONSUMER])
    assert ctl("list_consumers", "queue_name", "consumer_tag").code == 0
    assert broker.requests[0].path == "/api/consumers/%2F?columns=queue.name,consumer_tag"


def test_vhost_is_encoded_as_one_path_segment(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["GET", "/api/queues/a%2Fb%20%C3%A9%3F"] = (200, [])
    assert ctl("-p", "a/b é?", "list_queues", "--formatter", "json") == (0, "[\n]\n", "")


def test_json_and_csv_have_no_banner(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["GET", "/api/queues/%2F"] = (200, QUEUES)
    found = json.loads(ctl("list_queues", "--formatter", "json", "name", "arguments", "policy").out)
    assert found[0] == {"name": "orders", "arguments": {"x-max-length": 10}, "policy": ""}
    assert ctl("list_queues", "--formatter", "csv").out == '"name","messages"\n"orders","3"\n"reply","0"\n'


def test_unknown_columns_send_nothing(broker: FakeBroker, ctl: Ctl) -> None:
    result = ctl("list_queues", "name", "foo", "bar")
    assert (result.code, result.out, broker.requests) == (64, "", [])
    assert result.err.startswith(
        "Error (argument validation): Info key(s) bar,foo are not supported\n"
        "Arguments given:\n\t-n n@h list_queues name foo bar\n\nUsage\n\namqpctl "
    )


@pytest.mark.parametrize("command", ["list_queues", "list_exchanges", "list_bindings", "list_consumers"])
def test_missing_vhost_is_an_empty_list(broker: FakeBroker, ctl: Ctl, command: str) -> None:
    result = ctl(command, "-p", "nope")
    assert result.code == 0
    assert result.err == "Virtual host 'nope' does not exist\n"
    assert ctl(command, "-p", "nope", "-q") == (0, "", "")


def test_offline_queues_are_none_on_one_node(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["GET", "/api/queues/%2F"] = (200, QUEUES)
    assert ctl("list_queues", "-q", "--offline").out == ""
    assert ctl("list_queues", "-q", "--local").out == ctl("list_queues", "-q", "--online").out != ""


def test_client_properties_are_printed_as_erlang_terms(broker: FakeBroker, ctl: Ctl) -> None:
    """RabbitMQ's Java client reads pid, port, and "connection_name","NAME"."""
    broker.answers["GET", "/api/connections"] = (200, [CONNECTION])
    assert ctl("list_connections", "-q", "pid", "peer_port", "client_properties").out == (
        "pid\tpeer_port\tclient_properties\n"
        '<n@h.3.0>\t4711\t[{"product","pika"},{"connection_name","NAME"},{"capabilities",[{"basic.nack",true}]}]\n'
    )
    assert ctl("list_connections", "protocol", "-s").out == "{0,9,1}\n"


@pytest.mark.parametrize(
    ("command", "path", "item", "expected"),
    [
        (
            "list_connections",
            "/api/connections",
            CONNECTION,
            "Listing connections ...\nuser\tpeer_host\tpeer_port\tstate\nguest\t127.0.0.1\t4711\trunning\n",
        ),
        (
            "list_channels",
            "/api/channels",
            {"pid": "<n@h.4.0>", "user": "guest", "consumer_count": 1, "messages_unacknowledged": 2},
            "Listing channels ...\npid\tuser\tconsumer_count\tmessages_unacknowledged\n<n@h.4.0>\tguest\t1\t2\n",
        ),
        (
            "list_consumers",
            "/api/consumers/%2F",
            CONSUMER,
            (
                "Listing consumers in vhost / ...\n"
                "queue_name\tchannel_pid\tconsumer_tag\tack_required\tprefetch_count\tactive\targuments\n"
                'orders\t<n@h.4.0>\tctag\ttrue\t2\ttrue\t[{"x-priority",3}]\n'
            ),
        ),
        (
            "list_exchanges",
            "/api/exchanges/%2F",
            {"name": "", "type": "direct"},
            "Listing exchanges for vhost / ...\nname\ttype\n\tdirect\n",
        ),
        (
            "list_bindings",
            "/api/bindings/%2F",
            BINDING,
            (
                "Listing bindings for vhost /...\n"
                "source_name\tsource_kind\tdestination_name\tdestination_kind\trouting_key\targuments\n"
                "\texchange\torders\tqueue\torders\t[]\n"
            ),
        ),
        ("list_vhosts", "/api/vhosts", {"name": "/", "tags": []}, "Listing vhosts ...\nname\n/\n"),
    ],
)
def test_banner_header_and_default_columns(
    broker: FakeBroker, ctl: Ctl, command: str, path: str, item: dict[str, Any], expected: str
) -> None:
    broker.answers["GET", path] = (200, [item])
    assert ctl(command) == (0, expected, "")


# Routes of commands whose name does not give their route in a vhost.
PATHS = {
    "list_connections": "connections",
    "list_channels": "channels",
    "list_vhosts": "vhosts",
    "list_stream_offsets": "queues/%2F/q/offsets",
    "list_delayed_messages": "delayed/%2F",
    "list_jobs": "amqpd/jobs",
    "list_kafka_groups": "amqpd/kafka/groups/%2F",
    "browse_queue": "queues/%2F/q/messages",
    "trace_message": "amqpd/trace/%2F",
    "audit_log": "audit",
    "list_feature_flags": "feature-flags",
}
# Commands whose items are one field of the answer: the field and the other fields.
WRAPPED: dict[str, tuple[str, dict[str, Any]]] = {
    "browse_queue": ("messages", {"ended": True}),
    "trace_message": ("found", {"skipped": 0, "next": None}),
    "audit_log": ("records", {"ended": True, "next_offset": 1, "lost": 0}),
}


# Commands with always empty lists, and one that takes its items from a health check.
EMPTY = {"list_deprecated_features", "list_unresponsive_queues", *(f"list_stream_{kind}" for kind in LISTS)}


@pytest.mark.parametrize(
    "command", sorted(name for name, command in COMMANDS.items() if command.columns and name not in EMPTY)
)
def test_every_column_can_be_shown(broker: FakeBroker, ctl: Ctl, command: str) -> None:
    path = PATHS.get(command, command.removeprefix("list_") + "/%2F")
    broker.answers["GET", "/api/connections"] = broker.answers["GET", "/api/consumers/%2F"] = (200, [])
    items = [{"name": "x", "queue": "q", "deaths": None}]
    name, other_fields = WRAPPED.get(command, ("", {}))
    broker.answers["GET", f"/api/{path}"] = (200, {name: items, **other_fields} if name else items)
    columns = COMMANDS[command].columns
    operands = ["q"] if COMMANDS[command].least else []
    result = ctl(command, "--formatter", "json", *operands, *columns)
    assert result.code == 0
    assert list(json.loads(result.out)[0]) == list(columns)
