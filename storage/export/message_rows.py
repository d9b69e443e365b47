"""Rows of tables as messages: for `amqpctl import` and Spark's sink."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from amqpd.protocol import properties as p
from amqpd.protocol.field_table import CodecError


@dataclass(frozen=True, kw_only=True)
class RowOptions:
    """How rows become messages.

    Attributes:
        exchange: For every row; None: the row's own, or the default exchange.
        routing_key: For every row; None: the row's own, or an empty key.
        persistent: Use delivery mode 2 if the row has none.
        message_id: keep, row or content; see `messageId` in storage/spark/sink.py.
    """

    exchange: str | None = None
    routing_key: str | None = None
    persistent: bool = True
    message_id: str = "keep"


class BadRow(ValueError):
    """A row that cannot become a message."""


class MessageRows:
    """Converts rows to messages.

    Args:
        task: Name of the task in the ids of `messageId=row`.
    """

    def __init__(self, options: RowOptions, task: str = "") -> None:
        self._options = options
        self._task = task
        self._row = 0
        self._plain = p.encode_properties(p.Properties(delivery_mode=2 if options.persistent else None))

    def of(self, batch: Any) -> Iterator[tuple[str, str, bytes, bytes]]:
        """Yield (exchange, routing key, properties, body) for each row of a pyarrow.RecordBatch.

        Cost: 1 us a row, and 5 more with properties.
        Raises: BadRow.
        """
        columns = {name: column.to_pylist() for name, column in zip(batch.schema.names, batch.columns, strict=True)}
        try:
            yield from self.of_columns(columns, batch.num_rows)
        except BadRow as error:
            raise BadRow(f"row {self._row}: {error}") from None

    def of_columns(self, columns: Mapping[str, Sequence[Any]], rows: int) -> Iterator[tuple[str, str, bytes, bytes]]:
        """Yield the same for columns of Python values. A BadRow has no number of the row."""

        def column(name: str, default: Any) -> Sequence[Any]:
            return columns.get(name) or [default] * rows

        options = self._options
        exchanges = column("exchange", "") if options.exchange is None else [options.exchange] * rows
        keys = column("routing_key", "") if options.routing_key is None else [options.routing_key] * rows
        structs, ids, raws = column("properties", None), column("message_id", None), column("raw_properties", None)
        headers = column("headers", None)
        plain = options.message_id == "keep"
        for number, value in enumerate(column("value", None)):
            if value is None:
                raise BadRow("its value is null, but a message needs a body, which may be empty")
            body = value.encode() if isinstance(value, str) else value
            exchange, key = exchanges[number] or "", keys[number] or ""
            if plain and not (structs[number] or ids[number] or raws[number] or headers[number]):
                properties = self._plain
            else:
                try:
                    properties = self._properties(
                        structs[number], headers[number], raws[number], ids[number], exchange, key, body
                    )
                except CodecError as error:
                    raise BadRow(str(error)) from None
            self._row += 1
            yield exchange, key, properties, body

    def _properties(
        self, struct: Any, headers: Any, raw: bytes | None, message_id: str | None, exchange: str, key: str, body: bytes
    ) -> bytes:
        fields: dict[str, Any]
        if raw is not None:
            p.scan_properties(raw, 0, len(raw))
            found = p.decode_properties(raw)
            wanted = found.message_id if message_id is None else message_id
            if wanted is None:
                wanted = self._new_id(exchange, key, raw, body)
            mode = found.delivery_mode or (2 if self._options.persistent else None)
            if wanted == found.message_id and mode == found.delivery_mode:
                return raw
            if found.headers is None:
                return p.encode_properties(found._replace(message_id=wanted, delivery_mode=mode))
            # The headers keep their bytes, and so their types.
            others = p.encode_properties(found._replace(headers={}, message_id=wanted, delivery_mode=mode))
            first, end = p.headers_span(raw, 0, len(raw))
            new_first, new_end = p.headers_span(others, 0, len(others))
            return others[:new_first] + raw[first:end] + others[new_end:]
        fields = {name: value for name, value in (struct or {}).items() if value is not None}
        if isinstance(fields.get("timestamp"), datetime):
            when = fields["timestamp"]
            fields["timestamp"] = int((when if when.tzinfo is not None else when.replace(tzinfo=UTC)).timestamp())
        if headers:
            fields["headers"] = dict(headers)
        if message_id is not None:
            fields["message_id"] = message_id
        if "delivery_mode" not in fields and self._options.persistent:
            fields["delivery_mode"] = 2
        if "message_id" not in fields:
            made = self._new_id(exchange, key, p.encode_properties(p.Properties(**fields)), body)
            if made is not None:
                fields["message_id"] = made
        return p.encode_properties(p.Properties(**fields))

    def _new_id(self, exchange: str, key: str, properties: bytes, body: bytes) -> str | None:
        how = self._options.message_id
        if how == "row":
            return f"{self._task}:{self._row}"
        if how == "keep":
            return None
        digest = hashlib.sha256()
        for part in (exchange.encode(), key.encode(), properties, body):
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
        return digest.hexdigest()
