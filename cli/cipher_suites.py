"""TLS as listeners speak it: versions, and cipher suites in three forms (OpenSSL's names, Erlang's tuples and maps)."""

from __future__ import annotations

from typing import Any, Final

from amqpd.cli.command import Command, Context
from amqpd.cli.errors import DATA, UsageError

GROUP: Final = "Monitoring, observability and health checks"
FORMS: Final = {"openssl": "OpenSSL", "erlang": "Erlang term", "map": "map"}
_KEYS: Final = ("cipher", "key_exchange", "mac", "prf")


def tls_versions(context: Context) -> None:
    context.say("Listing all TLS versions supported by the broker...")
    found = context.client.get("/api/amqpd/tls")["versions"]
    context.answer({"versions": found}, "\n".join(found))


def cipher_suites(context: Context) -> None:
    """rabbit: openssl is the default; its JSON is lists of numbers, here texts and objects."""
    given = context.line.given
    form = given.get("format", "openssl").lower()
    if "openssl-format" in given:
        form = "openssl"
    if form not in FORMS:
        raise UsageError(f"Bad argument: Format must be one of: {', '.join(FORMS)}", DATA)
    context.say(f"Listing available cipher suites in {FORMS[form]} format")
    found: list[dict[str, Any]] = context.client.get("/api/amqpd/tls")["all_suites" if "all" in given else "suites"]
    if form == "openssl":
        names = [each["name"] for each in found]
        context.answer(names, "\n".join(names))
    elif form == "map":
        lines = [f"#{{{','.join(f'{key} => {each[key]}' for key in _KEYS)}}}" for each in found]
        context.answer([{key: each[key] for key in _KEYS} for each in found], "[\n" + "\n,".join(lines) + "\n]")
    else:
        tuples = [[each[key] for key in ("key_exchange", "cipher", "mac", "prf")] for each in found]
        lines = [f"{{{','.join(each)}}}" for each in tuples]
        context.answer(tuples, "[\n" + "\n,".join(lines) + "\n]")


COMMANDS: Final = (
    Command(
        "cipher_suites",
        GROUP,
        "Lists the cipher suites that TLS listeners offer, or all that the library has",
        cipher_suites,
        "[--format <openssl | erlang | map>] [--all] [--timeout <timeout>]",
        options=("format", "all", "openssl-format"),
        examples=(
            ("cipher_suites", "OpenSSL's names, in the order they are preferred"),
            ("cipher_suites --format map --all", "as RabbitMQ's configuration may have them"),
        ),
        needs_app=False,
    ),
    Command(
        "tls_versions",
        GROUP,
        "Lists the TLS versions that listeners can speak",
        tls_versions,
        "[--timeout <timeout>]",
        examples=(("tls_versions", "TLS 1.2 and 1.3"),),
        needs_app=False,
    ),
)
