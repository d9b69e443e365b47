"""One setting: what the tree says of it, and how a field of the tree says it.

A module of its own, as `tree` is long and has nothing but the settings.
"""

from __future__ import annotations

from dataclasses import field
from typing import NamedTuple, TypeVar

from amqpd.config.types import ValueType

T = TypeVar("T")


class Setting(NamedTuple):
    """One setting, as the tree describes it.

    environ_also: a foreign variable that is honoured too, or empty. reloaded: a running broker takes it over when the
    settings are read again; else it needs a restart.
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
        """Its name in the environment."""
        return "AMQPD_" + self.name.replace(".", "__").upper()

    @property
    def option(self) -> str:
        """Its name on the command line."""
        return "--" + self.name.replace("_", "-")


def setting(
    default: T, kind: ValueType, doc: str, *, secret: bool = False, environ_also: str = "", reloaded: bool = False
) -> T:
    """Return a field of the tree, which `tree.rows` reads back. secret: it is shown by nothing."""
    metadata = {"kind": kind, "doc": doc, "secret": secret, "environ_also": environ_also, "reloaded": reloaded}
    return field(default=default, repr=not secret, metadata=metadata)
