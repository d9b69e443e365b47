"""The command line: general options, the command, its own options and operands, in any order.

rabbitmqctl accepts every option before and after the command (`-q list_queues -p shop name`). The command's name is
known only when all options are read, so the options of all commands are in one table. getopt reads them: it accepts
options anywhere, and the error texts stay ours, which are rabbitmqctl's. `--` ends the options, for a password that
begins with a dash. Import, measured: getopt and argparse 10 ms, click 33 ms.
"""

from __future__ import annotations

import getopt
import os
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from amqpd.cli.errors import UsageError

FORMATTERS: Final = ("table", "pretty_table", "json", "json_stream", "csv", "erlang")
DATA_DIR: Final = "./amqpd-data"
LOCAL_URI: Final = "http://guest:guest@127.0.0.1:15672"
TIMEOUT_S: Final = 60


class Option(NamedTuple):
    """One option. `value` is its argument in help texts, empty for a flag."""

    long: str
    short: str
    value: str
    text: str


GENERAL: Final = (
    Option("help", "?", "", "show help: of the command, or of amqpctl"),
    Option("node", "n", "<node>", "accepted for rabbitmqctl's sake, and named in messages; it chooses no broker"),
    Option("longnames", "l", "", "show the host's full name in messages"),
    Option("timeout", "t", "<seconds>", f"give up when the broker is silent for so long (default {TIMEOUT_S})"),
    Option("quiet", "q", "", "no informational messages"),
    Option("silent", "s", "", "no informational messages and no table header row"),
    Option("vhost", "p", "<vhost>", "virtual host, for commands that work in one (default /)"),
    Option("formatter", "", "<name>", f"how a list is written: {', '.join(FORMATTERS)}"),
    Option("dry-run", "", "", "do nothing: is the command right, and the broker there? of messages: how many?"),
    Option("print-stacktrace", "", "", "accepted for rabbitmqctl's sake"),
    Option("data-dir", "", "<dir>", f"data directory of the broker (AMQPD_DATA_DIR; default {DATA_DIR})"),
    Option("uri", "", "<uri>", "talk HTTP(S) to http://USER:PASSWORD@HOST:15672, https://...:15671 (AMQPCTL_URI)"),
    Option("tls-ca-cert-file", "", "<file>", "https: whose certificates are believed (AMQPCTL_TLS_CA_CERT_FILE)"),
    Option("tls-cert-file", "", "<file>", "https: the certificate to show, a login maybe (AMQPCTL_TLS_CERT_FILE)"),
    Option("tls-key-file", "", "<file>", "https: its private key, if elsewhere (AMQPCTL_TLS_KEY_FILE)"),
    Option("insecure", "", "", "https: believe any certificate. A last resort: anybody can be the broker then"),
)
SPECIFIC: Final = (
    Option("no-table-headers", "", "", "no header row in a table"),
    Option("description", "", "<text>", "description of the virtual host"),
    Option("tags", "", "<tag1>,<tag2>", "tags of the virtual host, separated by commas"),
    Option("default-queue-type", "", "<classic|quorum|stream>", "queue type where a client names none"),
    Option("online", "", "", "only queues whose node is up: on a single node, all"),
    Option("offline", "", "", "only queues whose node is down: on a single node, none"),
    Option("local", "", "", "only queues of the node asked: on a single node, all"),
    Option("if-empty", "e", "", "delete the queue only if it has no ready messages"),
    Option("if-unused", "u", "", "delete the queue only if it has no consumers"),
    Option("global", "", "", "of every virtual host, or every user"),
    Option("user", "", "<username>", "whose limits (default guest)"),
    Option("limit", "", "<number>", "at most so many: connections, messages (0: all)"),
    Option("exchange", "", "<exchange>", "only what waits for this exchange"),
    Option("grace", "", "<seconds>", "how long clients may go by themselves"),
    Option("per-connection-delay", "", "<milliseconds>", "pause after each connection"),
    Option("idempotent", "", "", "succeed if the broker is not running"),
    Option("unit", "", "<unit>", "of sizes bytes, mb or gb (default); of time days, weeks (default), months or years"),
    Option("queue", "", "<queue>", "export this durable queue of the vhost; without it all of --vhost"),
    Option("to", "", "<where>", "export to a directory, or to a database by its SQLAlchemy URL"),
    Option("format", "", "<name>", "of definitions json; of messages parquet (default), json, csv or delta"),
    Option("checkpoint", "", "<dir>", "what remembers how far an export has come (default: <directory>.checkpoint)"),
    Option("from", "", "<where>", "where the first run begins: earliest (default), an offset, a time (ISO 8601, UTC)"),
    Option("to-offset", "", "<offset>", "of an export: the first that is left out; of a rewind: back to this one"),
    Option("partition-by", "", "<names>", "directories by date, hour or columns, separated by commas"),
    Option("where", "", "<SQL>", "only what this is true of: an export's columns, else headers, p.message-id, ..."),
    Option("columns", "", "<names>", "columns to export, separated by commas; docs/export.md lists them"),
    Option("table", "", "<name>", "table of a database (default amqp_messages)"),
    Option("name", "", "<name>", "what x-export calls this export (default export)"),
    Option("batch", "", "<number>", "offsets of one batch (default 1000000; 100000 for delta and databases)"),
    Option("follow", "", "", "go on with what comes, until stopped"),
    Option("allow-data-loss", "", "", "go on where messages are gone or damaged, instead of ending with 65"),
    Option("master", "", "<url>", "Spark's master (default local[*])"),
    Option("memory", "", "<size>", "memory of Spark's driver, with a local master of all of it (default 1g)"),
    Option("max-bytes", "", "<bytes>", "keep at most so much; over it the oldest goes unexported"),
    Option("deep", "", "", "records too, with their properties decoded"),
    Option("offsets", "", "<first>-<last>", "only batches and entries with these offsets; either may be left out"),
    Option("priority", "", "<priority>", "of two policies that match the one with the higher number holds (default 0)"),
    Option(
        "apply-to",
        "",
        "<queues|classic_queues|quorum_queues|streams|exchanges|all>",
        "what a policy is for (default all)",
    ),
    Option("to-queue", "", "<queue>", "where the messages go: a queue of the same vhost"),
    Option("to-exchange", "", "<exchange>", "where the messages go: an exchange of the same vhost"),
    Option("routing-key", "", "<key>", "with --to-exchange: under this routing key (default: their own)"),
    Option("to-time", "", "<time>", "back to then: ISO 8601 (UTC), or ms since 1970"),
    Option("until-time", "", "<time>", "what came then or later stays"),
    Option("until-offset", "", "<offset>", "what has this offset or a higher one stays"),
    Option("from-offset", "", "<offset>", "the first offset to look at"),
    Option("from-time", "", "<time>", "from what came then on: ISO 8601 (UTC), or ms since 1970"),
    Option("correlation-id", "", "", "the id is the property correlation_id, not message_id"),
    Option("since", "", "<time>", "from what was recorded then on: ISO 8601 (UTC), or ms since 1970"),
    Option("until", "", "<time>", "up to what was recorded then"),
    Option("detach", "", "", "do not wait for the end of the job"),
    Option("skip-if-unchanged", "", "", "import nothing where all of it is there already"),
    Option("skip-unsupported", "", "", "leave out what cannot be kept, and say so"),
    Option("pid", "P", "<pid>", "the process that has to run meanwhile"),
    Option("all", "", "", "all of them, not only those in use"),
    Option("within", "", "<number>", "so many of --unit (default 4)"),
    Option("number", "N", "<number>", "how many lines (default 50)"),
    Option("duration", "", "<seconds>", "for how long (default: until interrupted)"),
    Option("by-source", "", "", "by address, user and protocol"),
    Option("queue-timeout", "", "<milliseconds>", "how long each queue may take (default 15000)"),
    Option("address-family", "", "<ipv4|ipv6|any>", "which addresses (default ipv4)"),
    Option("object-type", "", "<queues|exchanges>", "what the name is of (default queues)"),
    Option("partitions", "", "<number>", "how many streams (default 3)"),
    Option("routing-keys", "", "<key1>,<key2>", "a stream for each of these routing keys, instead of --partitions"),
    Option("max-length-bytes", "", "<size>", "what each stream keeps at most: bytes, or with a unit: kb, mb, gb, tb"),
    Option("max-age", "", "<period>", "how long each stream keeps messages, as ISO 8601 has it: P7D, PT2H"),
    Option("stream-max-segment-size-bytes", "", "<size>", "size of a stream's segments, in the same units"),
    Option("leader-locator", "", "<name>", "client-local, random or least-leaders: on a single node all the same"),
    Option("initial-cluster-size", "", "<number>", "copies of each stream: on a single node one"),
    Option("membership", "", "<voter|non_voter>", "what a new member may do"),
    Option("vhost-pattern", "", "<pattern>", "only vhosts whose names match"),
    Option("queue-pattern", "", "<pattern>", "only queues whose names match"),
    Option("only-down", "", "", "only links that do not run"),
    Option("errors-only", "", "", "show only what went wrong"),
    Option("openssl-format", "", "", "the same as --format openssl"),
    Option("cipher", "", "<cipher>", "of list_ciphers (default aes_128_cbc)"),
    Option("hash", "", "<hash>", "what makes the key of the passphrase (default sha256)"),
    Option("iterations", "", "<number>", "how often it does (default 1)"),
    Option("pattern", "", "<pattern>", "only events whose names match this regular expression"),
    Option("sample-interval", "i", "<seconds>", "for how long (default 5)"),
    Option("stream", "", "<stream>", "name of a stream"),
    Option("reference", "", "<reference>", "name of a group"),
    Option("offset", "", "", "only what consumers have stored"),
    Option("writer", "", "", "only what publishers have stored"),
    Option("list-commands", "", "", "the names and summaries of all commands, nothing else"),
)
PLUGINS: Final = (
    Option("verbose", "v", "", "with version, dependencies and description"),
    Option("minimal", "m", "", "names and nothing else"),
    Option("enabled", "E", "", "only those that are enabled explicitly"),
    Option("implicitly-enabled", "e", "", "only those that are enabled, explicitly or because another needs them"),
    Option("online", "", "", "ask the broker: it has to run"),
    Option("offline", "", "", "ask no broker"),
    Option("all", "", "", "all of them"),
)
"""Options of rabbitmq-plugins only: other tools use the same letters for other options."""
BY_LONG: Final = {option.long: option for option in (*PLUGINS, *GENERAL, *SPECIFIC)}
BY_SHORT: Final = {option.short: option for option in (*GENERAL, *SPECIFIC) if option.short}
_GENERAL_NAMES: Final = frozenset(option.long for option in GENERAL)


