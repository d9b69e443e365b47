"""Interface of exchanges to delayed messages.

An exchange delays messages if its type is `x-delayed-message`, or if an argument or policy sets `x-delayed`. The
router asks the hook first (publish/router.py). broker/delayed implements it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mypy_extensions import i64, mypyc_attr

from amqpd.broker.consumer import Destination


@mypyc_attr(allow_interpreted_subclasses=True)
class DelayHook:
    """The delayed messages of one exchange."""

    def destination(self, keys: list[str], headers: Mapping[str, object], strict: bool) -> Destination | None:
        """Return the destination that holds the message until it is due, or None if it is not delayed.

        Args:
            keys: the routing key, then those of CC and BCC.
            strict: raise PreconditionFailed (406) for an invalid delay. Otherwise an invalid delay is none, and a
                delay above ten years is ten years.
        """
        raise NotImplementedError

    def count(self) -> i64:
        """Return how many messages wait, as far as known: after a start it takes a moment. Cost: a step per bucket."""
        raise NotImplementedError

    def drop(self, done: Callable[[], None]) -> None:
        """Drop the waiting messages, because the exchange is deleted. `done` is called when this is durable."""
        raise NotImplementedError
