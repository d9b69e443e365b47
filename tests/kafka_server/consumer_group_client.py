"""A client of ConsumerGroupHeartbeat and ConsumerGroupDescribe, which kafka-python does not have: bytes by hand."""

from __future__ import annotations

import struct
from typing import Any

from kafka_socket import KafkaSocket

HEARTBEAT = 68
DESCRIBE = 69


def varint(value: int) -> bytes:
    data = bytearray()
    while value >= 0x80:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*data, value))


def string(text: str | None) -> bytes:
    if text is None:
        return b"\0"
    data = text.encode()
    return varint(len(data) + 1) + data


def strings(texts: list[str] | None) -> bytes:
    return b"\0" if texts is None else varint(len(texts) + 1) + b"".join(map(string, texts))


def partitions(owned: dict[bytes, list[int]] | None) -> bytes:
    if owned is None:
        return b"\0"
    topics = (
        topic_id + varint(len(indexes) + 1) + struct.pack(f">{len(indexes)}i", *indexes) + b"\0"
        for topic_id, indexes in owned.items()
    )
    return varint(len(owned) + 1) + b"".join(topics)


def heartbeat_body(version: int, group: str, member: str, epoch: int, **fields: Any) -> bytes:
    return b"".join(
        (
            string(group),
            string(member),
            struct.pack(">i", epoch),
            string(fields.get("instance")),
            string(fields.get("rack")),
            struct.pack(">i", fields.get("timeout_ms", -1)),
            strings(fields.get("names")),
            string(fields.get("pattern")) if version >= 1 else b"",
            string(fields.get("assignor")),
            partitions(fields.get("owned")),
            b"\0",
        )
    )


class Bytes:
    """A position in a response. `end` checks that it is the last one."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 5  # after the header: correlation id, tags

    def unpack(self, form: str) -> int:
        value: int = struct.unpack_from(f">{form}", self.data, self.position)[0]
        self.position += struct.calcsize(f">{form}")
        return value

    def take(self, size: int) -> bytes:
        self.position += size
        return self.data[self.position - size : self.position]

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.unpack("B")
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def string(self) -> str | None:
        size = self.varint()
        return self.take(size - 1).decode() if size else None

    def tags(self) -> None:
        assert self.unpack("B") == 0

    def end(self) -> None:
        self.tags()
        assert self.position == len(self.data)

    def assignment(self, has_names: bool) -> dict[Any, list[int]]:
        """Return the partitions by topic id, or by name if the struct has names."""
        found: dict[Any, list[int]] = {}
        for _ in range(self.varint() - 1):
            topic: Any = self.take(16)
            if has_names:
                topic = self.string()
            found[topic] = [self.unpack("i") for _ in range(self.varint() - 1)]
            self.tags()
        self.tags()
        return found


class GroupMember:
    """A member of one group, by one connection. Call `heartbeat`; `assignment` has what the broker has given last."""

    def __init__(self, socket: KafkaSocket, group: str, member: str = "m", version: int = 1) -> None:
        self.socket = socket
        self.group = group
        self.id = member
        self.version = version
        self.epoch = 0
        self.interval_ms = 0
        self.message: str | None = None
        self.assignment: dict[bytes, list[int]] | None = None

    def heartbeat(self, epoch: int | None = None, **fields: Any) -> int:
        """Send a heartbeat and return the error code; the other fields of the answer are attributes."""
        epoch = self.epoch if epoch is None else epoch
        body = heartbeat_body(self.version, self.group, self.id, epoch, **fields)
        self.socket.send_frame(HEARTBEAT, self.version, body, b"\0")
        answer = Bytes(self.socket.receive())
        answer.unpack("i")  # throttle time
        error = answer.unpack("h")
        self.message = answer.string()
        member_id = answer.string()
        epoch = answer.unpack("i")
        self.interval_ms = answer.unpack("i")
        if answer.unpack("b") == 1:
            self.assignment = answer.assignment(False)
        answer.end()
        if error == 0:
            self.id = member_id or self.id
            self.epoch = epoch
        return error

    def join(self, *names: str, **fields: Any) -> int:
        values = {"names": list(names), "timeout_ms": 30_000, "owned": {}}
        return self.heartbeat(0, **(values | fields))

    def own(self) -> int:
        """Send a heartbeat with all partitions of the last assignment, and no others."""
        return self.heartbeat(owned=self.assignment)


def describe(socket: KafkaSocket, version: int, *groups: str) -> list[dict[str, Any]]:
    """Return the described groups as plain values."""
    socket.send_frame(DESCRIBE, version, strings(list(groups)) + b"\0\0", b"\0")
    answer = Bytes(socket.receive())
    answer.unpack("i")  # throttle time
    found: list[dict[str, Any]] = []
    for _ in range(answer.varint() - 1):
        group: dict[str, Any] = {"error": answer.unpack("h"), "message": answer.string(), "name": answer.string()}
        group |= {"state": answer.string(), "epoch": answer.unpack("i"), "target_epoch": answer.unpack("i")}
        group |= {"assignor": answer.string(), "members": []}
        for _ in range(answer.varint() - 1):
            member: dict[str, Any] = {"id": answer.string(), "instance": answer.string(), "rack": answer.string()}
            member |= {"epoch": answer.unpack("i"), "client_id": answer.string(), "host": answer.string()}
            member["names"] = [answer.string() for _ in range(answer.varint() - 1)]
            member["pattern"] = answer.string()
            member |= {"assignment": answer.assignment(True), "target": answer.assignment(True)}
            if version >= 1:
                member["type"] = answer.unpack("b")
            answer.tags()
            group["members"].append(member)
        assert answer.unpack("i") == -(1 << 31)
        answer.tags()
        found.append(group)
    answer.end()
    return found
