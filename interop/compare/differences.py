"""Intended differences of amqpd's answers, each with its reason. An unlisted difference is a bug of amqpd.

A difference turns RabbitMQ's line into the line required of amqpd. A test fails for a difference that no conversation
needs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from .stage import Answers


@dataclass(frozen=True)
class Difference:
    """conversations: a pattern of their names. theirs: a regular expression of RabbitMQ's line. ours: the replacement;
    None: the line is missing; `|` separates several lines. step: only this one, counted from 1; 0: all.
    """

    conversations: str
    theirs: str
    ours: str | None
    reason: str
    step: int = 0


FAULT: Final = re.compile(r"reply_code=541|^http 500")
"""RabbitMQ's internal errors: there amqpd may answer anything else."""

WHOLE_TERMS: Final = (
    "tables are sent as AMQP tables, where RabbitMQ sends Erlang's terms as text; numbers as the smallest type"
)

LOCATOR: Final = "a classic queue takes the argument, as of RabbitMQ 4.0, and it is ignored"

ALLOWED: Final[tuple[Difference, ...]] = (
    *[
        Difference(f"tools/{name}", r"(\S+) exits .*", rf"\1 exits {ours}", reason, step=step)
        for name, step, ours, reason in (
            ("vhosts", 3, 65, "RabbitMQ adds a vhost without a name, which no client can connect to"),
            ("vhosts", 14, 65, "RabbitMQ reports success for a vhost that does not exist"),
            ("usage", 59, 64, "RabbitMQ crashes on an unknown formatter; amqpctl says that it is unknown"),
            *(
                ("definitions", step, 0, "- is standard input, as both usages say; RabbitMQ looks for a file called -")
                for step in (5, 8)
            ),
            ("diagnostics", 11, 65, "RabbitMQ crashes on port 0"),
            ("the node", 23, 0, "rotate_logs reopens the log file; RabbitMQ's does nothing and says that it failed"),
            *(
                ("the node", step, ours, "RabbitMQ ran without the plugin; amqpd answers as with it, and nothing there")
                for step, ours in ((41, 0), (42, 0), (43, 69), (44, 69), (45, 69))
            ),
        )
    ],
    Difference(
        "tools/vhosts",
        "t1,t2",
        "[t1, t2]",
        "RabbitMQ keeps the text of --tags as it is; here it is a list, as set_vhost_tags makes one of it in both",
    ),
    Difference(
        "consume/quorum exclusive and another",
        r"b\.1 basic.consume-ok consumer_tag=d",
        "b.1 channel.close reply_code=403 reply_text=ACCESS_REFUSED - queue 'q' in vhost '{v}' in exclusive use "
        "class_id=60 method_id=20",
        "RabbitMQ's quorum queues take no notice of `exclusive`; here it means the same everywhere",
    ),
    Difference(
        "consume/quorum another and exclusive",
        r"b\.1 basic.consume-ok consumer_tag=d",
        "b.1 channel.close reply_code=403 reply_text=ACCESS_REFUSED - queue 'q' in vhost '{v}' in exclusive use "
        "class_id=60 method_id=20",
        "RabbitMQ's quorum queues take no notice of `exclusive`; here it means the same everywhere",
    ),
    Difference(
        "consume/quorum returned without a delivery limit",
        r"delivery_tag=2 (exchange= routing_key=q message_count=2 \{headers=\{x-delivery-count=l:)0\}\} 'x2'",
        r"delivery_tag=2 redelivered \g<1>1}} 'x1'",
        "a returned message is delivered again at its place; a quorum queue of RabbitMQ without a delivery limit puts "
        "it at the end",
    ),
    Difference(
        "consume/quorum single active, and get",
        r"a\.1 channel.close reply_code=405 .*",
        "a.1 basic.get-empty cluster_id=",
        "basic.get is possible for every queue with a single active consumer; RabbitMQ's quorum queues refuse it",
    ),
    *[
        Difference(
            f"streams/deleted if {condition}",
            r"a\.1 queue.delete-ok message_count=0",
            "a.1 channel.close reply_code=406 reply_text=PRECONDITION_FAILED - queue 's' in vhost '{v}' "
            f"{text} class_id=50 method_id=40",
            "RabbitMQ takes no notice of if-unused and if-empty for streams",
        )
        for condition, text in (("empty", "not empty"), ("unused", "in use"))
    ],
    Difference(
        "streams/deleted if unused",
        r"a\.1 basic.cancel consumer_tag=c nowait",
        None,
        "follows from the line above: the stream was deleted there",
    ),
    Difference(
        "access/topics of CC",
        r"b\.1 basic.ack 1",
        "b.1 channel.close reply_code=403 reply_text=ACCESS_REFUSED - access to topic 'b.x' in exchange 'amq.topic' in "
        "vhost '{v}' refused for user '{u}' class_id=60 method_id=40",
        "the keys of CC and BCC need the topic permission, too, as of RabbitMQ 4.0",
    ),
    Difference(
        "consume/quorum nowait",
        "consumer_count=1",
        "consumer_count=0",
        "a quorum queue of RabbitMQ still counts a consumer that was cancelled while it holds a message",
        step=8,
    ),
    Difference(
        "consume/quorum purge",
        "consumer_count=1",
        "consumer_count=0",
        "a quorum queue of RabbitMQ counts a channel with a message of basic.get as a consumer",
        step=5,
    ),
    *[
        Difference(
            "declare/quorum x-delivery-limit values",
            r"a\.1 queue.declare-ok queue=(\w+) message_count=0 consumer_count=0",
            r"a.1 channel.close reply_code=406 reply_text=PRECONDITION_FAILED - invalid arg 'x-delivery-limit' "
            rf"for queue '\1' in vhost '{{v}}': {why} class_id=50 method_id=10",
            "RabbitMQ accepts any value and then applies no limit; amqpd checks it like every other number",
            step=step,
        )
        for step, why in (
            (step, f'"expected integer, got {kind}"')
            for step, kind in (
                (8, "longstr"),
                (9, "longstr"),
                (10, "bool"),
                (11, "void"),
                (12, "double"),
                (13, "array"),
                (14, "table"),
            )
        )
    ],
    *[
        Difference(
            "declare/classic x-queue-leader-locator values",
            r"a\.1 channel.close .* for queue '(\w+)' in vhost '{v}' of queue type rabbit_classic_queue .*",
            r"a.1 queue.declare-ok queue=\1 message_count=0 consumer_count=0",
            LOCATOR,
            step=step,
        )
        for step in (1, 2)
    ],
    *[
        Difference(
            "declare/classic x-queue-leader-locator values",
            " of queue type rabbit_classic_queue",
            f": {why}",
            LOCATOR,
            step=step,
        )
        for step, why in enumerate(
            (
                *["{unacceptable_type,signedint}"] * 3,
                *["{unacceptable_type,long}"] * 2,
                *["invalid_queue_locator_arg"] * 2,
                *(f"{{unacceptable_type,{kind}}}" for kind in ("bool", "void", "double", "array", "table")),
            ),
            3,
        )
    ],
    *[
        Difference(
            "declare/classic x-queue-leader-locator again",
            r"a\.1 channel.close .*",
            "a.1 queue.declare-ok queue=with message_count=0 consumer_count=0",
            LOCATOR,
            step=step,
        )
        for step in (1, 2)
    ],
    *[
        Difference(
            "declare/classic x-queue-leader-locator again",
            theirs,
            "a.1 channel.close reply_code=406 reply_text=PRECONDITION_FAILED - inequivalent arg "
            rf"'x-queue-leader-locator' for queue '{name}' in vhost '{{v}}': received {what} class_id=50 method_id=10",
            LOCATOR,
            step=step,
        )
        for step, theirs, name, what in (
            (3, r"a\.1 channel.close .*", "with", "'balanced' but current is 'client-local'"),
            (
                4,
                r"a\.1 queue.declare-ok .*",
                "with",
                "none but current is the value 'client-local' of type 'longstr'",
            ),
            (
                7,
                r"a\.1 (?:queue.declare-ok|channel.close) .*",
                "without",
                "the value 'client-local' of type 'longstr' but current is none",
            ),
        )
    ],
    *[
        Difference(
            f"policies/{which}policy delivery-limit values",
            r"http 400 .*",
            "http 201",
            "-1 means no limit, as of RabbitMQ 4.0",
            step=3,
        )
        for which in ("", "operator ")
    ],
    *[
        Difference(
            f"policies/operator policy {key} values",
            r"http 400 .*" if good else rf"\[\{{<<\"{key}\">>,(.*)\}}\] are not recognised policy settings",
            "http 201" if good else rf"\1 is not a valid {key} value",
            "an operator policy may have this key, as of RabbitMQ 3.12",
            step=step,
        )
        for key, goods, bads in (("overflow", (1, 2, 3), (4, 5)), ("queue-version", (1, 2), (3, 4)))
        for step, good in [*((each, True) for each in goods), *((each, False) for each in bads)]
    ],
    Difference(
        "declare/stream x-dead-letter-exchange values",
        r"invalid type '\w+' for arg 'x-dead-letter-exchange' in queue '(\w+)' in vhost '{v}'",
        r"invalid arg 'x-dead-letter-exchange' for queue '\1' in vhost '{v}' of queue type rabbit_stream_queue",
        "streams have no dead letters; that is said first, for any value",
    ),
    Difference(
        "declare/quorum counts and ends",
        r"a\.0 connection.close reply_code=540 .*",
        "a.1 queue.delete-ok message_count=0",
        "RabbitMQ 3.10 does not support if-unused and if-empty for quorum queues and closes the connection; amqpd does",
        step=4,
    ),
    Difference(
        "declare/quorum counts and ends",
        r"a\.1 queue.declare-ok .*",
        "a.1 channel.close reply_code=404 reply_text=NOT_FOUND - no queue 'q' in vhost '{v}' class_id=50 method_id=10",
        "follows from the line above: the queue was deleted there",
        step=5,
    ),
    Difference(
        "names/exclusive to another",
        r"b\.1 queue.unbind-ok",
        "b.1 channel.close reply_code=405 reply_text=RESOURCE_LOCKED - cannot obtain exclusive access to locked queue "
        "'q' in vhost '{v}'. It could be originally declared on another connection or the exclusive property value "
        "does not match that of the original declaration. class_id=50 method_id=50",
        "RabbitMQ checks whose queue it is only if there is a binding to remove; amqpd checks always",
    ),
    *[
        Difference(
            f"routing/headers loosely {name}",
            r"a\.1 basic.ack (\d)",
            "a.1 basic.return reply_code=312 reply_text=NO_ROUTE exchange=amq.headers routing_key= "
            rf"{{headers={{a={value}}}}} 'x'|a.1 basic.ack \1",
            "a header matches only a value of the same type (an int is not a float); RabbitMQ compares the numbers",
            step=step,
        )
        for name, values in (
            ("int", ("d:1.0", "f:1.0", "T:*")),
            ("double", ("I:1", "T:*")),
            ("timestamp", ("I:1", "d:1.0")),
            ("longstr", ("x:1",)),
            ("bytes", ("S:1",)),
            ("empty array", ("{}",)),
        )
        for step, value in enumerate(values, 4)
    ],
    *[
        Difference(
            "policies/message-ttl of what is there and what comes",
            r"message_count=\d",
            f"message_count={count}",
            "a policy's message-ttl also applies to messages that are already waiting; RabbitMQ sets the time "
            "when a message arrives",
            step=step,
        )
        for step, count in ((5, 0), (7, 0), (10, 1))
    ],
    *[
        Difference(
            f"policies/{name}",
            r'"policy": "(\w)"',
            rf'"effective_policy_definition": {definition}, "operator_policy": null, "policy": "\1"',
            "exchanges show the same policy fields as queues; RabbitMQ's show only the policy's name",
            step=step,
        )
        for name, step, definition in (
            ("alternate-exchange", 11, '{"alternate-exchange": "alt"}'),
            ("apply-to", 10, '{"alternate-exchange": "a", "max-length": 3}'),
        )
    ],
    Difference(
        "policies/apply-to",
        "'queues', 'exchanges' or 'all'",
        "'queues', 'classic_queues', 'quorum_queues', 'streams', 'exchanges', or 'all'",
        "amqpd also takes the kinds of RabbitMQ 3.12 and later",
    ),
    Difference(
        "policies/policy consumer-timeout values",
        r"http 400 .*",
        "http 201",
        "a policy may set the consumer timeout, as of RabbitMQ 3.12",
    ),
    Difference(
        "policies/refused",
        r'invalid: \{"missing terminating \] for character class", ?1\}',
        "invalid: '[' is not a regular expression of RE2: missing ]: [",
        "patterns are RE2's, which takes no time that grows with what it is held against; so is what it says of them",
    ),
    Difference(
        "access/patterns refused",
        r"\['invalid_regexp'.*",
        "'[' is not a regular expression of RE2: missing ]: [",
        "patterns are RE2's, and so is what it says of them; RabbitMQ shows the text as a list of numbers",
    ),
    Difference(
        "access/patterns refused",
        r"\[\{key_missing,write\},\{key_missing,read\}\]",
        "[{key_missing,write}]",
        "only the first missing key is named",
    ),
    Difference(
        "access/patterns refused",
        "http 400 vhost_or_user_not_found",
        "http 400 vhost 'nosuch-{v}' does not exist",
        "the text names the one that does not exist",
        step=4,
    ),
    Difference(
        "access/patterns refused",
        "http 400 vhost_or_user_not_found",
        "http 400 user 'nosuch-{u}' does not exist",
        "the text names the one that does not exist",
        step=5,
    ),
    Difference(
        "access/management",
        r"Access refused\.",
        "ACCESS_REFUSED - access to queue 'new' in vhost '{v}' refused for user '{u}'",
        "the text says what was refused, as over AMQP",
    ),
    Difference(
        "access/management",
        "User not authorised to access object",
        "Not policymaker user",
        "the text says which tag is missing",
        step=6,
    ),
    Difference(
        "limits of users/values",
        r"http 400 \['no_such_user', 'nosuch-\{u\}'\]",
        "http 400 user 'nosuch-{u}' does not exist",
        "the text names the one that does not exist",
    ),
    Difference(
        "firehose/unroutable",
        r"routed_queues=\[S:nosuch\]",
        "routed_queues=[]",
        "RabbitMQ's default exchange names the queue of the routing key whether or not there is one",
    ),
    *[
        Difference(f"events/{name}", theirs, ours, WHOLE_TERMS)
        for name, theirs, ours in (
            ("queues", r'arguments=\[S:\{<<"x-max-length">>,signedint,5\}\]', "arguments={x-max-length=I:5}"),
            ("queues", r"arguments=\[\]", "arguments={}"),
            (
                "exchanges",
                r'arguments=\[S:\{<<"alternate-exchange">>,longstr,<<"a">>\}\]',
                "arguments={alternate-exchange=S:a}",
            ),
            ("bindings", r'arguments=\[S:\{<<"n">>,signedint,1\}\]', "arguments={n=I:1}"),
            ("bindings", r"arguments=\[\]", "arguments={}"),
            (
                "consumers",
                r'arguments=\[S:\{<<"x-priority">>,signedint,2\}\](.*) prefetch_count=l:3',
                r"arguments={x-priority=I:2}\1 prefetch_count=I:3",
            ),
            ("policies", r"max-length=l:2(.*) priority=l:3", r"max-length=I:2\1 priority=I:3"),
            ("limits", r"max-queues=l:5", "max-queues=I:5"),
        )
    ],
    *[
        Difference(about, theirs, "http 404 Not Found", "every 404 has this reason; `detail` names what is missing")
        for about, theirs in (
            ("*", "http 404 vhost_not_found"),
            ("exchanges/bindings of HTTP", r"http 404 no exchange 'nosuch' in vhost '\{v\}'"),
        )
    ],
    Difference(
        "publish/HTTP",
        r"\{a=l:1\}",
        "{a=I:1}",
        "a JSON number becomes the smallest AMQP integer that holds it, as most clients send it",
    ),
    Difference(
        "streams/single active",
        r"a\.1 channel.close .*",
        "a.1 queue.declare-ok queue=s message_count=0 consumer_count=0",
        "a stream may have a single active consumer, as in RabbitMQ 3.11's protocol for streams",
    ),
    Difference(
        "streams/begins at one that is far ahead",
        r"a\.1 basic.ack 6",
        "a.1 basic.ack 6|a.1 basic.deliver consumer_tag=c delivery_tag=1 exchange= routing_key=s "
        "{headers={x-stream-offset=l:5}} 'later'",
        "an offset beyond the end means the end (the stream may have been made again); RabbitMQ sends nothing "
        "until that offset exists",
    ),
    Difference(
        "streams/begins at one that is far ahead",
        r"a\.1 channel.close .*",
        None,
        "so that there is something to ack",
    ),
    Difference(
        "streams/HTTP",
        "http 400 540 basic.get",
        "http 400 basic.get",
        "the same text, without the AMQP code",
    ),
    Difference(
        "exchange types/another hash",
        r"a\.1 exchange.declare-ok",
        r"a.1 channel.close reply_code=406 reply_text=PRECONDITION_FAILED - inequivalent arg 'hash-header' "
        r"for exchange 'x' in vhost '{v}': received 'i' but current is 'h' class_id=40 method_id=10",
        "an exchange that hashes by something else is a different exchange; RabbitMQ compares only alternate-exchange",
        step=3,
    ),
    Difference(
        "exchange types/another hash",
        r"a\.1 exchange.declare-ok",
        r"a.1 channel.close reply_code=406 reply_text=PRECONDITION_FAILED - inequivalent arg 'hash-header' "
        r"for exchange 'x' in vhost '{v}': received none but current is the value 'h' of type 'longstr' "
        r"class_id=40 method_id=10",
        "as above",
        step=4,
    ),
    Difference(
        "exchange types/history of an exchange",
        r"routing_key=b message_count=1 {headers={n=I:2}} '2'",
        "routing_key=a message_count=1 {} '1'",
        "an exchange that is bound gets the history oldest first, as a queue does; RabbitMQ sends it the newest first",
        step=9,
    ),
    Difference(
        "exchange types/history of an exchange",
        r"routing_key=a message_count=0 {} '1'",
        "routing_key=b message_count=0 {headers={n=I:2}} '2'",
        "as above",
        step=10,
    ),
)

