"""Description of one setting, and the dataclass field that carries it.

A module of its own, because `schema` is long and has only the settings.
"""

from __future__ import annotations

from dataclasses import field
from typing import NamedTuple, TypeVar

from amqpd.config.types import ValueType

T = TypeVar("T")


class Setting(NamedTuple):
    """Description of one setting.

    Attributes:
        environ_also: RabbitMQ's variable that sets it too, or empty
        reloaded: a reload applies a change; else a restart is needed
    """

    name: str
    default: object
    kind: ValueType
    doc: str
    secret: bool
    environ_also: str
    reloaded: bool

    @property
    def variable(self) -> str:
        return "AMQPD_" + self.name.replace(".", "__").upper()

    @property
    def option(self) -> str:
        return "--" + self.name.replace("_", "-")


def setting(
    default: T, kind: ValueType, doc: str, *, secret: bool = False, environ_also: str = "", reloaded: bool = False
) -> T:
    """Return a dataclass field with a description, for `schema.rows`. A `secret` is never shown."""
    metadata = {"kind": kind, "doc": doc, "secret": secret, "environ_also": environ_also, "reloaded": reloaded}
    return field(default=default, repr=not secret, metadata=metadata)
