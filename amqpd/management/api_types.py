"""Types of the API's answers. The schemas of the OpenAPI description and the types of the web page are made from them.

An answer has each field here, unless it is NotRequired. It can have more, which RabbitMQ's documentation explains.
`tests/management/test_answer_types.py` compares these types with the answers of a running broker. Times are ms since
1970 unless the name has another unit; sizes are bytes.
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
    """rate: per second, over the last five seconds. The other fields need `..._age` and `..._incr` in the query.

    samples: newest first, without the times at which nothing was recorded. recorded_since: ms since 1970.
    """

    rate: float
    samples: NotRequired[list[Sample]]
    avg: NotRequired[float]
    avg_rate: NotRequired[float]
    recorded_since: NotRequired[int]


class MessageStats(TypedDict, total=False):
    """Counted since the start. return_unroutable: published with mandatory and routed to no queue."""

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
    """ends_in_s: null if the caller did not log in at this node's page. node: the node that answers. kafka: there is a
    Kafka listener.
    """

    name: str
    tags: list[str]
    ends_in_s: int | None
    node: str
    cluster_name: str
    clustered: bool
    kafka: bool


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
    """message_stats, churn_rates and listeners: only for the tag monitoring. missing_nodes: nodes of the cluster that
    did not answer.
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
    """state: `held` while the broker does not accept a jump of the wall clock, otherwise `steady`. jump_s: seconds by
    which the wall clock is ahead because of that jump; negative if it is behind.
    """

    state: str
    jump_s: float
    held_for_s: int


class Node(TypedDict):
    """uptime and io_sync_avg_time: ms."""

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
    """counts: one for each bound, not cumulative, and one for values above the last bound. Since the start."""

    bounds_s: list[float]
    counts: list[int]
    total_s: float


class NameInVhost(TypedDict):
    name: str
    vhost: str


class LiveStatus(TypedDict):
    """alarms: sentences. held: number of connections that are not read, by reason."""

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
    """name: the consumer's name, under which its offset is stored; null for none. lag: records from its offset to the
    end.
    """

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
    """Sizes in bytes and all counters are missing with `disable_stats`."""

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
    """timeout: heartbeat in seconds. owner: in a cluster, the node that owns the vhost, if the client is connected to
    another one.
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
    """The stored offset of the stream consumers with this name. lag: records from there to the end."""

    name: str
    offset: int
    lag: int
    time: int | None


class LocatedMessage(TypedDict):
    """A message and the queue that has it, or had it. deaths: its x-death header at that time."""

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
    """next: the point from which to continue, null if everything was searched. skipped: queues that could not be
    searched.
    """

    found: list[LocatedMessage]
    next: ContinueFrom | None
    skipped: int


class Message(TypedDict):
    """A stored message of a queue. time: when it was appended; null in a transient queue."""

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
    """begun, ended: ms since 1970. rate: messages a second."""

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


class KafkaGroup(TypedDict):
    """type: Kafka's word for the group's protocol. lag: sum of its partitions, null if none is known."""

    vhost: str
    name: str
    type: str
    state: str
    protocol_type: str
    protocol: str
    member_count: int
    lag: int | None


class KafkaGroupMember(TypedDict):
    """assignment: topic -> partitions."""

    id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: dict[str, list[int]]


class KafkaGroupOffset(TypedDict):
    """member_id: the member that reads the partition, or empty. offset: committed, null before the first commit."""

    topic: str
    partition: int
    offset: int | None
    commit_ms: int | None
    metadata: str
    end_offset: int | None
    lag: int | None
    member_id: str


class KafkaGroupDetails(KafkaGroup):
    members: list[KafkaGroupMember]
    offsets: list[KafkaGroupOffset]


class KafkaOffsetChange(TypedDict):
    """before: null if nothing was committed."""

    topic: str
    partition: int
    before: int | None
    after: int


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
    "GET /api/amqpd/kafka/groups": list[KafkaGroup],
    "GET /api/amqpd/kafka/groups/{vhost}": list[KafkaGroup],
    "GET /api/amqpd/kafka/groups/{vhost}/{name}": KafkaGroupDetails,
    "POST /api/amqpd/kafka/groups/{vhost}/{name}/offsets": Sequence[KafkaOffsetChange],
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
"""Method and path -> type. A list can be paged, a Sequence cannot. To describe one more answer, add its type above and
a line here.
"""
