"""A broker that notes how many logs the largest of its turns wrote to: `python wide_turns.py NOTES OPTION...`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from amqpd.__main__ import main
from amqpd.storage import storage
from amqpd.storage.group_commit import GroupCommit

NOTES: Final = Path(sys.argv.pop(1))
most = 0


class Noting(GroupCommit):
    """Notes before each write of a turn how many logs it is to be."""

    def _write_dirty(self) -> None:
        global most
        if len(self._context.dirty) > most:
            most = len(self._context.dirty)
            NOTES.write_text(f"{most}\n")
        super()._write_dirty()


storage.GroupCommit = Noting  # type: ignore[misc]
sys.exit(main())
