"""Which queues' directories stand in a data directory, before anything is opened. Cost: one listing per vhost."""

from __future__ import annotations

from typing import NamedTuple

from amqpd.storage.filesystem import FileSystem
from amqpd.storage.acks.segment_removal import DELETED


class Survey(NamedTuple):
    """Ids. queues: vhost -> its queues. deleted, deleted_vhosts: those whose deletion was answered, or was about to be
    (directory_removal.py).
    """

    queues: dict[str, list[str]]
    deleted: dict[str, list[str]]
    deleted_vhosts: list[str]


def survey(filesystem: FileSystem, data_dir: str) -> Survey:
    """Raises: OSError."""
    found = Survey({}, {}, [])
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
