"""The process's descriptors: sockets, logs and the metadata share them."""

from __future__ import annotations

import logging
import resource
from typing import Final

log = logging.getLogger(__name__)

# What stands for no limit.
UNLIMITED: Final = 1 << 30
BACKLOG_MAX: Final = 1024
BACKLOG_SHARE: Final = 8


def raise_limit() -> int:
    """The soft limit becomes the hard one, which is what the administrator grants. Returns it. Raises: nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:  # an unlimited hard limit, say, that the kernel bounds all the same
            log.warning("the limit of %d open files stays, it cannot be raised to %d: %s", soft, hard, error)
    return limit()


def limit() -> int:
    """How many there may be. Cost: a system call."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft


def backlog() -> int:
    """Connections that may wait to be accepted: the loop takes all of them at once, before anything can be closed."""
    return min(BACKLOG_MAX, limit() // BACKLOG_SHARE)