class CommandLine(NamedTuple):
    """A parsed command line.

    Attributes:
        given: long name of each option -> its value; a flag's value is empty
        wrong: unknown options and bad values, as `name : value`; reported after an unknown command
    """

    command: str
    operands: list[str]
    given: dict[str, str]
    wrong: list[str]

    @property
    def quiet(self) -> bool:
        return "quiet" in self.given or "silent" in self.given

    @property
    def headers(self) -> bool:
        return "silent" not in self.given and "no-table-headers" not in self.given

    @property
    def formatter(self) -> str:
        """Return the formatter's name; json_stream counts as JSON, see `stream`."""
        name = self.given.get("formatter", "table")
        return "json" if name == "json_stream" else name

    @property
    def stream(self) -> bool:
        """Return whether to write JSON rows one per line, without an array around them."""
        return self.given.get("formatter") == "json_stream"

    @property
    def vhost(self) -> str:
        return self.given.get("vhost", "/")

    @property
    def timeout_s(self) -> int | None:
        """Return --timeout in seconds; None if it is not given or no number (see `wrong`)."""
        text = self.given.get("timeout", "")
        return int(text) if _is_number(text) else None

    def number(self, option: str) -> int:
        """Return an option as a whole number of at least 0; 0 if it is not given. Raises: UsageError."""
        text = self.given.get(option, "0")
        if not _is_number(text):
            raise UsageError(f"Invalid options for this command:\n--{option} : {text}")
        return int(text)


