"""What an exchange knows of messages that come to it and are to be delayed.

An exchange delays where its type is `x-delayed-message`, or where an argument or a policy says `x-delayed`. Who routes
a message then asks here first (publish/router.py): the answer is a destination that keeps it until it is due, or
None for one that goes its way at once. The keeping is delays/'s, which stands above the catalogue: it derives from this
class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mypy_extensions import i64, mypyc_attr

from amqpd.broker.consumer import Destination


@mypyc_attr(allow_interpreted_subclasses=True)
class DelayHook:
    """The delayed messages of one exchange."""

    def destination(self, keys: list[str], headers: Mapping[str, object], strict: bool) -> Destination | None:
        """Where a message with these headers waits; None: it is not delayed.

        keys: its routing key, then those of CC and BCC. strict: raises PreconditionFailed (406) for headers that say
        no time; else those count as none, and what is too far away as ten years.
        """
        raise NotImplementedError

    def count(self) -> i64:
        """How many messages wait, as far as is known: after a start it takes a moment. Cost: a step per bucket."""
        raise NotImplementedError

    def drop(self, done: Callable[[], None]) -> None:
        """The exchange is deleted, and what waits with it. done: called when it does not come back."""
        raise NotImplementedError
