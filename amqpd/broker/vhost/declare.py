"""Queues: declared and deleted, whoever asks for it.

`declare` checks, submits the row and makes the queue once that is committed. `delete` takes it out of memory at once
and answers when it comes back with no restart: see deletion.py.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Final

from amqpd.broker.vhost.declaration import NewQueue, QueueDeclaration
from amqpd.broker.vhost.pending import Coming, Done, Name, OnItsWay, unheard
from amqpd.broker.vhost.equivalence import check_queue
from amqpd.broker.vhost.leaving import drop_queue
from amqpd.broker.vhost.limit_set import QUEUES
from amqpd.broker.vhost.vhost import Names, VHost
from amqpd.broker.queue import arguments as queue_arguments
from amqpd.broker.queue.types import kind_of
from amqpd.broker.queue.factory import make_queue
from amqpd.broker.queue.queue import Queue
from amqpd.errors import AccessRefused, PreconditionFailed
from amqpd.protocol.field_table import encode_table
from amqpd.storage.metadata.store import Change, Delete, Put, QueueRow
from amqpd.storage.queue_log import QueueLog

log = logging.getLogger(__name__)

ARGUMENTS_SIZE_MAX: Final = 64 * 1024


def declare(names: Names, asked: QueueDeclaration, done: Done = unheard) -> bool:
    """Whether it is new; done(None) once it is there, at once where it was there already and is equivalent.

    Raises: AccessRefused, PreconditionFailed, ResourceLocked, OnItsWay; NotOpenYet of a queue that is there.
    """
    if asked.exclusive and asked.durable:
        # rabbit: it dies with its connection, so whether it was asked for as durable is all the same
        asked = asked._replace(durable=False)
    names.vhost.check_not_own(asked.name)
    queue = names.find_queue(asked.name)
    if queue is not None:
        check_queue(names, queue, asked)
        if isinstance(queue, Queue):
            queue.prepare()
        done(None)
        return False
    if asked.name.startswith("amq.") and not asked.name.startswith("amq.gen-"):
        raise AccessRefused(f"queue name '{asked.name}' contains reserved prefix 'amq.*'")
    check_room(names, asked.name)
    asked = asked.with_default_type(names.default_queue_type)
    vhost = names.vhost
    check(vhost.name, asked)
    if vhost.catalogue.storage.replicates and asked.durable:
        from amqpd.broker.vhost.cluster_checks import check_queue as check_in_cluster

        check_in_cluster(vhost.name, asked)
    if "x-kafka-topic" in asked.arguments:
        from amqpd.broker.vhost.kafka_topic import check as check_topic

        check_topic(vhost, asked)
    new = NewQueue(asked)
    put: Put | None = None
    undo: Delete | None = None
    if new.durable:
        row = QueueRow(vhost.name, new.name, new.id, True, new.auto_delete, False, encode_table(new.arguments))
        put, undo = Put(row), Delete(row)
    names.make(Coming(Name(vhost.name, "queue", new.name), put, undo, partial(_make, vhost, new), new), done)
    return True


def check_room(names: Names, name: str) -> None:
    """rabbit: whether one more may come is asked before its arguments are looked at. Raises: PreconditionFailed."""
    if not names.limits.allow(QUEUES, names.queue_count()):
        limit = names.limits.value[QUEUES]
        raise PreconditionFailed(
            f"cannot declare queue '{name}': queue limit in vhost '{names.vhost.name}' ({limit}) is reached"
        )


def check(vhost: str, asked: QueueDeclaration) -> None:
    """Raises: PreconditionFailed when there can be no such queue, whatever the vhost's default type."""
    arguments = asked.arguments
    if len(encode_table(arguments)) > ARGUMENTS_SIZE_MAX:
        raise PreconditionFailed(f"arguments of queue '{asked.name}' are larger than {ARGUMENTS_SIZE_MAX} bytes")
    queue_arguments.validate(asked.name, vhost, arguments)
    if kind_of(arguments).durable_only:
        wrong = (
            ("auto-delete", asked.auto_delete),
            ("exclusive-owner", asked.exclusive),
            ("non-durable", not asked.durable),
        )
        for flag, is_set in wrong:
            if is_set:
                raise PreconditionFailed(f"invalid property '{flag}' for queue '{asked.name}' in vhost '{vhost}'")
    for name in ("x-export", "x-retain"):
        if name in arguments and not asked.durable:
            raise PreconditionFailed(f"invalid arg '{name}' for queue '{asked.name}' in vhost '{vhost}': not durable")


def _make(vhost: VHost, new: NewQueue) -> None:
    """Its row is committed."""
    declared, storage = vhost.catalogue.declared, vhost.catalogue.storage
    if vhost.deleted:
        raise OnItsWay(declared, Name(vhost.name, "queue", new.name))
    store: QueueLog | None = None
    if new.id:
        table = encode_table(new.arguments)
        store = storage.create_queue(vhost.id, new.name, vhost.name, None, new.id, new.auto_delete, table)[1]
    flags = (new.durable, new.auto_delete, new.exclusive_owner)
    queue = make_queue(vhost.queue_host, new.name, *flags, new.arguments, store)
    queue.id = new.id
    vhost.add_queue(queue)
    new.made = queue
    vhost.catalogue.queue_created_count += 1
    events = vhost.catalogue.events
    if events.heard:
        owner = new.exclusive_owner
        events.tell(
            "queue.created",
            {
                "vhost": vhost.name,
                "name": new.name,
                "durable": new.durable,
                "auto_delete": new.auto_delete,
                "exclusive": owner is not None,
                "owner_pid": "" if owner is None else events.pid(getattr(owner, "serial", 0)),
                "arguments": new.arguments,
            },
            recorded=owner is None,
        )
    log.debug("queue '%s' was added", new.name, extra={"vhost": vhost.name, "queue": new.name})


def check_deletable(vhost: VHost, queue: Queue, if_unused: bool, if_empty: bool) -> None:
    """Raises: PreconditionFailed."""
    if if_unused and queue.consumers:
        raise PreconditionFailed(f"queue '{queue.name}' in vhost '{vhost.name}' in use")
    if if_empty and queue.ready_count + queue.delayed_count:
        raise PreconditionFailed(f"queue '{queue.name}' in vhost '{vhost.name}' not empty")


def delete(vhost: VHost, queue: Queue, done: Done = unheard) -> int:
    """Deletes it with its bindings; its consumers are told. Returns how many messages were ready, which is not known
    (0) where nobody has prepared it since the start.

    done: called when it does not come back, or with the error of the first try, which others follow. Raises:
    AccessRefused of the broker's own.
    """
    vhost.check_not_own(queue.name)
    count, changes = drop_queue(vhost, queue)
    vhost.catalogue.deletions.delete(changes, [queue], done)
    return count


def delete_all(vhost: VHost, queues: Sequence[Queue], done: Done = unheard) -> None:
    """The same for several in one commit."""
    changes: list[Change] = []
    for queue in queues:
        changes += drop_queue(vhost, queue)[1]
    vhost.catalogue.deletions.delete(changes, queues, done)
