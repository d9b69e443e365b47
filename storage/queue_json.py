"""queue.json: what a queue's directory says of itself, for people, and for a start whose metadata has lost the queue.

    {"queue": name, "vhost": its vhost's name, "id": the directory's name, "auto_delete": false,
     "arguments": its declaration's field table as it is encoded, in base64, "checksum": CRC-32C}

It is written before the first message is, and synced with it. The checksum goes over the other values: a wrong bit must
not declare a queue of another name. Files of earlier versions hold the first three values and no checksum; they are
written anew with the first message of a later life.

Which queues' directories stand in a data directory, before anything is opened. Cost: one listing per vhost.
"""

from __future__ import annotations

import base64
import json
from typing import Final, NamedTuple

from google_crc32c import value

from amqpd.storage.acks.segment_removal import DELETED
from amqpd.storage.filesystem import FileSystem

DESCRIPTION: Final = "queue.json"
_OLD: Final = {"queue", "vhost", "id"}
_KEYS: Final = {*_OLD, "auto_delete", "arguments"}


class Description(NamedTuple):
    """What a queue's directory says of its queue.

    arguments: an encoded field table; `whole`: False where an earlier version wrote it, which told neither
    arguments nor auto-delete.
    """

    queue: str
    vhost: str
    id: str
    auto_delete: bool = False
    arguments: bytes = b""
    whole: bool = True


def describe(name: str, vhost_name: str, auto_delete: bool, arguments: bytes, queue_id: str) -> bytes:
    """The text of a queue.json. Cost: 10 us, once a queue."""
    told: dict[str, object] = {
        "queue": name,
        "vhost": vhost_name,
        "id": queue_id,
        "auto_delete": auto_delete,
        "arguments": base64.b64encode(arguments).decode("ascii"),
    }
    told["checksum"] = _checksum(told)
    return json.dumps(told, indent=1).encode() + b"\n"


def read_description(data: bytes, queue_id: str) -> Description | None:
    """What it says, None where it is damaged or speaks of another directory than `queue_id`."""
    try:
        told = json.loads(data)
        if not isinstance(told, dict):
            return None
        checksum = told.pop("checksum", None)
        whole = told.keys() == _KEYS and checksum == _checksum(told)
        if not whole and (checksum is not None or told.keys() != _OLD):
            return None
        name, vhost, auto_delete = told["queue"], told["vhost"], told.get("auto_delete", False)
        if told["id"] != queue_id or not isinstance(name, str) or not isinstance(vhost, str) or not name or not vhost:
            return None
        if not isinstance(auto_delete, bool):
            return None
        return Description(name, vhost, queue_id, auto_delete, base64.b64decode(told.get("arguments", "")), whole)
    except (ValueError, TypeError):
        return None


def _checksum(told: dict[str, object]) -> int:
    return int(value(json.dumps(told, sort_keys=True, separators=(",", ":")).encode()))


class DirectorySurvey(NamedTuple):
    """Ids. queues: vhost -> its queues. deleted, deleted_vhosts: those whose deletion was answered, or was about to be
    (directory_removal.py).
    """

    queues: dict[str, list[str]]
    deleted: dict[str, list[str]]
    deleted_vhosts: list[str]


def survey(filesystem: FileSystem, data_dir: str) -> DirectorySurvey:
    """Raises: OSError."""
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
