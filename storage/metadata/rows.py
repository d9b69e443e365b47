"""Rows of the metadata, and changes to them. schema.py has the tables.

Rows are NamedTuples: twelve frozen dataclasses would cost 7 ms at import, and there may be tens of thousands of rows.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

RowState: TypeAlias = Literal["live", "deleting"]


class VhostRow(NamedTuple):
    """A virtual host.

    `id` (random, 32 hex digits) names its directory. State `deleting` is a tombstone until its files are deleted.
    """

    name: str
    id: str
    description: str = ""
    tags: tuple[str, ...] = ()
    default_queue_type: str = "classic"
    state: RowState = "live"


class UserRow(NamedTuple):
    """A user. With an empty `password_hash` no password is accepted."""

    name: str
    password_hash: str
    hashing_algorithm: str
    tags: tuple[str, ...] = ()


class ScramRow(NamedTuple):
    """SCRAM credentials of a user as text, see `amqpd.auth.scram`. Deleted with the user, or with its password."""

    user: str
    sha256: str
    sha512: str


class PermissionRow(NamedTuple):
    """The three patterns of a user in a vhost. Deleted with the user and with the vhost."""

    user: str
    vhost: str
    configure: str
    write: str
    read: str


class TopicPermissionRow(NamedTuple):
    """Routing key patterns of a user for a topic exchange. Deleted with the user and with the vhost."""

    user: str
    vhost: str
    exchange: str
    write: str
    read: str


class ExchangeRow(NamedTuple):
    """A durable exchange. `arguments`: encoded AMQP field table."""

    vhost: str
    name: str
    type: str
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: bytes = b""


class QueueRow(NamedTuple):
    """One incarnation of a queue. `id` (random, 32 hex digits) is the key and names its directory.

    A queue that is declared while an earlier one with its name is being deleted has another id.
    """

    vhost: str
    name: str
    id: str
    durable: bool = True
    auto_delete: bool = False
    exclusive: bool = False
    arguments: bytes = b""
    state: RowState = "live"


class BindingRow(NamedTuple):
    """A binding between durable objects. `routing_key`: str, with surrogate escapes for bytes that are not UTF-8."""

    vhost: str
    source: str
    destination: str
    destination_type: Literal["queue", "exchange"]
    routing_key: str
    arguments: bytes = b""


class PolicyRow(NamedTuple):
    """A policy, or an operator policy if `operator`. `definition`: JSON object as text."""

    vhost: str
    name: str
    pattern: str
    apply_to: str
    definition: str
    priority: int = 0
    operator: bool = False


class ParameterRow(NamedTuple):
    """A runtime parameter of a vhost. `value`: JSON as text."""

    vhost: str
    component: str
    name: str
    value: str


class GlobalParameterRow(NamedTuple):
    """A global runtime parameter. `value`: JSON as text."""

    name: str
    value: str


class StoredOffsetRow(NamedTuple):
    """The stored offset of a named stream consumer. Deleted with the queue.

    Attributes:
        offset: the next one to read.
        time_ms: the time of the write, milliseconds since 1970.
    """

    queue_id: str
    name: str
    offset: int
    time_ms: int


class UserLimitsRow(NamedTuple):
    """The connection and channel limits of a user. Deleted with the user. `limits`: JSON object as text."""

    user: str
    limits: str


class SeenCacheRow(NamedTuple):
    """The cache of a durable x-message-deduplication exchange whose cache is on disk.

    Deleted with the vhost, and in one commit with the exchange. `id`: random, 32 hex digits.
    """

    id: str
    vhost: str
    exchange: str


class SeenRow(NamedTuple):
    """A message id in such a cache. Deleted with the cache.

    Attributes:
        number: order of arrival.
        expires_ms: milliseconds since 1970; 0 for never.
    """

    cache_id: str
    id: bytes
    number: int
    expires_ms: int


Row: TypeAlias = (
    VhostRow
    | UserRow
    | PermissionRow
    | TopicPermissionRow
    | ExchangeRow
    | QueueRow
    | BindingRow
    | PolicyRow
    | ParameterRow
    | GlobalParameterRow
    | StoredOffsetRow
    | UserLimitsRow
    | SeenCacheRow
    | SeenRow
    | ScramRow
)


class Put(NamedTuple):
    """A change that writes a row and replaces the one with the same key."""

    row: Row


class Delete(NamedTuple):
    """A change that deletes the row with this key, and its children. Other fields are ignored; it may be missing."""

    row: Row


class DeleteBindings(NamedTuple):
    """A change that deletes every binding to this queue or exchange and, for an exchange, every one from it."""

    vhost: str
    name: str
    kind: Literal["queue", "exchange"]


Change: TypeAlias = Put | Delete | DeleteBindings
