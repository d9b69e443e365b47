"""A broker that records how many logs its largest turn wrote to: `python wide_turns.py NOTES OPTION...`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from amqpd.__main__ import main
from amqpd.storage import storage
from amqpd.storage.group_commit import GroupCommit

NOTES: Final = Path(sys.argv.pop(1))
logs_max = 0


class RecordingCommit(GroupCommit):
    """Records before each write of a turn how many logs it writes to."""

    def _write_dirty(self) -> None:
        global logs_max
        if len(self._context.dirty) > logs_max:
            logs_max = len(self._context.dirty)
            NOTES.write_text(f"{logs_max}\n")
        super()._write_dirty()


storage.GroupCommit = RecordingCommit  # type: ignore[misc]
sys.exit(main())
