"""queue.json, the description in the directory of a queue, and the survey of these directories at a start.

{"queue": name, "vhost": name of its vhost, "id": name of the directory, "auto_delete": false,
 "arguments": the encoded field table of its declaration in base64, "checksum": CRC-32C}

People read it, and a start uses it if the metadata lost the queue. It is written before the first message and
synced with it. The checksum covers the other values, so that a wrong bit cannot declare a queue of another name.
Files of earlier versions have only the first three values; the next process replaces them at its first message.
"""

from __future__ import annotations

import base64
import json
from typing import Final, NamedTuple

from google_crc32c import value

from amqpd.storage.acks.segment_removal import DELETED
from amqpd.storage.filesystem import FileSystem

DESCRIPTION: Final = "queue.json"
_OLD_KEYS: Final = {"queue", "vhost", "id"}
_KEYS: Final = {*_OLD_KEYS, "auto_delete", "arguments"}


class Description(NamedTuple):
    """The content of a queue.json.

    Attributes:
        arguments: an encoded field table.
        whole: False for a file of an earlier version, without arguments and auto_delete.
    """

    queue: str
    vhost: str
    id: str
    auto_delete: bool = False
    arguments: bytes = b""
    whole: bool = True


def describe(name: str, vhost_name: str, auto_delete: bool, arguments: bytes, queue_id: str) -> bytes:
    """Return the content of a queue.json. Cost: 10 us, once per queue."""
    fields: dict[str, object] = {
        "queue": name,
        "vhost": vhost_name,
        "id": queue_id,
        "auto_delete": auto_delete,
        "arguments": base64.b64encode(arguments).decode("ascii"),
    }
    fields["checksum"] = _checksum(fields)
    return json.dumps(fields, indent=1).encode() + b"\n"


def read_description(data: bytes, queue_id: str) -> Description | None:
    """Decode a queue.json. Returns: None if it is damaged or describes another directory than `queue_id`."""
    try:
        fields = json.loads(data)
        if not isinstance(fields, dict):
            return None
        checksum = fields.pop("checksum", None)
        whole = fields.keys() == _KEYS and checksum == _checksum(fields)
        if not whole and (checksum is not None or fields.keys() != _OLD_KEYS):
            return None
        name, vhost, auto_delete = fields["queue"], fields["vhost"], fields.get("auto_delete", False)
        if fields["id"] != queue_id or not isinstance(name, str) or not isinstance(vhost, str) or not name or not vhost:
            return None
        if not isinstance(auto_delete, bool):
            return None
        return Description(name, vhost, queue_id, auto_delete, base64.b64decode(fields.get("arguments", "")), whole)
    except (ValueError, TypeError):
        return None


def _checksum(fields: dict[str, object]) -> int:
    return int(value(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()))


class DirectorySurvey(NamedTuple):
    """Ids of the queue directories in a data directory.

    Attributes:
        queues: vhost -> its queues.
        deleted: vhost -> its queues that are deleted, see directory_removal.py.
        deleted_vhosts: vhosts that are deleted.
    """

    queues: dict[str, list[str]]
    deleted: dict[str, list[str]]
    deleted_vhosts: list[str]


def survey(filesystem: FileSystem, data_dir: str) -> DirectorySurvey:
    """Return the queue directories before anything is opened. Cost: one listing per vhost. Raises: OSError."""
    found = DirectorySurvey({}, {}, [])
    root = f"{data_dir}/vhosts"
    for vhost in filesystem.listdir(root):
        if vhost.endswith(DELETED):
            found.deleted_vhosts.append(vhost.removesuffix(DELETED))
            continue
        queues: list[str] = []
        deleted: list[str] = []
        for queue in filesystem.listdir(f"{root}/{vhost}/queues"):
            if queue.endswith(DELETED):
                deleted.append(queue.removesuffix(DELETED))
            else:
                queues.append(queue)
        found.queues[vhost] = queues
        if deleted:
            found.deleted[vhost] = deleted
    return found
