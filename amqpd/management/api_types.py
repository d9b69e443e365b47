"""What the API answers, as types: from these come the schemas of the OpenAPI description, and from that the page's own.

A field that stands here is there, unless it is NotRequired; an answer may have more, and RabbitMQ's documentation says
what those mean. `tests/management/test_shapes.py` holds the answers of a broker at work with them. Times are ms since
1970 unless the name says otherwise, sizes bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, NotRequired, TypedDict

from amqpd.management.arguments import Argument

_Table = dict[str, Any]


class Sample(TypedDict):
    sample: float
    timestamp: int


class Details(TypedDict):
    """rate: a second, over the last five. The others with `..._age` and `..._incr` in the query.

    samples: newest first; a moment at which nothing was recorded is not among them. recorded_since: ms since 1970.
    """

    rate: float
    samples: NotRequired[list[Sample]]
    avg: NotRequired[float]
    avg_rate: NotRequired[float]
    recorded_since: NotRequired[int]


class MessageStats(TypedDict, total=False):
    """Counted since the start. return: published with mandatory and routed nowhere (`return_unroutable`)."""

    publish: int
    publish_details: Details
    confirm: int
    confirm_details: Details
    deliver: int
    deliver_details: Details
    deliver_no_ack: int
    deliver_no_ack_details: Details
    get: int
    get_details: Details
    get_no_ack: int
    get_no_ack_details: Details
    get_empty: int
    get_empty_details: Details
    deliver_get: int
    deliver_get_details: Details
    redeliver: int
    redeliver_details: Details
    ack: int
    ack_details: Details
    return_unroutable: int
    return_unroutable_details: Details
    drop_unroutable: int
    drop_unroutable_details: Details
    publish_in: int
    publish_in_details: Details
    publish_out: int
    publish_out_details: Details


class Session(TypedDict):
    """ends_in_s: null for who is not logged in by the page's cookie, or was at another node. node: that answers."""

    name: str
    tags: list[str]
    ends_in_s: int | None
    node: str
    cluster_name: str
    clustered: bool


class ObjectTotals(TypedDict):
    connections: int
    channels: int
    consumers: int
    exchanges: int
    queues: int


class QueueTotals(TypedDict):
    messages: int
    messages_ready: int
    messages_unacknowledged: int
    messages_delayed: int
    messages_delayed_retry: int
    messages_details: NotRequired[Details]
    messages_ready_details: NotRequired[Details]
    messages_unacknowledged_details: NotRequired[Details]


class Listener(TypedDict):
    node: str
    protocol: str
    ip_address: str
    port: int


class ExchangeType(TypedDict):
    name: str


class Overview(TypedDict):
    """message_stats, churn_rates and listeners: for the tag monitoring. missing_nodes: in a cluster, whose
    part it lacks.
    """

    cluster_name: str
    node: str
    amqpd_version: str
    product_name: str
    product_version: str
    object_totals: ObjectTotals
    queue_totals: QueueTotals
    exchange_types: list[ExchangeType]
    message_stats: NotRequired[MessageStats]
    churn_rates: NotRequired[_Table]
    listeners: NotRequired[list[Listener]]
    missing_nodes: NotRequired[list[str]]


class Clock(TypedDict):
    """state: `steady` or `held`. jump_s: how far the wall clock is ahead because of a jump that is held; below 0: it is
    behind.
    """

    state: str
    jump_s: float
    held_for_s: int


class Node(TypedDict):
    """uptime: ms. io_sync_avg_time: ms."""

    name: str
    running: bool
    being_drained: bool
    uptime: int
    processors: int | None
    os_pid: str
    db_dir: str
    clock: Clock
    platform: str
    mem_used: int
    mem_used_details: Details
    mem_limit: int
    mem_alarm: bool
    disk_free: int
    disk_free_details: Details
    disk_free_limit: int
    disk_free_alarm: bool
    fd_used: int
    fd_total: int
    sockets_used: int
    sockets_total: int
    io_sync_avg_time: float
    io_sync_count: int
    io_sync_count_details: Details
    io_write_bytes_details: Details


class Histogram(TypedDict):
    """counts: up to each bound, each by itself, and one more above the last; since the start."""

    bounds_s: list[float]
    counts: list[int]
    total_s: float


class NameInVhost(TypedDict):
    name: str
    vhost: str


class LiveStatus(TypedDict):
    """alarms: each as a sentence. held: connections that are not read, by what holds them."""

    alarms: list[str]
    failed_logs: list[NameInVhost]
    failed_log_count: int
    app_running: bool
    held: dict[str, int]
    unsynced_bytes: int
    sync: Histogram
    loop_lag: Histogram


