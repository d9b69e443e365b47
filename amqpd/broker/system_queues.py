"""The broker's own queue: its name, and where it lies.

`amq.audit` is in no table of a vhost and in no metadata: it is found by its name, in one vhost, and whoever may reads
it there. So nothing that lists, exports, limits, deletes or recreates what clients have declared meets it, and it
outlives the vhost.

Its log is the directory `audit` beside `vhosts`. A version that knows nothing of it leaves it alone.
"""

from __future__ import annotations

from typing import Final

AUDIT: Final = "amq.audit"
AUDIT_DIRECTORY: Final = "audit"
AUDIT_QUEUE_ID: Final = "0" * 31 + "1"
"""What exports and stored offsets know it by; no random id is like it."""
