"""Methods of the class connection: the handshake, and what concerns the connection as a whole.

connection.blocked, unblocked and update-secret are RabbitMQ's extensions.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from amqpd.protocol.plans import NO_ENTRIES, Table

CONNECTION_START: Final = 0x000A000A
CONNECTION_START_OK: Final = 0x000A000B
CONNECTION_SECURE: Final = 0x000A0014
CONNECTION_SECURE_OK: Final = 0x000A0015
CONNECTION_TUNE: Final = 0x000A001E
CONNECTION_TUNE_OK: Final = 0x000A001F
CONNECTION_OPEN: Final = 0x000A0028
CONNECTION_OPEN_OK: Final = 0x000A0029
CONNECTION_CLOSE: Final = 0x000A0032
CONNECTION_CLOSE_OK: Final = 0x000A0033
CONNECTION_BLOCKED: Final = 0x000A003C
CONNECTION_UNBLOCKED: Final = 0x000A003D
CONNECTION_UPDATE_SECRET: Final = 0x000A0046
CONNECTION_UPDATE_SECRET_OK: Final = 0x000A0047


class ConnectionStart(NamedTuple):
    version_major: int = 0
    version_minor: int = 0
    server_properties: Table = NO_ENTRIES
    mechanisms: str = ""
    locales: str = ""


class ConnectionStartOk(NamedTuple):
    client_properties: Table = NO_ENTRIES
    mechanism: str = ""
    response: bytes = b""
    locale: str = ""


class ConnectionSecure(NamedTuple):
    challenge: bytes = b""


class ConnectionSecureOk(NamedTuple):
    response: bytes = b""


class ConnectionTune(NamedTuple):
    channel_max: int = 0
    frame_max: int = 0
    heartbeat: int = 0


class ConnectionTuneOk(NamedTuple):
    channel_max: int = 0
    frame_max: int = 0
    heartbeat: int = 0


class ConnectionOpen(NamedTuple):
    virtual_host: str = ""


class ConnectionOpenOk(NamedTuple):
    """No arguments."""


class ConnectionClose(NamedTuple):
    reply_code: int = 0
    reply_text: str = ""
    class_id: int = 0
    method_id: int = 0


class ConnectionCloseOk(NamedTuple):
    """No arguments."""


class ConnectionBlocked(NamedTuple):
    reason: str = ""


class ConnectionUnblocked(NamedTuple):
    """No arguments."""


class ConnectionUpdateSecret(NamedTuple):
    new_secret: bytes = b""
    reason: str = ""


class ConnectionUpdateSecretOk(NamedTuple):
    """No arguments."""


# fmt: off
ConnectionCommand: TypeAlias = (
    ConnectionStart | ConnectionStartOk | ConnectionSecure | ConnectionSecureOk | ConnectionTune | ConnectionTuneOk
    | ConnectionOpen | ConnectionOpenOk | ConnectionClose | ConnectionCloseOk | ConnectionBlocked
    | ConnectionUnblocked | ConnectionUpdateSecret | ConnectionUpdateSecretOk
)
# fmt: on

# Number, name, class, plan of arguments.
CONNECTION_METHODS: Final[tuple[tuple[int, str, type[ConnectionCommand], str], ...]] = (
    (CONNECTION_START, "connection.start", ConnectionStart, "ootMM"),
    (CONNECTION_START_OK, "connection.start-ok", ConnectionStartOk, "tnLn"),
    (CONNECTION_SECURE, "connection.secure", ConnectionSecure, "L"),
    (CONNECTION_SECURE_OK, "connection.secure-ok", ConnectionSecureOk, "L"),
    (CONNECTION_TUNE, "connection.tune", ConnectionTune, "hih"),
    (CONNECTION_TUNE_OK, "connection.tune-ok", ConnectionTuneOk, "hih"),
    (CONNECTION_OPEN, "connection.open", ConnectionOpen, "nNB"),
    (CONNECTION_OPEN_OK, "connection.open-ok", ConnectionOpenOk, "N"),
    (CONNECTION_CLOSE, "connection.close", ConnectionClose, "hkhh"),
    (CONNECTION_CLOSE_OK, "connection.close-ok", ConnectionCloseOk, ""),
    (CONNECTION_BLOCKED, "connection.blocked", ConnectionBlocked, "k"),
    (CONNECTION_UNBLOCKED, "connection.unblocked", ConnectionUnblocked, ""),
    (CONNECTION_UPDATE_SECRET, "connection.update-secret", ConnectionUpdateSecret, "Lk"),
    (CONNECTION_UPDATE_SECRET_OK, "connection.update-secret-ok", ConnectionUpdateSecretOk, ""),
)
