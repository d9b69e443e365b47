"""One row of every kind, and helpers that open a metadata store and write to it."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from amqpd.storage.metadata.rows import (
    BindingRow,
    Change,
    ExchangeRow,
    GlobalParameterRow,
    ParameterRow,
    PermissionRow,
    PolicyRow,
    QueueRow,
    Row,
    ScramRow,
    SeenCacheRow,
    SeenRow,
    StoredOffsetRow,
    TopicPermissionRow,
    UserLimitsRow,
    UserRow,
    VhostRow,
)
from amqpd.storage.metadata.store import MetadataState, SqlMetadataStore

VHOST = VhostRow("/", "0" * 32)
OTHER = VhostRow("shop", "1" * 32, "the 'shop'; DROP TABLE vhosts", ("a", "b,c"), "quorum")
USER = UserRow("guest", "$argon2id$...", "argon2id", ("administrator", "ünï"))
ODD = "a'\"`;--\x00%s{}é☃\U0001f407"

EVERY_ROW: tuple[Row, ...] = (
    VHOST,
    OTHER,
    USER,
    PermissionRow("guest", "/", "^a.*", "", ".*"),
    TopicPermissionRow("guest", "shop", "amq.topic", "^{username}", ".*"),
    ExchangeRow("/", ODD, "topic", True, False, True, b"\x00\x00\x00\x03\x01x\xff"),
    QueueRow("/", ODD, "2" * 32, True, True, False, bytes(range(256))),
    BindingRow("/", "amq.topic", ODD, "queue", "not utf-8: \udcff\udc80", b"\x00"),
    BindingRow("/", "amq.topic", ODD, "queue", "", b""),
    BindingRow("/", "amq.topic", ODD, "exchange", "", b""),
    PolicyRow("/", "p", "^q", "queues", '{"max-length":1}', 7, True),
    PolicyRow("/", "p", "^q", "all", "{}", -1),
    ParameterRow("shop", "shovel", "s", "{}"),
    GlobalParameterRow("cluster_name", '"rabbit"'),
    StoredOffsetRow("2" * 32, ODD, (1 << 63) - 1, 1_700_000_000_000),
    UserLimitsRow("guest", '{"max-channels":0}'),
    SeenCacheRow("3" * 32, "/", ODD),
    SeenRow("3" * 32, bytes(range(33)), (1 << 63) - 1, 1_700_000_000_000),
    SeenRow("3" * 32, b"", 1, 0),
    ScramRow("guest", "4096:c2FsdA==:a2V5:a2V5", ""),
)


class CommitResults:
    """Collect the results of `done` callbacks in the order of arrival."""

    def __init__(self) -> None:
        self._arrived: queue.Queue[tuple[object, BaseException | None]] = queue.Queue()

    def done(self, name: object) -> Callable[[BaseException | None], None]:
        return lambda error: self._arrived.put((name, error))

    def take(self, count: int) -> list[tuple[object, BaseException | None]]:
        return [self._arrived.get(timeout=60) for _ in range(count)]


def post(function: Callable[..., object], *arguments: object) -> None:
    function(*arguments)


@contextmanager
def open_metadata(
    data_dir: Path, url: str = "", seed: Sequence[Row] = (VHOST, USER)
) -> Iterator[tuple[SqlMetadataStore, MetadataState]]:
    metadata = SqlMetadataStore(url, data_dir, post)
    state = metadata.open(lambda: seed)
    try:
        yield metadata, state
    finally:
        metadata.close()


def write(metadata: SqlMetadataStore, *changes: Change) -> BaseException | None:
    results = CommitResults()
    metadata.submit(changes, results.done(None))
    return results.take(1)[0][1]


def all_rows(state: MetadataState) -> set[tuple[str, Row]]:
    """Rows with their type, since NamedTuples of different types with the same values are equal."""
    lists = [value for value in state if isinstance(value, list)]
    return {(type(row).__name__, row) for rows in lists for row in rows}


def typed_rows(rows: Sequence[Row]) -> set[tuple[str, Row]]:
    return {(type(row).__name__, row) for row in rows}
