"""Methods of the classes confirm, RabbitMQ's extension, and tx: what a channel is put into once."""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

CONFIRM_SELECT: Final = 0x0055000A
CONFIRM_SELECT_OK: Final = 0x0055000B
TX_SELECT: Final = 0x005A000A
TX_SELECT_OK: Final = 0x005A000B
TX_COMMIT: Final = 0x005A0014
TX_COMMIT_OK: Final = 0x005A0015
TX_ROLLBACK: Final = 0x005A001E
TX_ROLLBACK_OK: Final = 0x005A001F


class ConfirmSelect(NamedTuple):
    no_wait: bool = False


class ConfirmSelectOk(NamedTuple):
    """No arguments."""


class TxSelect(NamedTuple):
    """No arguments."""


class TxSelectOk(NamedTuple):
    """No arguments."""


class TxCommit(NamedTuple):
    """No arguments."""


class TxCommitOk(NamedTuple):
    """No arguments."""


class TxRollback(NamedTuple):
    """No arguments."""


class TxRollbackOk(NamedTuple):
    """No arguments."""


# fmt: off
ModeCommand: TypeAlias = (
    ConfirmSelect | ConfirmSelectOk | TxSelect | TxSelectOk | TxCommit | TxCommitOk | TxRollback | TxRollbackOk
)
# fmt: on

# Number, name, class, plan of arguments.
MODE_METHODS: Final[tuple[tuple[int, str, type[ModeCommand], str], ...]] = (
    (CONFIRM_SELECT, "confirm.select", ConfirmSelect, "b"),
    (CONFIRM_SELECT_OK, "confirm.select-ok", ConfirmSelectOk, ""),
    (TX_SELECT, "tx.select", TxSelect, ""),
    (TX_SELECT_OK, "tx.select-ok", TxSelectOk, ""),
    (TX_COMMIT, "tx.commit", TxCommit, ""),
    (TX_COMMIT_OK, "tx.commit-ok", TxCommitOk, ""),
    (TX_ROLLBACK, "tx.rollback", TxRollback, ""),
    (TX_ROLLBACK_OK, "tx.rollback-ok", TxRollbackOk, ""),
)
