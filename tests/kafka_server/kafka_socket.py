"""A client that sends single requests of any version over one socket, and helpers of several tests."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Mapping
from typing import Any, Self

from amqpd.kafka_server.messages import api_types
from amqpd.testing import BrokerProcess

CLIENT_ID = "tests"


def address_of(broker: BrokerProcess) -> str:
    """Return `host:port` of the broker's Kafka listener."""
    assert broker.ready is not None
    host, port = broker.ready.listeners["kafka"]
    return f"{host}:{port}"


def until(condition: Callable[[], Any], timeout_s: float = 30.0) -> Any:
    """Return the first true result of a condition that the broker makes true later."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def audit_records(broker: BrokerProcess) -> list[dict[str, Any]]:
    """Return the records of the audit log about Kafka's clients, as far as they are synced."""
    records: list[dict[str, Any]] = []
    offset, is_ended = 0, False
    while not is_ended:
        found: Any = broker.api("GET", f"/api/audit?count=1000&offset={offset}")
        records += found["records"]
        is_ended = found["ended"] or not found["records"]
        offset = found["next_offset"]
    return [each for each in records if each.get("front_end") == "kafka"]


def build(message_type: Any, fields: Mapping[str, Any], version: int) -> Any:
    """Return an object of kafka-python's `message_type` from plain mappings and lists.

    Other fields have defaults. Fields that the version does not have are left out.
    """
    types = message_type.fields
    values: dict[str, Any] = {}
    for name, value in fields.items():
        field = types[name]
        if not field.for_version_q(version):
            continue
        if value is None:
            pass
        elif field.is_struct_array():
            value = [build(field.data_class, each, version) for each in value]
        elif field.is_struct():
            value = build(field.data_class, value, version)
        values[name] = value
    return message_type(version=version, **values)


class KafkaSocket:
    """One connection, without a login.

    Args:
        address: `host:port`.
        timeout_s: of each receive.
    """

    def __init__(self, address: str, timeout_s: float = 30.0) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout_s)
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, request: Any, version: int) -> int:
        """Send a request of kafka-python, and return its correlation id."""
        self._correlation_id += 1
        request.API_VERSION = version
        request.with_header(self._correlation_id, CLIENT_ID)
        self.socket.sendall(request.encode(version=version, header=True, framed=True))
        return self._correlation_id

    def ask(self, request: Any, version: int) -> Any:
        """Send a request of kafka-python and return the decoded response."""
        return self.decode(request, version, self.ask_raw(request, version))

    def ask_raw(self, request: Any, version: int) -> bytes:
        """Send a request of kafka-python and return the response's frame without its length."""
        correlation_id = self.send(request, version)
        frame = self.receive()
        assert struct.unpack_from(">i", frame)[0] == correlation_id
        return frame

    @staticmethod
    def decode(request: Any, version: int, frame: bytes) -> Any:
        """Return the response to this request. The frame must be what kafka-python makes of it again."""
        response_type = api_types(type(request).__name__.removesuffix("Request"))[1]
        response = response_type.decode(frame, version=version, header=True)
        body = bytes(response.encode())
        assert frame.endswith(body)
        assert len(frame) - len(body) in (4, 5)  # the header
        return response

    def send_bytes(self, data: bytes) -> None:
        """Send these bytes, whatever they are."""
        self.socket.sendall(data)

    def send_frame(self, api_key: int, version: int, body: bytes, header_tags: bytes = b"") -> None:
        """Send a request with any body. header_tags: `\\0` for flexible versions."""
        self._correlation_id += 1
        client_id = CLIENT_ID.encode()
        header = struct.pack(">hhih", api_key, version, self._correlation_id, len(client_id)) + client_id
        frame = header + header_tags + body
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)

    def receive(self) -> bytes:
        """Return the next frame without its length. Raises ConnectionError: the broker has closed the connection."""
        return self._exactly(struct.unpack(">i", self._exactly(4))[0])

    def is_closed(self) -> bool:
        """Wait until the broker sends something or closes the connection, and return whether it has closed it."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise ConnectionError("the broker has closed the connection")
            data += part
        return data
