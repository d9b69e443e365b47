"""Channel 0 of a connection: handshake, close, update-secret, blocked.

    client                    broker
    protocol header           connection.start
    start-ok                  (password check on a thread)  tune
    tune-ok, open             open-ok

Before the connection is open, an error closes the socket without an answer, after a delay that slows down password
guessing. Two errors are answered: 403 to a client that announced `authentication_failure_close`, and those of
tune-ok and open (530, 504). One deadline applies to the whole handshake.

Source: AMQP 0-9-1 section 2.2.4; RabbitMQ 3.10.8 for codes and for errors without an answer.
"""

from __future__ import annotations

import asyncio
import logging
import platform
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

from amqpd.auth.internal_backend import AuthenticationRefused, User
from amqpd.connection import events, peer_certificate
from amqpd.connection.close_handler import CLOSED, CLOSING, HANDSHAKE, RUNNING
from amqpd.connection.connection import Connection
from amqpd.connection.handover import Handover, NegotiatedLogin
from amqpd.connection.pending_commands import ProcessingPaused
from amqpd.connection.read_pause import ALARM
from amqpd.errors import (
    AmqpError,
    ChannelError,
    CommandInvalid,
    ConnectionForced,
    FrameError,
    HardError,
    LoginRefused,
    NotAllowed,
    NotImplementedByBroker,
)
from amqpd.protocol import methods
from amqpd.protocol.field_table import CodecError, decode_table
from amqpd.protocol.methods import (
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    ConnectionUnblocked,
    ConnectionUpdateSecret,
    ConnectionUpdateSecretOk,
)

if TYPE_CHECKING:
    from amqpd.broker.broker import Broker
    from amqpd.connection.registry import ConnectionRegistry
    from amqpd.connection.transport import Transport


def credentials(mechanism: str, response: bytes) -> tuple[str, bytes | None]:
    """Return user name and password from a SASL response. The password is None for EXTERNAL.

    rabbit: the response of EXTERNAL can be anything.

    Raises:
        FrameError: the response does not fit the mechanism.
        CommandInvalid: the mechanism is unknown.
    """
    if mechanism == "EXTERNAL":
        return "", None
    if mechanism == "PLAIN":
        parts = response.split(b"\0")
        if len(parts) != 3:
            raise FrameError("PLAIN response must have two NULs")
        if parts[0] not in (b"", parts[1]):
            raise FrameError("PLAIN response for a login on behalf of another user")
        return parts[1].decode("utf-8", "replace"), parts[2]
    if mechanism == "AMQPLAIN":
        # AMQPLAIN: the response is a field table without its length.
        try:
            table, _ = decode_table(len(response).to_bytes(4, "big") + response, 0)
        except CodecError as error:
            raise FrameError(f"AMQPLAIN response: {error}") from None
        login, password = table.get("LOGIN"), table.get("PASSWORD")
        if not isinstance(login, str) or not isinstance(password, str | bytes):
            raise FrameError("AMQPLAIN response without LOGIN and PASSWORD")
        return login, password.encode() if isinstance(password, str) else password
    raise CommandInvalid(f"unknown mechanism '{mechanism}'")


log = logging.getLogger(__name__)

HEADER: Final = b"AMQP\x00\x00\x09\x01"
# rabbit: clients of AMQP 0-8 and 0-9 send these headers but speak 0-9-1
OLD_HEADERS: Final = (b"AMQP\x01\x01\x00\x09", b"AMQP\x01\x01\x08\x00")
TLS_HANDSHAKE: Final = b"\x16\x03"
CAPABILITIES: Final = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
)
FRAME_MIN: Final = 4096
# The connection keeps the client properties. The frame can be twice as long (transport.HANDSHAKE_FRAME_MAX), so
# that a long password fits. rabbit: 3.10 accepts frames of 4096 bytes here; the Java client's tests check it with
# long properties.
CLIENT_PROPERTIES_BYTES_MAX: Final = 4096
PENALTY_S: Final = 3.0
CLOSE_WAIT_S: Final = 3.0
# Time that the commands before a client's connection.close have. rabbit: channel_termination_timeout
COMMANDS_WAIT_S: Final = 15.0
_ANSWERED_ERRORS: Final = (NotAllowed, ChannelError, CommandInvalid, ConnectionForced)
"""Errors that are sent to a client between tune-ok and open-ok."""

WANT_HEADER, WANT_START_OK, CHECKING, WANT_TUNE_OK, WANT_OPEN, OPEN, GONE = range(7)


