"""Reply codes of AMQP 0-9-1, and the exceptions that carry them.

Only this module knows the numbers. A handler raises an exception; `connection/close_handler.py` answers with
`channel.close` (SoftError) or `connection.close` (HardError). `routing` and `storage` raise their own exceptions,
which `amqpd.connection` and the handlers translate. An OSError (the disk fails, no descriptors are left) becomes
506. Any other exception is a bug in amqpd: 541, and a traceback in the log.

docs/reference/errors.md has the docstrings of the classes.

Source: AMQP 0-9-1, section 1.2 (constants); texts of RabbitMQ.
"""

from __future__ import annotations

from typing import ClassVar, Final

NO_ROUTE: Final = 312
REPLY_TEXT_SIZE_BYTES_MAX: Final = 255


class AmqpError(Exception):
    """An error that is sent to the client.

    Attributes:
        text: The text behind the code's name, such as `no queue 'q' in vhost '/'`.
        method: Class id << 16 | method id of the failed command; 0 if there is none or it is not known yet. For
            soft errors the connection sets it.
    """

    code: ClassVar[int] = 541
    name: ClassVar[str] = "INTERNAL_ERROR"

    def __init__(self, text: str, method: int = 0) -> None:
        super().__init__(text)
        self.text = text
        self.method = method

    @property
    def reply_text(self) -> str:
        """Return `NAME - text`, cut to 255 bytes of UTF-8, the limit of a short string; `...` marks a cut."""
        whole = f"{self.name} - {self.text}".encode("utf-8", "replace")
        if len(whole) <= REPLY_TEXT_SIZE_BYTES_MAX:
            return whole.decode()
        return whole[: REPLY_TEXT_SIZE_BYTES_MAX - 3].decode("utf-8", "ignore") + "..."


class SoftError(AmqpError):
    """An error that closes its channel; the connection stays open."""


class HardError(AmqpError):
    """An error that closes the connection."""


class ContentTooLarge(SoftError):
    """Unfinished messages of one connection need more memory than is allowed."""

    code = 311
    name = "CONTENT_TOO_LARGE"


class AccessRefused(SoftError):
    """A permission is missing, a name is reserved, or the queue is in exclusive use."""

    code = 403
    name = "ACCESS_REFUSED"


class NotFound(SoftError):
    """No such queue, exchange, binding or virtual host."""

    code = 404
    name = "NOT_FOUND"


class ResourceLocked(SoftError):
    """The queue is exclusive to another connection."""

    code = 405
    name = "RESOURCE_LOCKED"


class PreconditionFailed(SoftError):
    """A declaration differs from the existing object, an argument or header is invalid, a delivery tag is unknown, or
    something is in use, not empty or full."""

    code = 406
    name = "PRECONDITION_FAILED"


class ConnectionForced(HardError):
    """An operator has closed the connection, or the broker stops; connect again later."""

    code = 320
    name = "CONNECTION_FORCED"


class LoginRefused(HardError):
    """In the handshake: the user, the password or the certificate is wrong, or the user may come from this machine
    only."""

    code = 403
    name = "ACCESS_REFUSED"


class FrameError(HardError):
    """Bytes that are no AMQP frame, or an invalid frame."""

    code = 501
    name = "FRAME_ERROR"


class SyntaxFault(HardError):
    """AMQP's code for a field with an impossible value; the broker answers 501 or 503 in its place."""

    code = 502
    name = "SYNTAX_ERROR"


class CommandInvalid(HardError):
    """An unknown method, a method in the wrong place, or an unknown exchange type."""

    code = 503
    name = "COMMAND_INVALID"


class ChannelError(HardError):
    """A channel that is not open is used, or one that is open is opened again."""

    code = 504
    name = "CHANNEL_ERROR"


class UnexpectedFrame(HardError):
    """A frame out of order, such as a body without its header."""

    code = 505
    name = "UNEXPECTED_FRAME"


class ResourceError(HardError):
    """The disk does not answer, or there is no file descriptor left; a later try may succeed."""

    code = 506
    name = "RESOURCE_ERROR"


class NotAllowed(HardError):
    """A virtual host is missing or forbidden, a consumer tag is used twice, or a limit of connections or channels is
    reached."""

    code = 530
    name = "NOT_ALLOWED"


class NotImplementedByBroker(HardError):
    """A part of AMQP that the broker does not have: `immediate`, `prefetch_size`, reading a stream by
    basic.get."""

    code = 540
    name = "NOT_IMPLEMENTED"


class InternalError(HardError):
    """A bug in amqpd, please report it. Nothing a client sends may cause it."""

    code = 541
    name = "INTERNAL_ERROR"
