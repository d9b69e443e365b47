"""Intended differences of amqpd from RabbitMQ, each with its reason: another status (ten at most), or a missing
field.
"""

from __future__ import annotations

from typing import Final, NamedTuple

NOT_A_CRASH: Final = "RabbitMQ fails with an internal error; amqpd says what is wrong, or does not exist"


class Status(NamedTuple):
    call: str
    theirs: int
    ours: int
    reason: str


class Missing(NamedTuple):
    """path: the begin of the call's path. fields: names at any place of the answer."""

    path: str
    fields: frozenset[str]
    reason: str


STATUS: Final = (
    Status("GET /api/definitions/nosuch", 400, 404, "404 for a vhost that does not exist, as everywhere else"),
    Status("GET /api/connections/nosuch/channels", 500, 404, NOT_A_CRASH),
    Status("OPTIONS /api/nosuch", 200, 404, "the path does not exist"),
    Status(
        "PUT /api/queues/new/four {'arguments': {'x-queue-type': 'quorum'}}",
        *(400, 201, "without `durable` a queue is durable; RabbitMQ takes it for transient, and then refuses the type"),
    ),
    Status(
        "PUT /api/queues/new/seven {'arguments': {'x-queue-type': 'stream'}}",
        *(400, 201, "without `durable` a queue is durable; RabbitMQ takes it for transient, and then refuses the type"),
    ),
    Status(
        "POST /api/exchanges/new/amq.default/publish {'properties': {'nosuch': 2}, 'routing_key': 'orders', "
        "'payload': 'x', 'payload_encoding': 'string'}",
        *(200, 400, "an unknown property would be lost silently"),
    ),
    Status(
        "POST /api/exchanges/new/amq.default/publish {'properties': [], 'routing_key': 'orders', 'payload': 'x', "
        "'payload_encoding': 'string'}",
        *(500, 200, NOT_A_CRASH),
    ),
    Status("POST /api/queues/new/one/get {'count': 1, 'ackmode': 'nosuch', 'encoding': 'auto'}", 500, 400, NOT_A_CRASH),
    Status("POST /api/queues/new/nosuch/actions {'action': 'sync'}", 500, 404, NOT_A_CRASH),
    Status("POST /api/definitions {", 415, 400, "the body is not JSON; RabbitMQ says 415 only here"),
)
NOT_YET: Final = ()


def _missing(path: str, fields: str, reason: str) -> Missing:
    return Missing(path, frozenset(fields.split()), reason)


MISSING: Final = (
    _missing("/api/", "reductions garbage_collection", "about Erlang processes, which amqpd does not have"),
    _missing("/api/", "socket_opts cowboy_opts ssl_opts", "options of Erlang's listeners"),
    _missing("/api/overview", "disk_reads disk_writes", "about RabbitMQ's message store; amqpd writes to logs"),
    _missing(
        "/api/overview",
        "message_stats churn_rates messages_details messages_ready_details messages_unacknowledged_details",
        "without the tag monitoring amqpd does not show totals, as they include vhosts that the user may not see",
    ),
    _missing(
        "/api/overview?columns=object_totals.queues",
        "channels connections consumers exchanges",
        "a column with a dot is this field alone, as in lists; RabbitMQ shows all of object_totals",
    ),
    _missing(
        "/api/nodes",
        "gc_bytes_reclaimed metrics_gc_queue_length mnesia_disk_tx_count mnesia_ram_tx_count ra_open_file_metrics",
        "about Erlang, Mnesia and Ra, which amqpd does not have",
    ),
    _missing(
        "/api/nodes",
        "io_read_avg_time io_reopen_count io_seek_avg_time io_seek_count io_write_avg_time "
        "msg_store_read_count msg_store_write_count queue_index_read_count queue_index_write_count",
        "about RabbitMQ's message store and its index, which amqpd does not have",
    ),
    _missing("/api/nodes", "binary ets_tables_memory", "about Erlang's memory; `memory` has what amqpd's process uses"),
    _missing(
        "/api/queues/shop/nosuch/bindings",
        "source vhost destination destination_type routing_key arguments properties_key",
        "nothing is bound to a queue that is not there",
    ),
    _missing(
        "/api/bindings?page=1&page_size=3",
        "source vhost destination destination_type routing_key arguments properties_key",
        "RabbitMQ does not page bindings and answers an array; amqpd pages them, too",
    ),
    _missing("/api/", "recv_cnt send_cnt send_pend", "amqpd counts bytes, not packets"),
    _missing("/api/", "idle_since", "shown once nothing has happened for about five seconds"),
    _missing("/api/", "pending_raft_commands", "about Raft, which amqpd does not use"),
    _missing(
        "/api/queues",
        "backing_queue_status memory recoverable_slaves open_files readers messages_dlx message_bytes_dlx totals "
        "single_active_consumer_ctag type_specific",
        "about the inside of RabbitMQ's queues; single_active_consumer_tag is there for every kind of queue",
    ),
)


def allowed(path: str, field: str) -> Missing | None:
    """Return the entry that allows this field to be missing, by one of the names in its path."""
    names = {name.removesuffix("[]") for name in field.split(".")}
    names |= {name.removesuffix("_details") for name in names}
    for each in MISSING:
        if path.startswith(each.path) and names & each.fields:
            return each
    return None
