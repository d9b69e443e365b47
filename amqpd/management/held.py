"""Why a connection is not read, in words: the reasons of its read gate, `amqpd.connection.read_pause`."""

from __future__ import annotations

from typing import Final

from amqpd.connection.read_pause import ALARM, BACKLOG, BODIES, OUTPUT, PACED, SHARING, SYNC

HELD_BY: Final = {
    ALARM: "alarm",
    SYNC: "sync",
    BACKLOG: "backlog",
    OUTPUT: "output",
    SHARING: "sharing",
    PACED: "paced",
    BODIES: "bodies",
}


def held_by(reasons: int) -> list[str]:
    """The words of a gate's reasons; empty where it is read."""
    return [word for reason, word in HELD_BY.items() if reasons & reason]