def parse(arguments: Sequence[str], specific: Sequence[Option] = SPECIFIC) -> CommandLine:
    """Parse the words after `amqpctl`.

    A wrong option goes to `wrong` and raises nothing here: an unknown command is reported first.

    Args:
        specific: the options besides the general ones

    Raises:
        UsageError: the arguments are not UTF-8
    """
    try:
        "".join(arguments).encode()
    except UnicodeEncodeError:
        raise UsageError("arguments must be UTF-8 text.") from None
    known = (*GENERAL, *specific)
    short = "".join(option.short + (":" if option.value else "") for option in known if option.short) + "h"
    long = [option.long + ("=" if option.value else "") for option in known] + ["version"]
    try:
        pairs, operands = getopt.gnu_getopt(list(arguments), short, long)
    except getopt.GetoptError as error:
        name = f"--{error.opt}" if len(error.opt) > 1 else f"-{error.opt}"
        return CommandLine(_first_word(arguments), [], _asks_for_help(arguments), [f"{name} : "])
    given: dict[str, str] = {}
    for name, value in pairs:
        given[_long_name(name, known)] = value
    wrong = []
    if "timeout" in given and not _is_number(given["timeout"]):
        wrong.append(f"-t : {given['timeout']}")
    if given.get("formatter", "table") not in FORMATTERS:
        wrong.append(f"--formatter : {given['formatter']} (known: {', '.join(FORMATTERS)})")
    if "uri" in given and "data-dir" in given:
        wrong.append("--uri : a broker is reached through --uri or --data-dir, not through both")
    return CommandLine(operands[0] if operands else "", operands[1:], given, wrong)


