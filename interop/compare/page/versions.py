"""Differences of RabbitMQ 3.10.8 and 4.x, and which of them amqpd follows.

3.10.8 is compared answer by answer. Statements about 4.x are from its documentation and release notes, 4.0 to 4.3.
amqpd accepts everything that 4.x accepts, so a client of 4.x works.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from interop.compare.page.markdown import Section, table


class Matter(NamedTuple):
    """follows: `3.10.8`, `4.x`, or the setting that chooses."""

    about: str
    old: str
    new: str
    follows: str


MATTERS: Final = (
    Matter("`x-queue-leader-locator` on a classic queue", "406", "taken (4.0)", "4.x"),
    Matter("`x-quorum-target-group-size`, policy key `target-group-size`", "the key is refused", "taken (3.13)", "4.x"),
    Matter(
        "`x-consumer-disconnected-timeout`, policy key `consumer-disconnected-timeout`",
        "the key is refused",
        "taken (4.3)",
        "4.x",
    ),
    Matter("policy key `filter-field-names`", "refused", "taken (4.x)", "4.x"),
    Matter("policy key `consumer-timeout`, `x-consumer-timeout`", "refused, without meaning", "obeyed (3.12)", "4.x"),
    Matter("`overflow`, `queue-version` in operator policies", "refused", "taken (3.12)", "4.x"),
    Matter("`x-delayed-retry-*` and their policy keys", "without meaning, refused", "obeyed (4.3)", "4.x"),
    Matter("`x-delivery-limit: -1`, also by policy", "refused by policy", "no limit (4.0)", "4.x"),
    Matter("delivery limit of a quorum queue that sets none", "none", "20 (4.0)", "3.10.8"),
    Matter("`basic.nack` counts towards the delivery limit", "yes", "no (4.3)", "3.10.8"),
    Matter("`x-queue-mode`, `x-queue-version: 1`", "taken", "refused (4.3)", "3.10.8"),
    Matter("`ha-*` policies (mirrored queues)", "obeyed", "refused or ignored (4.0)", "taken and ignored"),
    Matter("queues that are neither durable nor exclusive", "taken", "refused unless permitted (4.3)", "3.10.8"),
    Matter("`PUT /api/queues/V/Q` without `durable`", "transient", "refused unless permitted (4.3)", "a durable queue"),
    Matter("`PUT /api/exchanges/V/X` without `durable`", "transient", "transient", "a durable exchange"),
    Matter("`basic.qos` with `global`", "taken", "refused unless permitted (4.3)", "3.10.8"),
    Matter("an unknown exchange type", "503, the connection is closed", "406, the channel is closed", "3.10.8"),
    Matter("a consumer timeout", "closes the channel", "cancels it (4.3)", "`consumer_timeout_response`"),
    Matter("`x-death` that a publisher sends", "is counted on", "is not looked at (4.0)", "3.10.8"),
    Matter("the largest message, by default", "128 MiB", "16 MiB (4.0)", "3.10.8"),
    Matter("the smallest `frame_max` that a client may ask for", "4,096", "8,192 (4.1)", "3.10.8"),
    Matter("`x-single-active-consumer` on a stream", "406", "taken (3.11)", "4.x"),
    Matter("exchange types `x-local-random`, `x-modulus-hash`", "none, a plugin's", "built in (4.0, 4.3)", "4.x"),
    Matter("`apply-to` of a policy: `classic_queues`, `quorum_queues`, `streams`", "refused", "taken (3.12)", "4.x"),
    Matter("the version that the broker calls itself", "3.10.8", "4.x", "the setting `compat`"),
)


def section() -> Section:
    text = (
        "amqpd is compared with 3.10.8. What a client of 4.0 to 4.3 may ask for is taken here, and obeyed where it "
        "has a meaning on one node. Where 4.x refuses what 3.10.8 takes, amqpd takes it.\n\n"
    )
    text += table(("matter", "3.10.8", "4.x", "amqpd follows"), MATTERS)
    row = (
        "RabbitMQ 4: [which of the two is followed](#rabbitmq-3108-or-4x)",
        f"{len(MATTERS)} matters",
        f"{sum(each.follows == '3.10.8' for each in MATTERS)} as 3.10.8",
        "none",
    )
    return Section("RabbitMQ 3.10.8 or 4.x", row, text)
