"""Name and location of the broker's own queue, the audit log `amq.audit`.

The queue is in no vhost table and in no metadata. Clients with permission read it by name in one vhost. So lists,
exports, limits and deletions do not include it, and it outlives the vhost. Its log is the directory `audit` beside
`vhosts`; versions without an audit log ignore it.
"""

from __future__ import annotations

from typing import Final

AUDIT: Final = "amq.audit"
AUDIT_DIRECTORY: Final = "audit"
AUDIT_QUEUE_ID: Final = "0" * 31 + "1"
"""Used for exports and stored offsets; no random id is equal to it."""
