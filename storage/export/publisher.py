"""AMQP client that only publishes, for imports and tasks of the Spark sink: one socket, one connection, one channel.

With confirms, `publish` keeps at most `window` messages unconfirmed, and `finish` returns when all are confirmed.
With a transaction, nothing is visible before the commit-ok in `finish`. The client reads while it waits for
writing, so a broker that stops reading until it is read causes no deadlock.

A PublishError means that some messages may not have arrived: a nack, an unroutable message (with `mandatory`), a
closed channel or connection, or silence. Earlier messages may have arrived. There are no heartbeats. Each wait has
the limit `timeout_s`, except while the broker has blocked the connection.

This module needs neither pyarrow nor pyspark.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from amqpd.protocol import methods as c

BLOCK = 256 << 10
_HEADER = b"AMQP\x00\x00\x09\x01"
_END = b"\xce"
_METHOD = 1
_CONTENT_HEADER = 2
_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_Answer = TypeVar("_Answer")


class PublishError(Exception):
    """Some messages may not have arrived; the text says why."""


class ChannelClosed(PublishError):
    """The broker closed the channel because of one of the unconfirmed messages.

    Attributes:
        reason: Its code and text.
    """

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True)
class SinkTarget:
    """A broker, its vhost and a user.

    Attributes:
        secure: Use TLS, and check the certificate with the system's authorities.
    """

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    vhost: str
    secure: bool

    @staticmethod
    def from_url(url: str) -> SinkTarget:
        """Parse amqp://user:password@host:5672/vhost or amqps://...; without a path the vhost is `/`. Raises
        ValueError.
        """
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:  # its text may have a part of the password
            port = -1
        if parts.scheme not in ("amqp", "amqps") or not parts.hostname or "/" in parts.path[1:] or port == -1:
            raise ValueError("expected amqp://user:password@host:5672/vhost (%2F for a slash in the vhost's name)")
        secure = parts.scheme == "amqps"
        return SinkTarget(
            parts.hostname,
            port or (5671 if secure else 5672),
            unquote(parts.username or "guest"),
            unquote(parts.password or "guest"),
            unquote(parts.path[1:]) or "/",
            secure,
        )


class _ReturnedContent:
    """The properties and the body of a returned message, from its frames."""

    def __init__(self) -> None:
        self.properties = b""
        self.body = bytearray()
        self._size = 0

    def add(self, kind: int, payload: bytes) -> bool:
        """Add a frame. Return True if the message is complete."""
        if kind == _CONTENT_HEADER:
            self._size = int.from_bytes(payload[4:12], "big")
            self.properties = payload[12:]
            self.body = bytearray()
        else:
            self.body += payload
        return len(self.body) >= self._size


class SinkPublisher:
    """One connection that only publishes. It connects at once.

    Use it in one thread. All methods raise PublishError.

    Args:
        transaction: Use a transaction instead of confirms.
        mandatory: A message that reaches no queue is an error.
        window: Limit for unconfirmed messages.
        on_return: Called with each message that reached no queue, its properties and its body, instead of an error.
            Only with confirms; it is called before the message counts as confirmed.
        on_nack: Called with the numbers, from 1 on, of messages that the broker refused, instead of an error. They
            count as confirmed.
    """

    def __init__(
        self,
        target: SinkTarget,
        *,
        transaction: bool = False,
        mandatory: bool = True,
        window: int = 1000,
        timeout_s: float = 60.0,
        on_return: Callable[[c.BasicReturn, bytes, bytes], None] | None = None,
        on_nack: Callable[[list[int]], None] | None = None,
    ) -> None:
        self.published = 0
        self._confirmed = 0  # all messages up to this number are confirmed, and those in `_confirmed_early`
        self._confirmed_early: set[int] = set()
        self._transaction = transaction
        self._mandatory = mandatory
        self._window = window
        self._timeout_s = timeout_s
        self._in = bytearray()
        self._out = bytearray()
        self._answers: list[c.Command] = []
        self._returned: c.BasicReturn | None = None
        self._on_return = on_return
        self._on_nack = on_nack
        self._content = _ReturnedContent()
        self._blocked = False
        self._routes: dict[tuple[str, str], bytes] = {}
        self._frame_max = 131072
        self._where = f"{target.host}:{target.port}"
        self._socket = self._connect(target)
        try:
            self._open(target)
        except BaseException:
            self._socket.close()
            raise

    # -- publishing

    def publish(self, exchange: str, routing_key: str, properties: bytes, body: bytes) -> None:
        """Publish one message; it may stay in the buffer.

        Args:
            properties: Flags and fields as in a content header frame.
        """
        out = self._out
        method = self._routes.get((exchange, routing_key))
        if method is None:
            if len(self._routes) > 1000:
                self._routes.clear()
            method = c.frame(1, c.BasicPublish(exchange, routing_key, self._mandatory))
            self._routes[exchange, routing_key] = method
        out += method
        out += b"\x02\x00\x01" + (12 + len(properties)).to_bytes(4, "big") + b"\x00\x3c\x00\x00"
        out += len(body).to_bytes(8, "big")
        out += properties
        out += _END
        piece = self._frame_max - 8
        for start in range(0, len(body), piece):
            part = body[start : start + piece]
            out += b"\x03\x00\x01" + len(part).to_bytes(4, "big")
            out += part
            out += _END
        self.published += 1
        if len(out) >= BLOCK:
            self._run_until(lambda: len(self._out) < BLOCK)
        if not self._transaction and self.published - self._confirmed >= self._window:
            self._run_until(lambda: self.published - self._confirmed <= self._window // 2)

    def finish(self) -> int:
        """Wait until all messages are confirmed or committed. Return their number."""
        if self._transaction:
            self._send(c.TxCommit())
            self._wait(c.TxCommitOk)
        else:
            self._run_until(lambda: self._confirmed >= self.published)
        if self._returned is not None:
            self._raise_unroutable()
        return self.published

    def is_confirmed(self, number: int) -> bool:
        """Return whether the message with this number, from 1 on, is confirmed."""
        return number <= self._confirmed or number in self._confirmed_early

    def close(self) -> None:
        """Close the connection. An uncommitted transaction is lost. Raises nothing."""
        try:
            self._send(c.ConnectionClose(200, "", 0, 0), channel=0)
            self._timeout_s = min(self._timeout_s, 2.0)
            self._wait(c.ConnectionCloseOk)
        except PublishError:
            return  # the connection has ended
        finally:
            self._socket.close()

    def abandon(self) -> None:
        """Drop the connection. Unconfirmed messages may arrive, uncommitted ones do not."""
        self._socket.close()

    # -- opening

    def _connect(self, target: SinkTarget) -> socket.socket:
        try:
            made = socket.create_connection((target.host, target.port), self._timeout_s)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if target.secure:
                made = ssl.create_default_context().wrap_socket(made, server_hostname=target.host)
            made.setblocking(False)
        except OSError as error:
            raise PublishError(f"no connection to {self._where}: {error}") from error
        return made

    def _open(self, target: SinkTarget) -> None:
        self._out += _HEADER
        self._wait(c.ConnectionStart)
        client_properties = {
            "product": "amqpd publisher",
            "capabilities": {
                "publisher_confirms": True,
                "basic.nack": True,
                "connection.blocked": True,
                "authentication_failure_close": True,
            },
        }
        response = b"\0" + target.user.encode() + b"\0" + target.password.encode()
        self._send(c.ConnectionStartOk(client_properties, "PLAIN", response, "en_US"), channel=0)
        tune = self._wait(c.ConnectionTune)
        if tune.frame_max:
            self._frame_max = min(self._frame_max, tune.frame_max)
        self._send(c.ConnectionTuneOk(tune.channel_max, self._frame_max, 0), channel=0)
        self._send(c.ConnectionOpen(target.vhost), channel=0)
        self._wait(c.ConnectionOpenOk)
        self._send(c.ChannelOpen())
        self._wait(c.ChannelOpenOk)
        if self._transaction:
            self._send(c.TxSelect())
            self._wait(c.TxSelectOk)
        else:
            self._send(c.ConfirmSelect())
            self._wait(c.ConfirmSelectOk)

    def _send(self, command: c.Command, channel: int = 1) -> None:
        self._out += c.frame(channel, command)

    def _wait(self, kind: type[_Answer]) -> _Answer:
        self._run_until(lambda: bool(self._answers))
        answer = self._answers.pop(0)
        if not isinstance(answer, kind):
            raise PublishError(f"{self._where} answered {type(answer).__name__}, expected {kind.__name__}")
        return answer

    # -- the socket

    def _run_until(self, done: Callable[[], bool]) -> None:
        """Write and read until `done` returns True."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            progress = self._write()
            progress = self._read() or progress
            if done():
                return
            now = time.monotonic()
            if progress or self._blocked:
                deadline = now + self._timeout_s
            elif now >= deadline:
                raise PublishError(f"{self._where} was silent for {self._timeout_s:g} s")
            writing = [self._socket] if self._out else []
            select.select([self._socket], writing, [], deadline - now)

    def _write(self) -> bool:
        out = self._out
        try:
            sent = self._socket.send(out) if out else 0
        except _WOULD_BLOCK:
            return False
        except OSError as error:
            self._read()  # read a close with the broker's reason
            raise PublishError(f"the connection to {self._where} is lost: {error}") from error
        if sent:
            del out[:sent]
        return sent > 0

    def _read(self) -> bool:
        """Read all available data. Raises PublishError, also for a nack, a return or a close."""
        found = False
        while True:
            try:
                data = self._socket.recv(BLOCK)
            except _WOULD_BLOCK:
                return found
            except OSError as error:
                raise PublishError(f"the connection to {self._where} is lost: {error}") from error
            if not data:
                raise PublishError(f"{self._where} closed the connection")
            found = True
            self._in += data
            self._frames()

    def _frames(self) -> None:
        data = self._in
        position = 0
        while len(data) - position >= 8:
            if data[position] == 0x41:  # "AMQP": the broker needs another version of the protocol
                raise PublishError(f"{self._where} does not speak AMQP 0-9-1")
            size = int.from_bytes(data[position + 3 : position + 7], "big")
            if len(data) - position < size + 8:
                break
            kind, payload = data[position], bytes(data[position + 7 : position + 7 + size])
            if kind == _METHOD:
                self._handle(c.decode(payload))
            elif self._returned is not None and self._on_return is not None and self._content.add(kind, payload):
                self._on_return(self._returned, self._content.properties, bytes(self._content.body))
                self._returned = None
            position += size + 8
        del data[:position]

    def _handle(self, command: c.Command) -> None:
        match command:
            case c.BasicAck(tag, multiple):
                self._on_ack(tag, multiple)
            case c.BasicNack(tag, multiple):
                if self._on_nack is None:
                    raise PublishError(f"{self._where} refused a message (basic.nack)")
                first = self._confirmed + 1 if multiple else tag
                self._on_nack([each for each in range(first, tag + 1) if not self.is_confirmed(each)])
                self._on_ack(tag, multiple)
            case c.BasicReturn():
                self._returned = command
                if not self._transaction and self._on_return is None:
                    self._raise_unroutable()
            case c.ChannelClose():
                reason = f"{command.reply_code} {command.reply_text}"
                raise ChannelClosed(f"{self._where} closed: {reason}", reason)
            case c.ConnectionClose():
                raise PublishError(f"{self._where} closed: {command.reply_code} {command.reply_text}")
            case c.ConnectionBlocked():
                self._blocked = True
            case c.ConnectionUnblocked():
                self._blocked = False
            case _:
                self._answers.append(command)

    def _on_ack(self, tag: int, multiple: bool) -> None:
        early = self._confirmed_early
        if multiple:
            self._confirmed = max(self._confirmed, tag)
            if early:
                early -= {each for each in early if each <= self._confirmed}
        else:
            early.add(tag)
        while early and self._confirmed + 1 in early:
            self._confirmed += 1
            early.remove(self._confirmed)

    def _raise_unroutable(self) -> None:
        returned = self._returned
        assert returned is not None
        raise PublishError(
            f"no queue gets the message to exchange '{returned.exchange}' with routing key '{returned.routing_key}': "
            f"{returned.reply_code} {returned.reply_text} (mandatory=false publishes it anyway)"
        )
