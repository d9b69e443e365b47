"""Tells the broker how far an exporter has come, so that it may give up what it held back for it (storage/settle).

A broker that runs is asked through its admin API: `url` as the source's, or the unix socket in the data directory. When
none runs there, the file is written, and the broker finds it at its next start. A commit that does not arrive costs
disk space, nothing else: the next one says more.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
from pathlib import Path
from urllib.parse import quote

from amqpd.storage.spark.files import LogSource, QueueName, SourceError
from amqpd.storage.spark.remote import BrokerSource

SOCKET = "amqpctl.sock"
TIMEOUT_S = 10.0


class CommitFailed(Exception):
    """The broker was not told; the text says why."""


def commit(source: LogSource, queue: QueueName, name: str, offset: int) -> None:
    """Offsets below `offset` of that incarnation are exported under `name`. Raises: CommitFailed."""
    body = json.dumps({"name": name, "offset": offset, "id": queue.id}).encode()
    path = f"/api/amqpd/exports/{quote(queue.vhost, safe='')}/{quote(queue.queue, safe='')}"
    headers = {"Content-Type": "application/json"}
    try:
        if isinstance(source, BrokerSource):
            _post(source.connection(TIMEOUT_S), path, body, {**headers, **source.credentials()})
            return
        place = Path(queue.place)
        connection = _unix(place.parents[3] / SOCKET) if len(place.parents) > 3 else None
        if connection is not None:
            _post(connection, path, body, headers)
        else:
            from amqpd.storage.acks.hold import write_offset

            write_offset(place, name, offset)
    except (OSError, http.client.HTTPException, SourceError) as error:
        raise CommitFailed(f"the broker was not told of the commit: {str(error) or type(error).__name__}") from error


def _unix(path: Path) -> http.client.HTTPConnection | None:
    """A connection to a data directory's broker; None when none runs."""
    connection = http.client.HTTPConnection("localhost", timeout=TIMEOUT_S)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.settimeout(TIMEOUT_S)
    directory = -1
    try:
        # Through an open directory, as a longer path than 107 bytes does not fit into a socket's address.
        directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
        made.connect(f"/proc/self/fd/{directory}/{path.name}")
    except (FileNotFoundError, ConnectionRefusedError):
        made.close()
        return None
    except OSError:
        made.close()
        raise
    finally:
        if directory >= 0:
            os.close(directory)
    connection.sock = made
    return connection


def _post(connection: http.client.HTTPConnection, path: str, body: bytes, headers: dict[str, str]) -> None:
    try:
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        text = answer.read()
    finally:
        connection.close()
    if answer.status >= 300:
        raise CommitFailed(f"the broker answered {answer.status}: {text[:200].decode('utf-8', 'replace')}")
