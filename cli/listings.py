"""List commands over the lists of the admin API. A `Listing` maps each column to a place in the API's JSON.

Columns and their order are rabbitmqctl 3.10's. A column without a meaning here (mirrors, the certificate of a plain
connection) is empty, as in RabbitMQ for a queue without mirrors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from amqpd.cli.client import quoted
from amqpd.cli.command import MONITORING, Command, Context, named_columns

Item = dict[str, Any]


class Listing(NamedTuple):
    """The source and the columns of a list.

    Attributes:
        path: path in the API; `{vhost}` is replaced
        default: columns that are shown if the user names none
        columns: column -> keys that lead to its value in an item of the answer
    """

    path: str
    default: tuple[str, ...]
    columns: dict[str, tuple[str, ...]]

    def names(self) -> tuple[str, ...]:
        return (*self.default, *sorted(set(self.columns) - set(self.default)))


def plain(*names: str) -> dict[str, tuple[str, ...]]:
    return {name: (name,) for name in names}


def wanted(listing: Listing, operands: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that the user names, or the default ones. Raises: as `named_columns`."""
    return named_columns(listing.columns, operands) or listing.default


def value(item: Item, listing: Listing, column: str) -> Any:
    found: Any = item
    for key in listing.columns[column]:
        found = found.get(key) if isinstance(found, dict) else None
    if column == "protocol" and found == "AMQP 0-9-1":
        return "{0,9,1}"  # rabbit: the version as an Erlang tuple
    return "exchange" if column == "source_kind" else found


def fetch(context: Context, listing: Listing, columns: Sequence[str]) -> list[Item]:
    """Return the items, with only the keys that the columns need: ten thousand complete queues are 10 MB.

    A missing vhost gives an empty list, a line on standard error and exit code 0. rabbit: list_queues,
    list_exchanges, list_bindings and list_consumers do the same, without the line.
    """
    keys = ",".join(dict.fromkeys(".".join(listing.columns.get(name, (name,))) for name in columns))
    answer = context.client.send("GET", f"{listing.path.format(vhost=quoted(context.vhost))}?columns={keys}")
    if answer.status == 404 and "{vhost}" in listing.path:
        context.warn(f"Virtual host '{context.vhost}' does not exist")
        return []
    items: list[Item] = answer.checked().data
    return items


def list_items(context: Context, listing: Listing, text: str) -> None:
    """Show the wanted columns of all items. text: the line above them; `{vhost}` is replaced."""
    columns = wanted(listing, context.operands)
    context.info(text.format(vhost=context.vhost))
    show_items(context, listing, columns, fetch(context, listing, columns))


def show_items(context: Context, listing: Listing, columns: Sequence[str], items: Sequence[Item]) -> None:
    context.show(columns, [[value(item, listing, name) for name in columns] for item in items])


def add_pids(context: Context, columns: Collection[str], queues: list[Item]) -> None:
    """Add the pids that a queue's JSON lacks: of its owner's connection, of its exclusive consumer's channel."""
    if "owner_pid" in columns:
        pids = {item["name"]: item["pid"] for item in fetch(context, CONNECTIONS, ("name", "pid"))}
        for queue in queues:
            queue["owner_pid"] = pids.get((queue.get("owner_pid_details") or {}).get("name"))
    if "exclusive_consumer_pid" in columns:
        wanted = Listing(CONSUMERS.path, (), {**CONSUMERS.columns, **plain("exclusive")})
        consumers = fetch(context, wanted, ("queue_name", "channel_pid", "exclusive"))
        exclusive = [item for item in consumers if item["exclusive"]]
        pids = {value(item, wanted, "queue_name"): value(item, wanted, "channel_pid") for item in exclusive}
        for queue in queues:
            queue["exclusive_consumer_pid"] = pids.get(queue["name"])