NOT_YET: Final[dict[str, str]] = {}
"""Conversations (patterns of their names) about missing features, each with the feature."""


def not_yet(name: str) -> str:
    """Return the feature that this conversation lacks, or ""."""
    return next((reason for pattern, reason in NOT_YET.items() if fnmatchcase(name, pattern)), "")


def due(
    name: str, theirs: Answers, used: set[Difference] | None = None, allowed: Sequence[Difference] = ALLOWED
) -> Answers:
    """Return the answers required of amqpd, given RabbitMQ's. used: gets the differences that were needed."""
    mine = who(name, allowed)
    found: Answers = []
    for number, lines in enumerate(theirs, 1):
        step: list[str] = []
        for line in lines:
            difference, ours = of_line(mine, number, line)
            if difference is not None and used is not None:
                used.add(difference)
            step += ours
        found.append(step)
    return found


def who(name: str, allowed: Sequence[Difference]) -> list[Difference]:
    """Return the differences that a conversation of this name may have."""
    return [each for each in allowed if fnmatchcase(name, each.conversations)]


def of_line(mine: Sequence[Difference], number: int, line: str) -> tuple[Difference | None, list[str]]:
    """Return the lines required of amqpd for RabbitMQ's line of step `number`, and the difference used; None: the same
    line.
    """
    for each in mine:
        if each.step in (0, number):
            changed, count = re.subn(each.theirs, each.ours or "", line)
            if count:
                return each, changed.split("|") if each.ours is not None else []
    return None, [line]


def told(name: str, wanted: Answers, got: Answers) -> list[str]:
    """Return the differences, one per line: - required, + received. Empty: none."""
    lines: list[str] = []
    for place, (due_lines, came) in enumerate(zip(wanted, got, strict=True)):
        if any(FAULT.search(line) for line in due_lines) and came and not any(FAULT.search(line) for line in came):
            continue
        # An additional JSON key is no difference, because programs ignore unknown keys.
        came = [line for line in came if line in due_lines or not line.startswith("  .")]
        if due_lines != came:
            lines.append(f"{name}, step {place + 1}:")
            lines += [f"  - {line}" for line in due_lines if line not in came]
            lines += [f"  + {line}" for line in came if line not in due_lines]
            if sorted(due_lines) == sorted(came):
                lines.append(f"  in this order: {came}")
    return lines
