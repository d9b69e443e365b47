"""Feature flags and deprecated features: what RabbitMQ may have switched off is always on here."""

from __future__ import annotations

from typing import Any, Final

from amqpd.cli.client import quoted
from amqpd.cli.command import Command, Context
from amqpd.cli.errors import USAGE, Failure
from amqpd.cli.listings import Listing, fetch, plain, value, wanted

GROUP: Final = "Feature flags"
FLAGS: Final = Listing(
    "/api/feature-flags",
    ("name", "state"),
    plain("name", "state", "stability", "provided_by", "desc", "doc_url"),
)
DEPRECATED: Final = Listing(
    "/api/deprecated-features",
    ("name", "deprecation_phase"),
    plain("name", "deprecation_phase", "state", "desc", "doc_url", "provided_by"),
)


def list_feature_flags(context: Context) -> None:
    columns = wanted(FLAGS, context.operands)
    context.say("Listing feature flags ...")
    items = fetch(context, FLAGS, columns)
    context.show(columns, [[value(item, FLAGS, name) for name in columns] for item in items])


def enable_feature_flag(context: Context) -> None:
    name = context.operands[0]
    if name == "all":
        context.say("Enabling all feature flags ...")
        context.client.get("/api/feature-flags")
    else:
        context.say(f'Enabling feature flag "{name}" ...')
        answer = context.client.send("PUT", f"/api/feature-flags/{quoted(name)}/enable", {})
        if answer.status == 400:
            raise Failure(USAGE, f"This feature flag is not supported by node {context.node}")
        answer.checked()
    context.done()


def list_deprecated_features(context: Context) -> None:
    """rabbit: of 3.13. Nothing of amqpd is on its way out."""
    columns = wanted(DEPRECATED, context.operands)
    context.say("Listing deprecated features ...")
    context.client.get("/api/amqpd/ping")
    context.show(columns, [])


def check_deprecated_features(context: Context) -> None:
    context.say("Checking if any deprecated features are used ...")
    context.client.get("/api/amqpd/ping")
    told: dict[str, Any] = {"result": "ok"}
    context.answer(told, f"Node {context.node} reported no deprecated features in use")


COMMANDS: Final = (
    Command(
        "check_if_any_deprecated_features_are_used",
        "Monitoring, observability and health checks",
        "Fails if a deprecated feature is in use: there is none",
        check_deprecated_features,
        examples=(("check_if_any_deprecated_features_are_used", "0"),),
    ),
    Command(
        "enable_feature_flag",
        GROUP,
        "Enables a feature flag or all of them: they are",
        enable_feature_flag,
        "<all | feature_flag>",
        1,
        1,
        (("<all | feature_flag>", "a name that list_feature_flags shows; 64 for one that it does not"),),
        examples=(("enable_feature_flag all", "nothing to do"),),
    ),
    Command(
        "list_deprecated_features",
        GROUP,
        "Lists deprecated features: there are none",
        list_deprecated_features,
        "[<column> ...] [--no-table-headers] [--timeout <timeout>]",
        most=None,
        options=("no-table-headers",),
        columns=DEPRECATED.names(),
        shown=len(DEPRECATED.default),
        examples=(("list_deprecated_features name state", "an empty list"),),
    ),
    Command(
        "list_feature_flags",
        GROUP,
        "Lists feature flags, all of which are enabled",
        list_feature_flags,
        "[<column> ...] [--no-table-headers] [--timeout <timeout>]",
        most=None,
        options=("no-table-headers",),
        columns=FLAGS.names(),
        shown=len(FLAGS.default),
        examples=(("list_feature_flags name state stability", "with RabbitMQ's names"),),
    ),
)