QUEUES: Final = Listing(
    "/api/queues/{vhost}",
    ("name", "messages"),
    plain(
        "arguments", "auto_delete", "consumer_capacity", "consumer_utilisation", "consumers", "degraded", "disk_reads",
        "disk_writes", "durable", "effective_policy_definition", "exclusive", "exclusive_consumer_pid",
        "exclusive_consumer_tag", "group_by", "groups_locked", "groups_waiting", "head_message_timestamp",
        "leader", "lost_offsets", "members", "memory", "message_bytes", "message_bytes_persistent",
        "message_bytes_ram", "message_bytes_ready", "message_bytes_retained", "message_bytes_unacknowledged",
        "messages", "messages_delayed_retry", "messages_persistent", "messages_ram", "messages_ready",
        "messages_ready_ram", "messages_retained",
        "messages_unacknowledged", "messages_unacknowledged_ram", "messages_unmatched", "name", "online",
        "operator_policy", "owner_pid", "pid", "policy", "retained_first_offset", "retained_first_timestamp",
        "slave_pids", "state", "synchronised_slave_pids", "type",
    ),
)  # fmt: skip
EXCHANGES: Final = Listing(
    "/api/exchanges/{vhost}",
    ("name", "type"),
    plain(
        "arguments", "auto_delete", "durable", "effective_policy_definition", "internal", "messages_delayed", "name",
        "operator_policy", "policy", "state", "type",
    ),
)  # fmt: skip
BINDINGS: Final = Listing(
    "/api/bindings/{vhost}",
    ("source_name", "source_kind", "destination_name", "destination_kind", "routing_key", "arguments"),
    {
        "source_name": ("source",),
        "source_kind": ("source_kind",),
        "destination_name": ("destination",),
        "destination_kind": ("destination_type",),
        **plain("routing_key", "arguments"),
    },
)
CONNECTIONS: Final = Listing(
    "/api/connections",
    ("user", "peer_host", "peer_port", "state"),
    plain(
        "auth_mechanism", "channel_max", "channels", "client_properties", "connected_at", "frame_max", "host",
        "name", "peer_cert_issuer", "peer_cert_subject", "peer_cert_validity", "peer_host", "peer_port", "pid",
        "port", "protocol", "recv_cnt", "recv_oct", "send_cnt", "send_oct", "send_pend", "ssl", "ssl_cipher",
        "ssl_hash", "ssl_key_exchange", "ssl_protocol", "state", "timeout", "user", "vhost",
    ),
)  # fmt: skip
CHANNELS: Final = Listing(
    "/api/channels",
    ("pid", "user", "consumer_count", "messages_unacknowledged"),
    plain(
        "acks_uncommitted", "confirm", "connection", "consumer_count", "global_prefetch_count",
        "messages_unacknowledged", "messages_uncommitted", "messages_unconfirmed", "name", "number", "pid",
        "prefetch_count", "transactional", "user", "vhost",
    ),
)  # fmt: skip
CONSUMERS: Final = Listing(
    "/api/consumers/{vhost}",
    ("queue_name", "channel_pid", "consumer_tag", "ack_required", "prefetch_count", "active", "arguments"),
    {
        "queue_name": ("queue", "name"),
        "channel_pid": ("channel_details", "pid"),
        **plain(
            "ack_required", "active", "activity_status", "arguments", "consumer_tag", "groups_held", "prefetch_count"
        ),
    },
)
VHOSTS: Final = Listing(
    "/api/vhosts",
    ("name",),
    plain("cluster_state", "default_queue_type", "description", "name", "protected_from_deletion", "tags", "tracing"),
)


def list_queues(context: Context) -> None:
    columns = wanted(QUEUES, context.operands)
    context.info(f"Timeout: {context.timeout_ms / 1000} seconds ...")
    context.info(f"Listing queues for vhost {context.vhost} ...")
    given = context.line.given
    if "offline" in given and not {"online", "local"} & set(given):
        context.show(columns, [])  # queues of stopped nodes: the only node runs
        return
    pids = {"owner_pid", "exclusive_consumer_pid"} & set(columns)
    queues = fetch(context, QUEUES, (*columns, "name", "owner_pid_details") if pids else columns)
    if pids and queues:
        add_pids(context, pids, queues)
    show_items(context, QUEUES, columns, queues)


def _command(
    name: str,
    summary: str,
    run: Callable[[Context], None] | str,
    listing: Listing,
    options: tuple[str, ...] = (),
    examples: tuple[tuple[str, str], ...] = (),
    group: str = MONITORING,
) -> Command:
    """Return a list command. run: the command, or the text for `list_items`."""
    run = partial(list_items, listing=listing, text=run) if isinstance(run, str) else run
    vhost = "[--vhost <vhost>] " if "{vhost}" in listing.path else ""
    own = "".join(f"[--{option}] " for option in options)
    usage = f"{vhost}{own}[--no-table-headers] [<column> ...] [--timeout <timeout>]"
    columns, shown = listing.names(), len(listing.default)
    return Command(group, run, summary, usage, own_name=name, columns=columns, shown=shown, examples=examples)


COMMANDS: Final = (
    _command(
        "list_bindings",
        "Shows the bindings of a vhost",
        "Listing bindings for vhost {vhost}...",  # rabbit: no space before the dots
        BINDINGS,
        examples=(("list_bindings -p shop source_name destination_name routing_key", "the routes of vhost shop"),),
    ),
    _command(
        "list_channels",
        "Lists the channels",
        "Listing channels ...",
        CHANNELS,
        examples=(("list_channels name prefetch_count messages_unacknowledged", "channels with unacked messages"),),
    ),
    _command(
        "list_connections",
        "Shows the connections of AMQP clients",
        "Listing connections ...",
        CONNECTIONS,
        examples=(
            ("list_connections -q pid peer_port client_properties", "pids for close_connection"),
            ("list_connections --formatter pretty_table name user state", "for people"),
        ),
    ),
    _command(
        "list_consumers",
        "Shows the consumers of a vhost",
        "Listing consumers in vhost {vhost} ...",
        CONSUMERS,
        examples=(("list_consumers queue_name consumer_tag prefetch_count", "the consumers of each queue"),),
    ),
    _command(
        "list_exchanges",
        "Lists exchanges",
        "Listing exchanges for vhost {vhost} ...",
        EXCHANGES,
        examples=(("list_exchanges name type durable arguments", "exchanges of vhost /"),),
    ),
    _command(
        "list_queues",
        "Shows queues with the named columns",
        list_queues,
        QUEUES,
        ("online", "offline", "local"),
        (
            ("list_queues", "names and numbers of messages in vhost /"),
            ("list_queues -p shop name messages_ready messages_unacknowledged consumers", "waiting, unacked"),
            ("list_queues --formatter json name messages", "for programs"),
        ),
    ),
    _command(
        "list_vhosts",
        "Lists virtual hosts",
        "Listing vhosts ...",
        VHOSTS,
        examples=(("list_vhosts name description tags --formatter json", "all vhosts, for programs"),),
        group="Access Control",
    ),
)
