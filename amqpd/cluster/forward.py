"""Changes of what is the whole cluster's, from a node that does not own slot 0 to the one that does.

An inner connection of kind WRITE carries one submission and its answer, each as u32 length and JSON:

    asked      the changes, as rows.py has them for other nodes
    answered   {"offset": n}, behind the records; or {"error": text, "not_owner": whether nothing was written because
               another node owns slot 0}

Where no answer comes it is not known whether anything was written; what is the cluster's is told by slot 0 anyway.
"""

from __future__ import annotations

import asyncio
import json
import logging
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from amqpd.cluster import preamble as words
from amqpd.cluster.peer_link import NotReached, Refused, welcome
from amqpd.cluster.metadata import NotOwner
from amqpd.cluster.row_codec import Foreign, Newer, changes_from_json, changes_to_json
from amqpd.storage.metadata.store import MetadataError, WriteFailed

if TYPE_CHECKING:
    from amqpd.cluster.peer_link import Connector
    from amqpd.cluster.preamble import Preamble
    from amqpd.cluster.row_codec import SlotChange
    from amqpd.cluster.view import Node

log = logging.getLogger(__name__)

ANSWER_S: Final = 60.0
"""How long an answer may take: slot 0's owner may be waiting for Kafka."""
SIZE_MAX: Final = 64 << 20
_LENGTH: Final = struct.Struct(">I")

Write: TypeAlias = "Callable[[Sequence[SlotChange]], Awaitable[int]]"


class Frames(asyncio.Protocol):
    """One message each way. came: it has come, or is none, or the connection has ended without it (None)."""

    def __init__(self, came: Callable[[bytes | None], None]) -> None:
        self._came: Callable[[bytes | None], None] | None = came
        self._data = bytearray()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._came is None:
            return
        self._data += data
        if len(self._data) < _LENGTH.size:
            return
        end = _LENGTH.size + _LENGTH.unpack_from(self._data)[0]
        if end > SIZE_MAX:
            self._told(None)
        elif len(self._data) >= end:
            self._told(bytes(self._data[_LENGTH.size : end]))

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._told(None)

    def _told(self, message: bytes | None) -> None:
        came, self._came = self._came, None
        if came is not None:
            came(message)

    def say(self, message: object) -> None:
        """Nothing happens where the connection has ended."""
        if self.transport is not None:
            body = json.dumps(message).encode()
            self.transport.write(_LENGTH.pack(len(body)) + body)

    def end(self) -> None:
        """Behind what was said."""
        if self.transport is not None:
            self.transport.close()


async def forward(connector: Connector, node: Node, changes: Sequence[SlotChange]) -> int:
    """The offset behind them, in slot 0. node: its owner. Raises: NotOwner, nothing was written; WriteFailed."""
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[bytes | None] = loop.create_future()

    def came(message: bytes | None) -> None:
        if not answered.done():
            answered.set_result(message)

    frames = Frames(came)
    try:
        await connector.open(node, connector.preamble(words.WRITE), frames)
    except (NotReached, Refused) as error:
        raise NotOwner(f"cannot write the metadata: {error}") from error
    try:
        frames.say(changes_to_json(changes))
        async with asyncio.timeout(ANSWER_S):
            message = await answered
    except TimeoutError:
        message = None
    finally:
        frames.end()
    if message is None:
        raise WriteFailed(f"cannot write the metadata: node {node.name}, which owns slot 0, did not answer")
    said: Any = json.loads(message)
    if "offset" in said:
        return int(said["offset"])
    raise (NotOwner if said["not_owner"] else WriteFailed)(str(said["error"]))


class Writer:
    """Of slot 0's owner, or of a node that is taken for it. write: `ClusterMetadata.write_own`."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._tasks: set[asyncio.Task[None]] = set()

    async def take(self, preamble: Preamble, transport: asyncio.Transport) -> None:
        """An inner connection of kind WRITE."""

        def came(message: bytes | None) -> None:
            if message is None:
                frames.end()
                return
            task = asyncio.get_running_loop().create_task(self._answer(preamble.node, frames, message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        frames = Frames(came)
        welcome(transport, frames)

    async def _answer(self, node: str, frames: Frames, message: bytes) -> None:
        try:
            offset = await self._write(changes_from_json(json.loads(message)))
        except (MetadataError, Foreign, Newer, ValueError, RecursionError) as error:
            log.info("node %s asked for a change of what is the cluster's: %s", node, error)
            frames.say({"error": str(error), "not_owner": isinstance(error, NotOwner)})
        except Exception:
            log.exception("node %s asked for a change: a bug of the broker", node)
            frames.say({"error": "an error of slot 0's owner; its log says more", "not_owner": False})
        else:
            frames.say({"offset": offset})
