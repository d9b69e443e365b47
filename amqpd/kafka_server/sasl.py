"""Logins with SASL: PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512.

After SaslHandshake 1 each message of SASL is in a SaslAuthenticate. After version 0, as of kafka-python 2.0, it has
only its length before it, and a failed login has no answer.

The user name may carry the vhost, `vhost:user`, as in RabbitMQ's MQTT plugin; otherwise the vhost is `kafka.vhost`.

PLAIN: passwords are checked as on the AMQP port, in a thread. SCRAM (amqpd/auth/scram.py): two requests, 20 us each on
the loop. Credentials for it are made when a password is set, so a user from before has none.

A failed login is answered after a delay that grows with each failure of the user from that address. Then the connection
is closed. The client learns neither which part was wrong nor whether the user exists.
"""

from __future__ import annotations

import logging
from typing import Final

from amqpd.auth.internal_backend import AuthenticationRefused, User
from amqpd.auth.scram import MECHANISMS as SCRAM_MECHANISMS
from amqpd.auth.scram import ScramError, ScramLogin
from amqpd.kafka_server import errors
from amqpd.kafka_server.connection import Api, Call, KafkaClientConnection, typed_api
from amqpd.listeners import is_loopback

log = logging.getLogger(__name__)

PLAIN: Final = "PLAIN"
MECHANISMS: Final = (PLAIN, *SCRAM_MECHANISMS)
WRONG: Final = "Authentication failed: invalid user name or password"
WRONG_SCRAM: Final = (
    f"{WRONG}, or a user without SCRAM credentials; they are made when the user's password is set "
    "(amqpctl change_password)"
)


class SaslExchange:
    """The login of a connection, from SaslHandshake on.

    Attributes:
        scram: the SCRAM login whose first message has been answered.
        has_credentials: the user exists and has SCRAM credentials.
    """

    def __init__(self) -> None:
        self.scram: ScramLogin | None = None
        self.has_credentials = False


def _handshake(call: Call) -> None:
    connection, mechanism = call.connection, call.request.mechanism
    if connection.session is not None or connection.sasl is not None:
        call.reply({"error_code": errors.ILLEGAL_SASL_STATE, "mechanisms": list(MECHANISMS)})
        return
    if mechanism not in MECHANISMS:
        call.reply({"error_code": errors.UNSUPPORTED_SASL_MECHANISM, "mechanisms": list(MECHANISMS)})
        return
    connection.mechanism = mechanism
    connection.sasl = SaslExchange()
    if call.version == 0:
        connection.token_api = _TOKENS
    call.reply({"error_code": errors.NONE, "mechanisms": list(MECHANISMS)})


def _authenticate(call: Call) -> None:
    connection = call.connection
    exchange = connection.sasl
    if not isinstance(exchange, SaslExchange) or connection.session is not None:
        _answer(call, errors.ILLEGAL_SASL_STATE, "SaslHandshake must come first")
        return
    message = call.frame if call.api is _TOKENS else bytes(call.request.auth_bytes)
    if connection.mechanism != PLAIN:
        _scram(call, exchange, message)
        return
    parts = message.split(b"\0")
    if len(parts) != 3:
        _refuse(call, "", "the PLAIN response has not three parts", WRONG)
        return
    if parts[0] not in (b"", parts[1]):
        _refuse(call, "", "a login on behalf of another user", WRONG)
        return
    connection.start_task(_plain(call, parts[1], parts[2]))  # a password takes 20 ms in a thread


def _answer(call: Call, error_code: int, text: str | None, message: bytes = b"") -> None:
    if call.api is not _TOKENS:
        call.reply({"error_code": error_code, "error_message": text, "auth_bytes": message})
    elif error_code:
        call.reply_nothing()  # the closed connection is the answer
    else:
        call.reply_token(message)


def _vhost_and_user(connection: KafkaClientConnection, name: str) -> tuple[str, str]:
    vhost, colon, user = name.rpartition(":")
    return (vhost if colon else connection.server.settings.vhost), user


async def _plain(call: Call, name: bytes, password: bytes) -> None:
    connection = call.connection
    vhost, user_name = _vhost_and_user(connection, name.decode("utf-8", "replace"))
    auth, address = connection.server.broker.auth, connection.peer[0]
    try:
        user = await auth.authenticate(user_name, password, is_loopback(address), address)
    except AuthenticationRefused as error:
        _refuse(call, user_name, str(error), WRONG)
        return
    _accept(call, user, vhost, b"")


def _scram(call: Call, exchange: SaslExchange, message: bytes) -> None:
    connection = call.connection
    auth = connection.server.broker.auth
    login = exchange.scram
    try:
        if login is None:
            login = exchange.scram = ScramLogin(connection.mechanism, message)
            _, user_name = _vhost_and_user(connection, login.user_name)
            credentials = auth.scram_credentials(user_name, connection.mechanism)
            exchange.has_credentials = credentials is not None
            if credentials is None:
                credentials = auth.unknown_scram_user(user_name, connection.mechanism)
            _answer(call, errors.NONE, None, login.begin(credentials))
            return
        vhost, user_name = _vhost_and_user(connection, login.user_name)
        last = login.finish(message)
        user = auth.authenticate_external(user_name, is_loopback(connection.peer[0]))
    except ScramError as error:
        name = "" if login is None else _vhost_and_user(connection, login.user_name)[1]
        why = str(error)
        if login is not None and not exchange.has_credentials:
            why = f"user {name!r} does not exist or has no SCRAM credentials: set its password once to make them"
        _refuse(call, name, why, WRONG_SCRAM)
    except AuthenticationRefused as error:
        _refuse(call, user_name, str(error), WRONG_SCRAM)
    else:
        _accept(call, user, vhost, last)


def _accept(call: Call, user: User, vhost: str, last: bytes) -> None:
    """Log the user in, whose password was right. last: the mechanism's last message."""
    connection = call.connection
    if connection.closed:
        return
    why = connection.server.log_in(connection, user, vhost)
    if why:
        _refuse(call, user.name, why, why)
        return
    connection.server.record_login(connection, user.name, "")
    _answer(call, errors.NONE, None, last)


def _refuse(call: Call, name: str, why: str, text: str) -> None:
    """Answer with an error after a delay, and close the connection. why: for the log; text: for the client."""
    connection = call.connection
    server = connection.server
    if connection.closed:
        return
    log.warning("Kafka client %s was refused: %s", connection.name, why, extra=connection.log_fields())
    server.record_login(connection, name, why)
    connection.sasl = SaslExchange()

    def answer() -> None:
        if not connection.closed:
            _answer(call, errors.SASL_AUTHENTICATION_FAILED, text)
            connection.close_after_replies()

    delay_s = server.broker.auth.failure_backoff.record_failure(connection.peer[0], name)
    server.broker.loop.call_later(delay_s, answer)


_TOKENS: Final = Api(36, "SaslAuthenticate", 0, 0, 99, _authenticate, before_login=True)

APIS: Final = (
    typed_api(17, "SaslHandshake", 0, 1, 99, _handshake, before_login=True),
    typed_api(36, "SaslAuthenticate", 0, 2, 2, _authenticate, before_login=True),
)
