"""A broker that notes how many logs the largest of its turns wrote to: `python wide_turns.py NOTES OPTION...`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from amqpd.__main__ import main
from amqpd.storage.storage import Storage

NOTES: Final = Path(sys.argv.pop(1))
write_dirty = Storage._write_dirty
most = 0


def noted(self: Storage) -> None:
    global most
    if len(self.context.dirty) > most:
        most = len(self.context.dirty)
        NOTES.write_text(f"{most}\n")
    write_dirty(self)


Storage._write_dirty = noted  # type: ignore[method-assign]
sys.exit(main())