class Rights(TypedDict):
    configure: bool
    write: bool
    read: bool


class ChannelDetails(TypedDict):
    name: str
    number: int
    connection_name: str
    user: str
    peer_host: str
    peer_port: int


class StreamPlace(TypedDict):
    """name: under which its place is kept, null for none. lag: records from its place to the end."""

    name: str | None
    offset: int | None
    lag: int | None
    committed: int | None


class Consumer(TypedDict):
    queue: NameInVhost
    consumer_tag: str
    ack_required: bool
    exclusive: bool
    active: bool
    activity_status: Literal["up", "single_active", "waiting"]
    prefetch_count: int
    arguments: _Table
    channel_details: NotRequired[ChannelDetails]
    groups_held: NotRequired[int]
    stream: NotRequired[StreamPlace]


class Queue(TypedDict):
    """message_bytes and the like, and all that is counted: not with `disable_stats`."""

    name: str
    vhost: str
    type: Literal["classic", "quorum", "stream"]
    durable: bool
    auto_delete: bool
    exclusive: bool
    arguments: _Table
    node: str
    state: Literal["running", "syncing", "down"]
    state_reason: NotRequired[str | None]
    policy: NotRequired[str | None]
    operator_policy: NotRequired[str | None]
    effective_policy_definition: NotRequired[_Table]
    degraded: NotRequired[bool]
    lost_offsets: NotRequired[list[list[int]]]
    messages: NotRequired[int]
    messages_ready: NotRequired[int]
    messages_unacknowledged: NotRequired[int]
    messages_details: NotRequired[Details]
    messages_ready_details: NotRequired[Details]
    messages_unacknowledged_details: NotRequired[Details]
    messages_delayed_retry: NotRequired[int]
    messages_unmatched: NotRequired[int]
    messages_retained: NotRequired[int | None]
    retained_first_offset: NotRequired[int | None]
    retained_first_timestamp: NotRequired[int | None]
    group_by: NotRequired[str | None]
    groups_locked: NotRequired[int | None]
    groups_waiting: NotRequired[int | None]
    message_bytes: NotRequired[int]
    message_bytes_ram: NotRequired[int]
    head_message_timestamp: NotRequired[int | None]
    consumers: NotRequired[int]
    consumer_utilisation: NotRequired[float]
    exclusive_consumer_tag: NotRequired[str | None]
    single_active_consumer_tag: NotRequired[str | None]
    idle_since: NotRequired[str]
    message_stats: NotRequired[MessageStats]
    consumer_details: NotRequired[list[Consumer]]


class Binding(TypedDict):
    source: str
    vhost: str
    destination: str
    destination_type: Literal["queue", "exchange"]
    routing_key: str
    arguments: _Table
    properties_key: str


class Exchange(TypedDict):
    name: str
    vhost: str
    type: str
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: _Table
    policy: NotRequired[str | None]
    operator_policy: NotRequired[str | None]
    effective_policy_definition: NotRequired[_Table]
    messages_delayed: NotRequired[int]
    state: NotRequired[str]
    message_stats: NotRequired[MessageStats]


class Connection(TypedDict):
    """connected_at: ms. timeout: the heartbeat, seconds. owner: in a cluster, who serves its vhost, where that is
    another node than the one that has its socket.
    """

    name: str
    node: str
    owner: NotRequired[str]
    user: str
    vhost: str
    peer_host: str
    peer_port: int
    protocol: str
    auth_mechanism: str
    client_properties: _Table
    channels: int
    channel_max: int
    frame_max: int
    timeout: int
    state: Literal["running", "blocked", "blocking", "flow"]
    held_by: list[Literal["alarm", "sync", "backlog", "output", "sharing", "paced", "bodies"]]
    connected_at: int
    ssl: bool
    user_provided_name: NotRequired[str]
    recv_oct: int
    recv_oct_details: Details
    send_oct: int
    send_oct_details: Details


class OwnConnection(TypedDict):
    name: str
    peer_host: str
    peer_port: int


class ExchangePublishes(TypedDict):
    exchange: NameInVhost
    stats: MessageStats


class Delivered(TypedDict):
    queue: NameInVhost
    stats: MessageStats


