"""Looks for files that settings name. Where this user may not look at all is a line for him, and no traceback."""

from __future__ import annotations

from collections.abc import Callable


def there(look: Callable[[], bool], unknown: bool) -> bool:
    """look: `path.exists` or the like. unknown: the answer where it may not be known, `/etc/ssl/private/a.pem`."""
    try:
        return look()
    except OSError:
        return unknown


def problem(look: Callable[[], bool], missing: str) -> str:
    """missing: what is said of a file that is not there. Empty: it is."""
    try:
        return "" if look() else missing
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