def server_properties(broker: Broker) -> dict[str, object]:
    """Return the properties for connection.start. Clients enable features by them."""
    product, version = broker.settings.product
    return {
        "product": product,
        "version": version,
        "platform": f"Python {platform.python_version()}",
        "copyright": "The amqpd authors",
        "information": "An AMQP 0-9-1 broker whose queues are logs",
        "cluster_name": broker.cluster_name,
        "capabilities": dict.fromkeys(CAPABILITIES, True),
    }


class ChannelZero:
    """Channel 0 of one connection, from the protocol header to the closed socket. Not on the message path.

    Attributes:
        mechanism: SASL mechanism of the login.
        connected_at: seconds since 1970.
    """

    def __init__(self, broker: Broker, connections: ConnectionRegistry, wire: Transport) -> None:
        self.broker = broker
        self.connections = connections
        self.wire = wire
        self.connection: Connection = None  # type: ignore[assignment]  # set by begin()
        self.step = WANT_HEADER
        self.mechanism = ""
        self.connected_at = broker.wall_time()
        self._header = b""
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._user: User | None = None
        self._channel_max = 0

    def begin(self, connection: Connection) -> None:
        """Start the handshake deadline. With TLS, its handshake is over and had its own deadline."""
        self.connection = connection
        self.connections.malloc_trimmer.on_opened()
        self._set_timer(self.broker.settings.amqp.handshake_timeout_s, self._on_handshake_timeout)

    # -- the protocol header -----------------------------------------------------------------------------------------

    def on_header(self, data: bytes) -> bytes:
        """Consume the protocol header and return the bytes behind it.

        Empty while it is incomplete, or if it is refused.
        """
        self._header += data
        header = self._header
        if len(header) < len(HEADER):
            if not any(known.startswith(header) for known in (HEADER, *OLD_HEADERS)) and len(header) >= 4:
                self._refuse_header()
            return b""
        if header[:8] != HEADER and header[:8] not in OLD_HEADERS:
            self._refuse_header()
            return b""
        self.step = WANT_START_OK
        rest = header[8:]
        self._header = b""
        self.connection.output.send(
            0, ConnectionStart(0, 9, server_properties(self.broker), " ".join(self._mechanisms()), "en_US")
        )
        return rest

    def _refuse_header(self) -> None:
        # spec: 4.2.2 answer with the supported header, then close
        is_tls = self._header.startswith(TLS_HANDSHAKE)
        what = "speaks TLS, and this port does not" if is_tls else "does not speak AMQP 0-9-1"
        log.warning("a client %s: %r", what, self._header[:8], extra=self._log_fields())
        self.wire.write(HEADER)
        self.close_socket()

    # -- methods -----------------------------------------------------------------------------------------------------

    def on_method(self, number: int, method: int, payload: bytes) -> None:
        """Handle a method on channel 0, or any method before the connection is open. Raises: AmqpError."""
        if number != 0:
            raise FrameError("no channel before connection.open")
        try:
            command = methods.decode(payload)
        except methods.MethodSyntaxError as error:
            raise FrameError(error.text, method) from None
        except methods.UnknownMethod as error:
            raise NotImplementedByBroker(str(error), method) from None
        if self.step == OPEN:
            self._on_open(method, command)
        elif isinstance(command, ConnectionStartOk) and self.step == WANT_START_OK:
            if int.from_bytes(payload[4:8], "big") > CLIENT_PROPERTIES_BYTES_MAX:
                raise FrameError(f"client properties of more than {CLIENT_PROPERTIES_BYTES_MAX} bytes")
            self._start_ok(command)
        elif isinstance(command, ConnectionTuneOk) and self.step == WANT_TUNE_OK:
            self._tune_ok(command)
        elif isinstance(command, ConnectionOpen) and self.step == WANT_OPEN:
            self._open(command)
        elif isinstance(command, ConnectionClose):
            self.on_client_close()
            self._discard_input()
        else:
            raise ChannelError(f"unexpected method '{methods.method_name(method)}' in the handshake", method)

    def _on_open(self, method: int, command: methods.Command) -> None:
        if isinstance(command, ConnectionClose):
            if self.connection.pending_commands.is_idle():
                self.on_client_close()
            else:
                self.connection.pending_commands.close_waits = True
                self._set_timer(COMMANDS_WAIT_S, self._on_commands_timeout)
            self._discard_input()
        elif isinstance(command, ConnectionUpdateSecret):
            # rabbit: nothing to do for a backend without expiring secrets
            self.connection.output.send(0, ConnectionUpdateSecretOk())
        else:
            raise ChannelError("unexpected method in connection state running", method)

    def _discard_input(self) -> NoReturn:
        """Discard the frames behind connection.close.

        Raises:
            ProcessingPaused: always. `Connection.receive` discards what arrives later.
        """
        self.connection.take_input()
        raise ProcessingPaused

    def _on_commands_timeout(self) -> None:
        """Do a connection.close whose earlier commands take long: the metadata may be unreachable.

        What waits for logs that are being opened, or is processed in slices, is always completed.
        """
        self._timer = None
        if self.connection.close_handler.state != RUNNING:
            return
        pending = self.connection.pending_commands
        if pending.unfinished_count > 0:
            self._set_timer(COMMANDS_WAIT_S, self._on_commands_timeout)
            return
        log.warning("commands before connection.close were not done in %d s", COMMANDS_WAIT_S, extra=self._log_fields())
        pending.close_waits = False
        self.on_client_close()

    def _start_ok(self, command: ConnectionStartOk) -> None:
        connection = self.connection
        connection.set_client_properties(command.client_properties)
        self.mechanism = command.mechanism
        if command.mechanism not in self._mechanisms():
            raise CommandInvalid(f"unknown mechanism '{command.mechanism}'")
        name, password = credentials(command.mechanism, command.response)
        self.step = CHECKING
        self._task = self.broker.loop.create_task(self._login(connection, name, password))
        raise ProcessingPaused

    def _mechanisms(self) -> list[str]:
        """Return the SASL mechanisms of this connection. EXTERNAL requires a listener that verifies certificates."""
        settings = self.broker.settings
        is_verified = self.wire.tls and settings.amqp.tls.verify_peer
        return [each for each in settings.auth.mechanisms if each != "EXTERNAL" or is_verified]

    async def _login(self, connection: Connection, name: str, password: bytes | None) -> None:
        auth, is_loopback = self.broker.auth, self.wire.peer_is_loopback
        try:
            if password is None:
                name = peer_certificate.external_user_name(self.wire.peer_certificate(), self.broker.settings.auth)
                user = auth.authenticate_external(name, is_loopback)
            else:
                user = await auth.authenticate(name, password, is_loopback, self.wire.peer[0])
        except AuthenticationRefused as refused:
            log.warning("login refused: %s", refused.reason, extra=self._log_fields())
            self.broker.auth.login_stats.count_login("amqp091", self.wire.peer[0], name, False)
            events.logged_in(self.broker, connection, name, refused.reason)
            self._refuse_login(connection)
            return
        except Exception:
            # A failed check must neither accept the login nor leave the client without an answer.
            log.exception(
                "login refused, because the check failed: a bug in amqpd, please report it", extra=self._log_fields()
            )
            self._refuse_login(connection)
            return
        self.broker.auth.login_stats.count_login("amqp091", self.wire.peer[0], name, True)
        if connection.close_handler.state != HANDSHAKE:
            return
        self._user = user
        events.logged_in(self.broker, connection, name, "")
        self.step = WANT_TUNE_OK
        settings = self.broker.settings.amqp
        self._channel_max = self.broker.channel_max
        tune = ConnectionTune(self._channel_max, settings.frame_max, settings.heartbeat_s)
        connection.output.send(0, tune)
        connection.resume_input()

    def _refuse_login(self, connection: Connection) -> None:
        if connection.close_handler.state != HANDSHAKE:
            return
        if connection.capabilities.get("authentication_failure_close") is True:
            self.step = OPEN
            connection.close_handler.shut(
                LoginRefused(
                    f"Login was refused using authentication mechanism {self.mechanism}. "
                    "For details see the broker logfile."
                )
            )
            self._wait_for_close_ok()
        else:
            self._close_delayed()

    def _tune_ok(self, command: ConnectionTuneOk) -> None:
        settings = self.broker.settings.amqp
        connection = self.connection
        frame_max = command.frame_max or settings.frame_max
        if frame_max < FRAME_MIN:
            raise NotAllowed(
                f"negotiated frame_max = {frame_max} is lower than the minimum allowed value ({FRAME_MIN})"
            )
        if frame_max > settings.frame_max:
            raise NotAllowed(
                f"negotiated frame_max = {frame_max} is higher than the maximum allowed value ({settings.frame_max})"
            )
        if command.channel_max > self._channel_max > 0:
            raise NotAllowed(
                f"negotiated channel_max = {command.channel_max} is higher than the maximum allowed value "
                f"({self._channel_max})"
            )
        connection.channels.count_max = command.channel_max or self._channel_max
        connection.set_frame_max(frame_max)
        connection.heartbeat_s = command.heartbeat
        self.step = WANT_OPEN

    def _open(self, command: ConnectionOpen) -> None:
        broker = self.broker
        connection = self.connection
        user = self._user
        assert user is not None  # the step guarantees it
        router = self.connections.vhost_router
        if router is not None and router.closed:
            raise ConnectionForced(router.closed)
        vhost = broker.vhosts.get(command.virtual_host)
        if vhost is None:
            self._hand_over_if_remote(command, user)
            raise NotAllowed(f"vhost {command.virtual_host} not found", methods.CONNECTION_OPEN)
        broker.admission.check(user.name, vhost, methods.CONNECTION_OPEN)
        if not broker.auth.may_access_vhost(user, vhost.name):
            raise NotAllowed(f"access to vhost '{vhost.name}' refused for user '{user.name}'", methods.CONNECTION_OPEN)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.step = OPEN
        connection.open(user, vhost)
        product = broker.settings.product[0]
        client = connection.client_properties.get("product")
        connection.pending_commands.channel_wide_qos = client == "py-amqp" and product != "RabbitMQ"
        self.connections.add(connection)
        self.connections.unopened.mark_logged_in(self.wire)
        connection.output.send(0, ConnectionOpenOk())
        log.info("user '%s' has opened vhost '%s'", user.name, vhost.name, extra=self._log_fields())
        events.connection_created(broker, connection)

    # -- another node ------------------------------------------------------------------------------------------------

    def continue_login(self, login: NegotiatedLogin) -> None:
        """Continue after the handshake that another node did, up to tune-ok. connection.open is next."""
        connection = self.connection
        connection.set_client_properties(login.client_properties)
        connection.channels.count_max = login.channel_max
        connection.set_frame_max(login.frame_max)
        connection.heartbeat_s = login.heartbeat_s
        self.mechanism, self.connected_at, self._user = login.mechanism, login.connected_at, login.user
        self.step = WANT_OPEN

    def _hand_over_if_remote(self, command: ConnectionOpen, user: User) -> None:
        """Hand the connection over if another node serves the vhost. Return if there is no such vhost.

        Raises:
            ProcessingPaused: the handover began.
        """
        connections, connection = self.connections, self.connection
        router = connections.vhost_router
        if router is None or not router.is_remote(command.virtual_host):
            return
        if self._timer is not None:
            self._timer.cancel()  # the handover has its own deadline
            self._timer = None
        self.wire.pause_reading()
        channel_max, frame_max = connection.channels.count_max, connection.output.frame_payload_max + 8
        properties, heartbeat_s = connection.client_properties, connection.heartbeat_s
        agreed = NegotiatedLogin(
            user, self.mechanism, properties, channel_max, frame_max, heartbeat_s, self.connected_at
        )
        shared = connections.unopened, connections.malloc_trimmer
        stay = partial(self._open_here, command)
        handover = Handover(
            connection, agreed, command.virtual_host, shared, self._handed_over, self._refuse_open, stay
        )
        self._task = self.broker.loop.create_task(router.hand_over(handover))
        raise ProcessingPaused

    def _handed_over(self) -> None:
        self._task = None
        self.step = GONE
        del self.connection

    def _refuse_open(self, error: HardError) -> None:
        self.wire.resume_reading()
        if self.connection.close_handler.state == HANDSHAKE:
            self.connection.close_handler.shut(error)
            self._wait_for_close_ok()

    def _open_here(self, command: ConnectionOpen) -> None:
        connection = self.connection
        self.wire.resume_reading()
        if connection.close_handler.state != HANDSHAKE:
            return
        try:
            self._open(command)
        except ProcessingPaused:
            return  # another handover began
        except AmqpError as error:
            connection.close_handler.close_for(error, 0)
        connection.resume_input()

    # -- ends --------------------------------------------------------------------------------------------------------

    def on_client_close(self) -> None:
        """Answer the client's connection.close, after the commands before it are done."""
        connection = self.connection
        if connection.close_handler.state == RUNNING:
            log.info("the client has closed its connection", extra=self._log_fields())
            self.release()
        connection.close_handler.set_state(CLOSING)
        connection.output.send(0, ConnectionCloseOk())
        connection.output.flush()
        # rabbit: the client ends the stream. amqp091-go treats our end of stream as a failure if it comes before
        # its threads have seen close-ok.
        connection.read_pause.disable()
        self._set_timer(CLOSE_WAIT_S, self.close_socket)

    def fail(self, error: AmqpError) -> None:
        """Handle a hard error. Most errors in the handshake close the socket without an answer."""
        connection = self.connection
        is_answered = self.step >= WANT_TUNE_OK and isinstance(error, _ANSWERED_ERRORS)
        if connection.close_handler.state == HANDSHAKE and not is_answered:
            log.warning("a handshake failed: %s", error.reply_text, extra=self._log_fields())
            self._close_delayed()
            return
        assert isinstance(error, HardError)  # the caller passes no other error here
        connection.close_handler.shut(error)
        self._wait_for_close_ok()

    def force(self, reason: str) -> None:
        """Close with 320 at the request of amqpctl, the HTTP API, a vhost deletion or a stop."""
        if self.step == GONE:
            return
        if self.connection.close_handler.state == RUNNING:
            self.connection.close_handler.shut(ConnectionForced(reason))
            self._wait_for_close_ok()
        else:
            self.close_socket()

    def _close_delayed(self) -> None:
        self.connection.close_handler.set_state(CLOSING)
        self._set_timer(PENALTY_S, self.close_socket)

    def _wait_for_close_ok(self) -> None:
        self._set_timer(CLOSE_WAIT_S, self._on_close_timeout)

    def _on_close_timeout(self) -> None:
        """Reset the socket: the client must learn that what it sent after our close was ignored."""
        self._timer = None
        log.warning(
            "the client did not answer connection.close in %d s, the connection is reset",
            CLOSE_WAIT_S,
            extra=self._log_fields(),
        )
        self.connection.output.flush()
        self.wire.abort()

    def _set_timer(self, delay_s: float, callback: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.broker.loop.call_later(delay_s, callback)

    def _on_handshake_timeout(self) -> None:
        self._timer = None
        log.warning("a handshake was not finished in time", extra=self._log_fields())
        self.close_socket()

    def close_socket(self) -> None:
        """Write the remaining output and close the socket. Cancel a login check or handover."""
        self._stop_waiting()
        if self.connection.close_handler.state != CLOSED:
            self.connection.output.flush()
            self.wire.close()

    def _stop_waiting(self) -> None:
        if self._task is not None:
            self._task.cancel()  # cancels the password check
            self._task = None

    def _log_fields(self) -> dict[str, object]:
        """Return the fields of a log record."""
        about: dict[str, object] = {"connection": self.connection.name}
        session = self.connection.opened
        if session is not None:
            about.update(user=session.user.name, vhost=session.vhost.name)
        return about

    def release(self) -> None:
        """Release the connection's consumers, unacked messages and exclusive queues."""
        self.connections.release(self.connection)

    def on_socket_closed(self) -> None:
        """Dispose of the connection: the socket is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._stop_waiting()
        connection = self.connection
        was_open = self.step == OPEN and connection.opened is not None
        if connection.close_handler.state == RUNNING:
            log.info("the client closed its socket without connection.close", extra=self._log_fields())
        connection.close_handler.set_state(CLOSED)
        if was_open:
            self.release()
            self.connections.closed_count += 1
            self.connections.ended_received_bytes += connection.received_bytes
            self.connections.ended_sent_bytes += connection.output.sent_bytes
        events.connection_closed(self.broker, connection)
        connection.dispose()
        self.connections.malloc_trimmer.on_closed(connection.received_bytes + connection.output.sent_bytes)
        self.step = GONE
        del self.connection

    # -- alarms ------------------------------------------------------------------------------------------------------

    def pause_for_alarm(self) -> None:
        """Stop reading a client that published during an alarm, and send connection.blocked."""
        connection = self.connection
        if connection.read_pause.is_set(ALARM):
            return
        connection.read_pause.pause(ALARM)
        if connection.capabilities.get("connection.blocked") is True:
            connection.output.send(0, ConnectionBlocked(self.broker.alarm_reason))

    def resume_after_alarm(self) -> None:
        connection = self.connection
        if not connection.read_pause.is_set(ALARM):
            return
        if connection.capabilities.get("connection.blocked") is True:
            connection.output.send(0, ConnectionUnblocked())
        connection.read_pause.resume_in_later_turn(ALARM)

    def call_soon(self, function: Callable[[], None]) -> None:
        self.broker.loop.call_soon(function)
