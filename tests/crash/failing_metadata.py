"""An amqpd whose metadata cannot be written while the file `metadata-fails` exists beside its data directory.

Run as a script with amqpd's options: `python -P failing_metadata.py FILE --data-dir ...`. The error is SQLite's error
of a full disk, raised in the same thread as SQLite would raise it.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterable
from pathlib import Path

from amqpd.__main__ import main
from amqpd.storage.metadata.rows import Change
from amqpd.storage.metadata.sqlite import SqliteTables

_write = SqliteTables.write
_switch = Path(sys.argv.pop(1))


def write_or_fail(self: SqliteTables, changes: Iterable[Change]) -> None:
    if _switch.exists():
        raise sqlite3.OperationalError("database or disk is full")
    _write(self, changes)


if __name__ == "__main__":
    SqliteTables.write = write_or_fail  # type: ignore[method-assign]
    sys.exit(main())
