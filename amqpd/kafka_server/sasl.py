"""Logins with SASL PLAIN.

The user name may carry the vhost, `vhost:user`, as in RabbitMQ's MQTT plugin; otherwise the vhost is `kafka.vhost`.
Passwords are checked as on the AMQP port, in a thread. The reply to a wrong one is delayed.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from amqpd.auth.internal_backend import AuthenticationRefused
from amqpd.kafka_server.connection import Api, Call, KafkaClientConnection
from amqpd.kafka_server.messages import (
    ILLEGAL_SASL_STATE,
    NONE,
    SASL_AUTHENTICATION_FAILED,
    UNSUPPORTED_SASL_MECHANISM,
    api_types,
)
from amqpd.listeners import is_loopback

log = logging.getLogger(__name__)

PLAIN: Final = "PLAIN"
FAILED_DELAY_S: Final = 1.0
"""Time before the answer to a wrong password."""
WRONG: Final = "Authentication failed: invalid user name or password"

_tasks: set[asyncio.Task[None]] = set()


def _handshake(call: Call) -> None:
    if call.request.mechanism != PLAIN:
        call.reply({"error_code": UNSUPPORTED_SASL_MECHANISM, "mechanisms": [PLAIN]})
        return
    call.connection.sasl_mechanism = PLAIN
    call.reply({"error_code": NONE, "mechanisms": [PLAIN]})


def _authenticate(call: Call) -> None:
    connection = call.connection
    if connection.sasl_mechanism != PLAIN or connection.session is not None:
        call.reply(
            {"error_code": ILLEGAL_SASL_STATE, "error_message": "SaslHandshake must come first", "auth_bytes": b""}
        )
        return
    parts = bytes(call.request.auth_bytes).split(b"\0")
    if len(parts) != 3:
        _refuse(call, "the PLAIN response has not three parts")
        return
    # One task per login: a password takes 20 ms in a thread.
    task = asyncio.get_running_loop().create_task(_log_in(call, parts[1], parts[2]))
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


async def _log_in(call: Call, name: bytes, password: bytes) -> None:
    connection = call.connection
    server = connection.server
    vhost, colon, user_name = name.decode("utf-8", "replace").rpartition(":")
    try:
        user = await server.broker.auth.authenticate(
            user_name, password, is_loopback(connection.peer[0]), connection.peer[0]
        )
    except AuthenticationRefused as error:
        await asyncio.sleep(FAILED_DELAY_S)
        _refuse(call, str(error))
        return
    if connection.closed:
        return
    why = server.log_in(connection, user, vhost if colon else server.settings.vhost)
    if why:
        _refuse(call, why)
        return
    call.reply({"error_code": NONE, "error_message": None, "auth_bytes": b"", "session_lifetime_ms": 0})


def _refuse(call: Call, why: str) -> None:
    """Answer with an error. why: for the log; the client does not learn which part was wrong."""
    connection: KafkaClientConnection = call.connection
    if connection.closed:
        return
    log.warning("Kafka client %s was refused: %s", connection.name, why, extra=connection.log_fields())
    call.reply({"error_code": SASL_AUTHENTICATION_FAILED, "error_message": WRONG, "auth_bytes": b""})


APIS: Final = (
    # librdkafka 2.0 logs in only where version 0 is listed, although it uses version 1. The tokens without a request
    # that follow version 0 are not understood: such a client is disconnected.
    Api(17, "SaslHandshake", 0, 1, 99, _handshake, *api_types("SaslHandshake"), before_login=True),
    Api(36, "SaslAuthenticate", 0, 2, 2, _authenticate, *api_types("SaslAuthenticate"), before_login=True),
)