class Channel(TypedDict):
    name: str
    number: int
    user: str
    vhost: str
    state: Literal["running", "flow", "closing"]
    connection_details: OwnConnection
    confirm: bool
    transactional: bool
    consumer_count: int
    prefetch_count: int
    global_prefetch_count: int
    messages_unacknowledged: int
    messages_unconfirmed: int
    messages_uncommitted: int
    acks_uncommitted: int
    message_stats: MessageStats
    idle_since: NotRequired[str]
    consumer_details: NotRequired[list[Consumer]]
    publishes: NotRequired[list[ExchangePublishes]]
    deliveries: NotRequired[list[Delivered]]


class StoredOffset(TypedDict):
    """How far consumers of a stream that share a name have come. lag: records from there to the end."""

    name: str
    offset: int
    lag: int
    time: int | None


class LocatedMessage(TypedDict):
    """Where a message is, or was. deaths: its x-death there."""

    queue: str
    offset: int
    time: int | None
    state: Literal["ready", "unacked", "settled"]
    exchange: str
    routing_key: str
    redelivered: bool
    deaths: list[_Table]
    moved_from: str | None
    connection: str | None
    channel: str | None
    user: str | None
    consumer: str | None


class ContinueFrom(TypedDict):
    queue: str
    part: str
    offset: int


class Trace(TypedDict):
    """next: where to go on; null where all is looked through. skipped: queues that could not be looked at."""

    found: list[LocatedMessage]
    next: ContinueFrom | None
    skipped: int


class Message(TypedDict):
    """A message of a queue as it lies there. time: when it was appended; null in a transient queue."""

    offset: int
    time: int | None
    state: Literal["ready", "unacked"]
    redelivered: bool
    delivery_count: int
    exchange: str
    routing_key: str
    payload_bytes: int
    payload: str
    payload_encoding: Literal["string", "base64"]
    properties: _Table


class Messages(TypedDict):
    messages: list[Message]
    next_offset: int
    ended: bool
    hint: str


class Job(TypedDict):
    """begun, ended: ms; rate: messages a second."""

    id: str
    action: Literal["move", "copy", "delete", "redrive", "rewind"]
    vhost: str
    queue: str
    limit: int
    dry_run: bool
    state: str
    reason: str
    done: int
    looked_at: int
    under_way: int
    left: dict[str, int]
    hint: str
    begun: int
    ended: int | None
    rate: int


ANSWERS: Final[dict[str, Any]] = {
    "GET /api/amqpd/session": Session,
    "POST /api/amqpd/session": Session,
    "GET /api/amqpd/pulse": LiveStatus,
    "GET /api/amqpd/pulse/{node}": LiveStatus,
    "GET /api/amqpd/rights/{vhost}": Rights,
    "GET /api/amqpd/trace/{vhost}": Trace,
    "GET /api/amqpd/arguments": Sequence[Argument],
    "GET /api/overview": Overview,
    "GET /api/nodes": list[Node],
    "GET /api/nodes/{node}": Node,
    "GET /api/queues": list[Queue],
    "GET /api/queues/{vhost}": list[Queue],
    "GET /api/queues/{vhost}/{queue}": Queue,
    "GET /api/queues/{vhost}/{queue}/bindings": list[Binding],
    "GET /api/queues/{vhost}/{queue}/consumers": list[Consumer],
    "GET /api/queues/{vhost}/{queue}/messages": Messages,
    "GET /api/queues/{vhost}/{queue}/offsets": list[StoredOffset],
    "GET /api/queues/{vhost}/{queue}/jobs": Sequence[Job],
    "POST /api/queues/{vhost}/{queue}/jobs": Job,
    "GET /api/amqpd/jobs": Sequence[Job],
    "GET /api/amqpd/jobs/{job}": Job,
    "GET /api/exchanges": list[Exchange],
    "GET /api/exchanges/{vhost}": list[Exchange],
    "GET /api/exchanges/{vhost}/{exchange}": Exchange,
    "GET /api/exchanges/{vhost}/{exchange}/bindings/source": list[Binding],
    "GET /api/exchanges/{vhost}/{exchange}/bindings/destination": list[Binding],
    "GET /api/bindings": list[Binding],
    "GET /api/bindings/{vhost}": list[Binding],
    "GET /api/connections": list[Connection],
    "GET /api/connections/{connection}": Connection,
    "GET /api/connections/{connection}/channels": list[Channel],
    "GET /api/vhosts/{vhost}/connections": list[Connection],
    "GET /api/vhosts/{vhost}/channels": list[Channel],
    "GET /api/channels": list[Channel],
    "GET /api/channels/{channel}": Channel,
    "GET /api/consumers": list[Consumer],
    "GET /api/consumers/{vhost}": list[Consumer],
}
"""By method and path; a Sequence is a list that is never paged. One more: its type above, a line here."""
