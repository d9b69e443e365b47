"""What a client logs in with, as the SASL mechanisms of AMQP carry it: PLAIN, AMQPLAIN, EXTERNAL."""

from __future__ import annotations

from amqpd.errors import CommandInvalid, FrameError
from amqpd.protocol.field_table import CodecError, decode_table


def credentials(mechanism: str, response: bytes) -> tuple[str, bytes | None]:
    """Name and password; None where the certificate stands for both. rabbit: its response may be anything.

    Raises: FrameError for a response that is none of the mechanism's, CommandInvalid for another mechanism.
    """
    if mechanism == "EXTERNAL":
        return "", None
    if mechanism == "PLAIN":
        parts = response.split(b"\0")
        if len(parts) != 3:
            raise FrameError("PLAIN response without its two NULs")
        return parts[1].decode("utf-8", "replace"), parts[2]
    if mechanism == "AMQPLAIN":
        # A field table without its length.
        try:
            table, _ = decode_table(len(response).to_bytes(4, "big") + response, 0)
        except CodecError as error:
            raise FrameError(f"AMQPLAIN response: {error}") from None
        login, password = table.get("LOGIN"), table.get("PASSWORD")
        if not isinstance(login, str) or not isinstance(password, str | bytes):
            raise FrameError("AMQPLAIN response without LOGIN and PASSWORD")
        return login, password.encode() if isinstance(password, str) else password
    raise CommandInvalid(f"unknown mechanism '{mechanism}'")
