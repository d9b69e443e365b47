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
    value: str
    text: str
    short: str = ""


GENERAL: Final = (
    Option("help", "", "show help of the command, or of amqpctl", "?"),
    Option("node", "<node>", "accepted as in rabbitmqctl, and shown in messages; it does not choose a broker", "n"),
    Option("longnames", "", "show the host's full name in messages", "l"),
    Option("timeout", "<seconds>", f"maximum time without an answer of the broker (default {TIMEOUT_S})", "t"),
    Option("quiet", "", "no informational messages", "q"),
    Option("silent", "", "no informational messages and no table header row", "s"),
    Option("vhost", "<vhost>", "virtual host, for commands about one (default /)", "p"),
    Option("formatter", "<name>", f"format of a list: {', '.join(FORMATTERS)}"),
    Option("dry-run", "", "change nothing: check command line and broker; for messages, count them"),
    Option("print-stacktrace", "", "accepted as in rabbitmqctl, without effect"),
    Option("data-dir", "<dir>", f"data directory of the broker (AMQPD_DATA_DIR; default {DATA_DIR})"),
    Option("uri", "<uri>", "admin API: http://USER:PASSWORD@HOST:15672 or https://...:15671 (AMQPCTL_URI)"),
    Option("tls-ca-cert-file", "<file>", "https: certificates of trusted authorities (AMQPCTL_TLS_CA_CERT_FILE)"),
    Option("tls-cert-file", "<file>", "https: client certificate, which can be a login (AMQPCTL_TLS_CERT_FILE)"),
    Option("tls-key-file", "<file>", "https: its private key, if in another file (AMQPCTL_TLS_KEY_FILE)"),
    Option("insecure", "", "https: accept any certificate. For tests only: any machine can pose as the broker"),
)
SPECIFIC: Final = (
    Option("no-table-headers", "", "no header row in a table"),
    Option("description", "<text>", "description of the virtual host"),
    Option("tags", "<tag1>,<tag2>", "tags of the virtual host, separated by commas"),
    Option("default-queue-type", "<classic|quorum|stream>", "queue type if a client names none"),
    Option("online", "", "only queues of running nodes; on a single node: all"),
    Option("offline", "", "only queues of stopped nodes; on a single node: none"),
    Option("local", "", "only queues of this node; on a single node: all"),
    Option("if-empty", "", "delete the queue only if it has no ready messages", "e"),
    Option("if-unused", "", "delete the queue only if it has no consumers", "u"),
    Option("global", "", "every virtual host, or every user"),
    Option("user", "<username>", "user whose limits are shown (default guest)"),
    Option("limit", "<number>", "maximum number of connections or messages (0: all)"),
    Option("exchange", "<exchange>", "only messages that wait for this exchange"),
    Option("grace", "<seconds>", "time for clients to disconnect"),
    Option("per-connection-delay", "<milliseconds>", "pause after each connection"),
    Option("idempotent", "", "succeed if the broker is not running"),
    Option("unit", "<unit>", "sizes: bytes, mb or gb (default); times: days, weeks (default), months or years"),
    Option("queue", "<queue>", "export this durable queue; without it, all durable queues of --vhost"),
    Option("to", "<where>", "export: directory, or URL of an object store, table or database; import: AMQP URL"),
    Option("at-least-once", "", "no headers with numbers; after a kill, up to a second of messages comes twice"),
    Option(
        "on-refused",
        "<stop|skip|save>",
        "message that the broker refuses: stop (default; a rerun sends it again), skip it, or save it to rejected.json",
    ),
    Option("format", "<name>", "for definitions json; for messages parquet (default), json, csv, delta, iceberg"),
    Option(
        "checkpoint",
        "<dir>",
        "directory with the progress (default: the path with .checkpoint or .imported); with --share also an s3:// URL",
    ),
    Option("from", "<where>", "start of the first run: earliest (default), an offset, or a time (ISO 8601, UTC)"),
    Option("to-offset", "<offset>", "export: end before this offset; rewind: go back to it; groups: continue there"),
    Option("partition-by", "<names>", "directories by date, hour or columns; names separated by commas"),
    Option("where", "<SQL>", "condition on messages: columns of an export; else headers, p.message-id, ..."),
    Option("columns", "<names>", "columns to export, separated by commas; docs/export.md lists them"),
    Option("table", "<name>", "table of a database (default amqp_messages) or of Iceberg (default amqp.messages)"),
    Option("name", "<name>", "name of the export, as in x-export (default export)"),
    Option("batch", "<number>", "number of offsets in a batch (default 1000000; 100000 for databases)"),
    Option("file-size", "<MB>", "size of merged files in MB (default 128)"),
    Option("share", "", "work at one export with other processes, also on other machines, which have this option too"),
    Option("take-over-after", "<seconds>", "with --share: others take over its batch if it is silent (default 30)"),
    Option("compress", "", "with --uri: the broker compresses messages for the network, by zstd"),
    Option("follow", "", "continue with new messages or records, until Ctrl-C"),
    Option("allow-data-loss", "", "continue if messages are missing or damaged, instead of exit code 65"),
    Option("payload", "<format>", "json, avro or protobuf: a column payload with the fields of the bodies"),
    Option("payload-schema", "<file>", "schema of the payload: JSON Schema, Avro, .proto (default: inferred)"),
    Option("payload-message", "<name>", "full name of the Protobuf message, if the schema has several"),
    Option("schema-registry", "<url>", "schema registry of bodies that begin with a schema's id (Avro, Protobuf)"),
    Option(
        "schema-registry-password-file",
        "<file>",
        "password of the user in --schema-registry (or AMQPCTL_SCHEMA_REGISTRY_PASSWORD has it)",
    ),
    Option("min-batch-bytes", "<bytes>", "with --follow: wait for so many bytes of log (default 134217728)"),
    Option("max-batch-age", "<seconds>", "with --follow: wait at most so long (default 60; 0 does not wait)"),
    Option("include-settled", "", "also acknowledged messages, as long as the log has them"),
    Option("engine", "<name>", "pyarrow (default: no Java) or spark (default with --where, --master or --memory)"),
    Option("master", "<url>", "URL of Spark's master (default local[*])"),
    Option("memory", "<size>", "memory of Spark's driver; with a local master, of all of Spark (default 1g)"),
    Option("max-bytes", "<bytes>", "maximum to keep; the oldest messages are then deleted unexported"),
    Option("deep", "", "also show records, with decoded properties"),
    Option("offsets", "<first>-<last>", "only batches and entries with these offsets; one number may be missing"),
    Option("priority", "<priority>", "the matching policy with the highest priority applies (default 0)"),
    Option(
        "apply-to", "<queues|classic_queues|quorum_queues|streams|exchanges|all>", "objects of the policy (default all)"
    ),
    Option("to-queue", "<queue>", "target: a queue of the same vhost"),
    Option("to-exchange", "<exchange>", "target: an exchange of the same vhost"),
    Option("routing-key", "<key>", "routing key of all messages (default: their own)"),
    Option("to-time", "<time>", "time to go back to: ISO 8601 (UTC), or ms since 1970"),
    Option("until-time", "<time>", "end before this time"),
    Option("until-offset", "<offset>", "end before this offset"),
    Option("from-offset", "<offset>", "begin with this offset"),
    Option("from-time", "<time>", "begin at this time of arrival: ISO 8601 (UTC), or ms since 1970"),
    Option("correlation-id", "", "the id is the property correlation_id, not message_id"),
    Option("since", "<time>", "records from this time on: ISO 8601 (UTC), or ms since 1970"),
    Option("until", "<time>", "records up to this time"),
    Option("detach", "", "do not wait for the end of the job"),
    Option("skip-if-unchanged", "", "import nothing if all objects exist already"),
    Option("skip-unsupported", "", "skip objects that amqpd does not support, and list them"),
    Option("pid", "<pid>", "ID of the broker's process", "P"),
    Option("all", "", "all, not only those in use"),
    Option("within", "<number>", "number of --unit (default 4)"),
    Option("number", "<number>", "number of lines (default 50)", "N"),
    Option("duration", "<seconds>", "time to run (default: until Ctrl-C)"),
    Option("by-source", "", "by address, user and protocol"),
    Option("queue-timeout", "<milliseconds>", "time for each queue to answer (default 15000)"),
    Option("address-family", "<ipv4|ipv6|any>", "kind of addresses (default ipv4)"),
    Option("object-type", "<queues|exchanges>", "kind of the named object (default queues)"),
    Option("partitions", "<number>", "number of streams (default 3)"),
    Option("routing-keys", "<key1>,<key2>", "one stream per routing key, instead of --partitions"),
    Option("exchange-type", "<type>", "direct (default), or x-murmur2-hash: Kafka's partition for each routing key"),
    Option("max-length-bytes", "<size>", "maximum size of each stream: bytes, or with the unit kb, mb, gb or tb"),
    Option("max-age", "<period>", "maximum age of messages in each stream, in ISO 8601: P7D, PT2H"),
    Option("stream-max-segment-size-bytes", "<size>", "size of a segment of a stream, in the same units"),
    Option("leader-locator", "<name>", "client-local, random or least-leaders; no difference on a single node"),
    Option("initial-cluster-size", "<number>", "copies of each stream; one on a single node"),
    Option("membership", "<voter|non_voter>", "role of a new member"),
    Option("vhost-pattern", "<pattern>", "only vhosts whose names match"),
    Option("queue-pattern", "<pattern>", "only queues whose names match"),
    Option("only-down", "", "only links that are down"),
    Option("errors-only", "", "show only errors"),
    Option("openssl-format", "", "the same as --format openssl"),
    Option("cipher", "<cipher>", "cipher, see list_ciphers (default aes_128_cbc)"),
    Option("hash", "<hash>", "hash for the key from the passphrase (default sha256)"),
    Option("iterations", "<number>", "number of its iterations (default 1)"),
    Option("pattern", "<pattern>", "only events whose names match this regular expression"),
    Option("sample-interval", "<seconds>", "length of the sample (default 5)", "i"),
    Option("stream", "<stream>", "name of a stream"),
    Option("reference", "<reference>", "name of a group"),
    Option("offset", "", "only offsets of consumers"),
    Option("topic", "<topic>", "topic whose offsets are set"),
    Option("partition", "<number>", "only this partition (default: all of the topic)"),
    Option("to-earliest", "", "continue with the first record"),
    Option("to-latest", "", "continue with the next record to arrive"),
    Option("to-datetime", "<time>", "continue with the first record of this time: ISO 8601 (UTC), or ms since 1970"),
    Option("shift-by", "<number>", "so many records ahead, or back if it is negative"),
    Option("writer", "", "only sequence numbers of publishers"),
    Option("list-commands", "", "only the names and summaries of all commands"),
)
PLUGINS: Final = (
    Option("verbose", "", "with version, dependencies and description", "v"),
    Option("minimal", "", "only names", "m"),
    Option("enabled", "", "only those that are enabled explicitly", "E"),
    Option("implicitly-enabled", "", "only those that are enabled, explicitly or because another needs them", "e"),
    Option("online", "", "ask the broker, which must run"),
    Option("offline", "", "do not ask the broker"),
    Option("all", "", "all plugins"),
)
"""Options of rabbitmq-plugins only: other tools use the same letters for other options."""
BY_LONG: Final = {option.long: option for option in (*PLUGINS, *GENERAL, *SPECIFIC)}
BY_SHORT: Final = {option.short: option for option in (*GENERAL, *SPECIFIC) if option.short}
GENERAL_NAMES: Final = frozenset(option.long for option in GENERAL)


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
        from difflib import get_close_matches

        name = f"--{error.opt}" if len(error.opt) > 1 else f"-{error.opt}"
        help_given = {"help": ""} if {"--help", "-?", "-h"} & set(arguments) else {}
        near = get_close_matches(name, [f"--{option.long}" for option in known], 1, 0.8)
        guess = f"did you mean {near[0]}?" if near else ""
        if near and near[0] == name:
            guess = "takes no value" if "must not have" in error.msg else "needs a value"
        elif "requires argument" in error.msg:  # a short option
            guess = "needs a value"
        return CommandLine(_first_word(arguments), [], help_given, [f"{name} : {guess}"])
    given: dict[str, str] = {}
    for name, value in pairs:
        long_name = _long_name(name, known)
        given[long_name] = value.lower() if long_name == "formatter" else value  # rabbit: in any case
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
        f"--{name} : {value}" for name, value in line.given.items() if name not in takes and name not in GENERAL_NAMES
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