def check_options(line: CommandLine, takes: Sequence[str]) -> None:
    """Refuse unknown options, and options that are not in `takes` (long names). Raises: UsageError."""
    wrong = line.wrong + [
        f"--{name} : {value}" for name, value in line.given.items() if name not in takes and name not in _GENERAL_NAMES
    ]
    # rabbit: the option about headers is for tables only
    if not wrong and "no-table-headers" in line.given and line.formatter != "table":
        wrong.append("--no-table-headers : ")
    if wrong:
        raise UsageError("\n".join(["Invalid options for this command:", *wrong]))


def where(line: CommandLine, environment: Mapping[str, str]) -> tuple[str, str]:
    """Return (URI, data directory), one of them empty. The command line comes before the environment, a URI first."""
    if uri := line.given.get("uri"):
        return uri, ""
    if directory := line.given.get("data-dir"):
        return "", directory
    if uri := environment.get("AMQPCTL_URI"):
        return uri, ""
    return "", environment.get("AMQPD_DATA_DIR") or DATA_DIR


def otherwise(line: CommandLine, environment: Mapping[str, str]) -> str:
    """Return the URI to try if no broker is named and there is no ./amqpd-data; else an empty text.

    Scripts for RabbitMQ's tools name no address on the broker's machine.
    """
    named = "uri" in line.given or "data-dir" in line.given
    named = named or bool(environment.get("AMQPCTL_URI") or environment.get("AMQPD_DATA_DIR"))
    return "" if named or os.path.isdir(DATA_DIR) else LOCAL_URI  # noqa: PTH112 - pathlib is 3 ms of start-up


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 20


def _long_name(name: str, known: Sequence[Option]) -> str:
    if name.startswith("--"):
        return name[2:]
    return "help" if name == "-h" else next(option.long for option in known if option.short == name[1:])


def _asks_for_help(arguments: Sequence[str]) -> dict[str, str]:
    return {"help": ""} if {"--help", "-?", "-h"} & set(arguments) else {}


def _first_word(arguments: Sequence[str]) -> str:
    """Return the command of a line that getopt refused: the first word that is neither an option nor its value."""
    value_of_an_option = False
    for word in arguments:
        if value_of_an_option:
            value_of_an_option = False
        elif not word.startswith("-"):
            return word
        else:
            option = BY_LONG.get(word[2:]) if word.startswith("--") else BY_SHORT.get(word[1:])
            value_of_an_option = option is not None and bool(option.value)
    return ""
