"""Where ours answers otherwise on purpose, each with its reason: another status (ten at most), or a field less."""

from __future__ import annotations

from typing import Final, NamedTuple

NOT_A_CRASH: Final = "RabbitMQ fails at it with a 500; what was asked is wrong, or nothing is there"


class Status(NamedTuple):
    call: str
    theirs: int
    ours: int
    reason: str


class Missing(NamedTuple):
    """path: what the call's path begins with. fields: names, wherever they stand in the answer."""

    path: str
    fields: frozenset[str]
    reason: str


STATUS: Final = (
    Status("GET /api/definitions/nosuch", 400, 404, "a vhost that is not there is not there"),
    Status("GET /api/connections/nosuch/channels", 500, 404, NOT_A_CRASH),
    Status("OPTIONS /api/nosuch", 200, 404, "nothing can be asked of a path that is none"),
    Status(
        "PUT /api/queues/new/four {'arguments': {'x-queue-type': 'quorum'}}",
        *(400, 201, "a queue is durable unless it is said otherwise, as RabbitMQ's clients say"),
    ),
    Status(
        "PUT /api/queues/new/seven {'arguments': {'x-queue-type': 'stream'}}",
        *(400, 201, "a queue is durable unless it is said otherwise, as RabbitMQ's clients say"),
    ),
    Status(
        "POST /api/exchanges/new/amq.default/publish {'properties': {'nosuch': 2}, 'routing_key': 'orders', "
        "'payload': 'x', 'payload_encoding': 'string'}",
        *(200, 400, "a property that is none would be lost without a word"),
    ),
    Status(
        "POST /api/exchanges/new/amq.default/publish {'properties': [], 'routing_key': 'orders', 'payload': 'x', "
        "'payload_encoding': 'string'}",
        *(500, 200, NOT_A_CRASH),
    ),
    Status(
        "POST /api/queues/new/one/get {'count': 1, 'ackmode': 'nosuch', 'encoding': 'auto'}", 500, 400, NOT_A_CRASH
    ),
    Status("POST /api/queues/new/nosuch/actions {'action': 'sync'}", 500, 404, NOT_A_CRASH),
    Status("POST /api/definitions {", 415, 400, "it is taken for JSON as everywhere else, and is none"),
)
NOT_YET: Final = (
)


def _missing(path: str, fields: str, reason: str) -> Missing:
    return Missing(path, frozenset(fields.split()), reason)


MISSING: Final = (
    _missing("/api/", "reductions garbage_collection", "of Erlang's processes; there are none"),
    _missing("/api/", "socket_opts cowboy_opts ssl_opts", "options of Erlang's listeners"),
    _missing("/api/overview", "disk_reads disk_writes", "of a message store; logs are written in batches, for many"),
    _missing(
        "/api/overview",
        "message_stats churn_rates messages_details messages_ready_details messages_unacknowledged_details",
        "totals of all vhosts are not for those who may see some: asked without the tag monitoring",
    ),
    _missing(
        "/api/nodes",
        "gc_bytes_reclaimed metrics_gc_queue_length mnesia_disk_tx_count mnesia_ram_tx_count ra_open_file_metrics",
        "of Erlang, Mnesia and Ra; there are none",
    ),
    _missing(
        "/api/nodes",
        "io_read_avg_time io_reopen_count io_seek_avg_time io_seek_count io_write_avg_time "
        "msg_store_read_count msg_store_write_count queue_index_read_count queue_index_write_count",
        "of a message store with an index; there is none",
    ),
    _missing("/api/nodes", "binary ets_tables_memory", "of Erlang's memory; what the process has is in memory"),
    _missing("/api/extensions", "javascript", "of the user interface, which is not there"),
    _missing("/api/global-parameters", "name value", "none is set; RabbitMQ keeps its cluster's name and id there"),
    _missing(
        "/api/queues/shop/nosuch/bindings",
        "source vhost destination destination_type routing_key arguments properties_key",
        "nothing is bound to a queue that is not there",
    ),
    _missing(
        "/api/bindings?page=1&page_size=3",
        "source vhost destination destination_type routing_key arguments properties_key",
        "items of a page are the same; their order is not",
    ),
    _missing("/api/", "recv_cnt send_cnt send_pend", "packets are the kernel's; bytes are counted"),
    _missing("/api/", "idle_since", "is told when a sweep of five seconds has seen it stand still"),
    _missing("/api/", "pending_raft_commands", "of Raft, which is not there"),
    _missing(
        "/api/queues",
        "backing_queue_status memory recoverable_slaves open_files readers messages_dlx message_bytes_dlx totals "
        "single_active_consumer_ctag type_specific",
        "of RabbitMQ's implementations of queues; single_active_consumer_tag is told of every kind",
    ),
)


def allowed(path: str, field: str) -> Missing | None:
    """What says that this field may be missing: by one of the names it is made of."""
    names = {name.removesuffix("[]") for name in field.split(".")}
    names |= {name.removesuffix("_details") for name in names}
    for each in MISSING:
        if path.startswith(each.path) and names & each.fields:
            return each
    return None
