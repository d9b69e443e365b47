"""What `amqpctl backup` asks of the broker: a copy of the metadata, which nobody else can read while it runs.

It is written by the metadata's own thread, behind every change that was submitted before, to `.backup/metadata.sqlite`
in the data directory; the rest of a backup is files that amqpctl reads by itself. rabbit: has nothing like it.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from amqpd.broker.vhost.pending import finished
from amqpd.management.request import ApiError, Call, Reply, Role, reply
from amqpd.management.router import Route

FOLDER: Final = ".backup"
METADATA: Final = "metadata.sqlite"


class NotOurs(ApiError):
    """The metadata are in a database that has backups of its own."""

    status = 409
    error = "other_database"


async def copy_metadata(call: Call) -> Reply:
    """The metadata as they are now -> `{data_dir, path}`; amqpctl has made the folder. Raises: NotOurs."""
    broker = call.broker
    if broker.settings.metadata.url:
        raise NotOurs("the metadata are not in the data directory (metadata.url): back up that database beside it")
    data_dir = broker.settings.data_dir.absolute()
    path = data_dir / FOLDER / METADATA
    broker.catalogue.stored_offsets.flush()
    await finished(partial(broker.metadata.copy, path))
    return reply({"data_dir": str(data_dir), "path": str(path)})


ROUTES: Final = (Route("POST", "api/amqpd/backup_metadata", Role.ADMINISTRATOR, copy_metadata),)
