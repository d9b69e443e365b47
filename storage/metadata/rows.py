"""The rows of what the broker keeps besides messages, and the changes to them. schema.py has the tables.

NamedTuples, not dataclasses: twelve frozen dataclasses cost 7 ms at import, and rows are made by the ten thousand.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

RowState: TypeAlias = Literal["live", "deleting"]


class VhostRow(NamedTuple):
    """A virtual host. `id` (random, 32 hex digits) names its directory; `deleting`: tombstone, before its files go."""

    name: str
    id: str
    description: str = ""
    tags: tuple[str, ...] = ()
    default_queue_type: str = "classic"
    state: RowState = "live"


class UserRow(NamedTuple):
    """A user. An empty `password_hash` means that no password opens it."""

    name: str
    password_hash: str
    hashing_algorithm: str
    tags: tuple[str, ...] = ()


class PermissionRow(NamedTuple):
    """Three patterns of one user in one vhost. Goes with the user and with the vhost."""

    user: str
    vhost: str
    configure: str
    write: str
    read: str


class TopicPermissionRow(NamedTuple):
    """Patterns over routing keys of one topic exchange. Goes with the user and with the vhost."""

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
    """One incarnation of a queue; `id` (random, 32 hex digits) names its directory and is the key.

    A queue declared anew while its former incarnation is still being deleted has the same name and another id.
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
    """A binding between durable things. `routing_key`: str, surrogateescape for bytes that are not UTF-8."""

    vhost: str
    source: str
    destination: str
    destination_type: Literal["queue", "exchange"]
    routing_key: str
    arguments: bytes = b""


class PolicyRow(NamedTuple):
    """A policy or, with `operator`, an operator policy. `definition`: JSON object as text."""

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
    """A runtime parameter of the whole broker. `value`: JSON as text."""

    name: str
    value: str


class StoredOffsetRow(NamedTuple):
    """How far a named consumer of a stream has come: `offset` is the next it reads. Goes with the queue's row.

    time_ms: when it was written, milliseconds since 1970.
    """

    queue_id: str
    name: str
    offset: int
    time_ms: int


class UserLimitsRow(NamedTuple):
    """What a user may have open at most. Goes with the user. `limits`: JSON object as text."""

    user: str
    limits: str


class SeenCacheRow(NamedTuple):
    """What a durable exchange of type x-message-deduplication has seen, if that is kept on disk. `id`: random, 32 hex
    digits. Goes with the vhost; with the exchange, in one commit.
    """

    id: str
    vhost: str
    exchange: str


class SeenRow(NamedTuple):
    """One id that it has seen. Goes with the cache's row.

    number: the order in which they came. expires_ms: milliseconds since 1970; 0: never.
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
)


class Put(NamedTuple):
    """Write a row, replacing the one with the same key."""

    row: Row


class Delete(NamedTuple):
    """Remove the row with this row's key (other fields are not looked at), and what goes with it. Absent: no error."""

    row: Row


class DeleteBindings(NamedTuple):
    """Remove every binding that leads to this queue or exchange and, for an exchange, every one that starts there."""

    vhost: str
    name: str
    kind: Literal["queue", "exchange"]


Change: TypeAlias = Put | Delete | DeleteBindings
