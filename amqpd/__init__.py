"""amqpd: an AMQP 0-9-1 broker whose queues are logs in Kafka's format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    import pyarrow as pa

__version__ = "0.1.0"

if not Path(__path__[0], "routing").exists():  # in a checkout routing/, storage/ and cli/ are beside amqpd/
    __path__.append(str(Path(__path__[0]).parent))


def read(
    source: str | os.PathLike[str],
    queue: str,
    *,
    vhost: str = "/",
    columns: Sequence[str] = (),
    start: int | datetime | None = None,
    stop: int | datetime | None = None,
    include_settled: bool = False,
    fail_on_data_loss: bool = True,
    payload: str | Mapping[str, Any] | None = None,
    tls_ca_cert_file: str = "",
    tls_cert_file: str = "",
    tls_key_file: str = "",
) -> pa.RecordBatchReader:
    """Return the messages of a durable queue or stream as Arrow record batches, without consuming them.

    The call plans the query: the reader ends at the messages that were synced to the disk by then. Its batches are
    decoded as they are read, and have at most about 8,192 rows or 1 MiB of log. A reader is read once. It needs the
    package pyarrow. Cost: about 0.3 us a message compiled, and 3 more for `properties` and `headers`.

    Args:
        source: Data directory of a broker (running or not), a copy of one, or its admin API:
            `http://user:password@host:15672`, `https://...:15671`.
        columns: Names of columns, see docs/sql.md. Default: `value`, `vhost`, `queue`, `offset`, `timestamp`,
            `exchange`, `routing_key`. Columns that are left out cost nothing.
        start: First offset, or the time of the first message; default: the first message.
        stop: Offset or time of the first message that is not read; default: the end.
        include_settled: Also read acknowledged messages, as long as the log has them.
        fail_on_data_loss: False logs missing and damaged messages and continues behind them.
        payload: A JSON Schema as a dict, or "json" to infer one from the first 1,000 messages. It adds two columns: the
            struct `payload` with the fields of bodies that are JSON, and `payload_error`, why a body does not fit.
        tls_ca_cert_file: For https: PEM file of trusted authorities.
        tls_cert_file: For https: PEM file of a client certificate, which can be the login.
        tls_key_file: For https: PEM file of its key.

    Raises:
        ValueError: an unknown column or queue, or an impossible position or schema.
        amqpd.storage.export.files.SourceError: the source cannot be read.
        amqpd.storage.export.plan.DataLoss: messages are missing or damaged, here or while the batches are read.
    """
    from amqpd.storage.export.queue_reader import read as read_queue

    return read_queue(
        source,
        queue,
        vhost=vhost,
        columns=columns,
        start=start,
        stop=stop,
        include_settled=include_settled,
        fail_on_data_loss=fail_on_data_loss,
        payload=payload,
        tls_ca_cert_file=tls_ca_cert_file,
        tls_cert_file=tls_cert_file,
        tls_key_file=tls_key_file,
    )
