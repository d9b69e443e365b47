"""Permissions as ACLs, and SCRAM credentials: DescribeAcls, CreateAcls, DeleteAcls, Describe- and
AlterUserScramCredentials.

A permission is three regular expressions for the names of queues, so not each one is a set of ACLs. DescribeAcls shows
those parts that are: `.*` as the resource `*`, `^name$` and `^(a|b)$` as LITERAL, `^prefix` as PREFIXED. Parts that are
not shown are counted in the error message, with error code 0. ACLs cannot be created or deleted:

    permission   operations on topics of these names
    configure    CREATE, DELETE, ALTER, ALTER_CONFIGS; DELETE on groups
    write        WRITE
    read         READ; READ on groups

AlterUserScramCredentials changes the credentials of one mechanism only. The user's password for AMQP, HTTP and SASL
PLAIN stays, so both can differ.

Only administrators may use these requests.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from amqpd.auth.internal_backend import NoSuchUser
from amqpd.auth.scram import ITERATIONS, ITERATIONS_MIN, credentials_of
from amqpd.broker.events import ACTOR, ORIGIN
from amqpd.kafka_server import errors
from amqpd.kafka_server.connection import Call, typed_api
from amqpd.kafka_server.pace import Steps
from amqpd.kafka_server.topics import ALTER, ALTER_CONFIGS, CREATE, DELETE, READ, WRITE, check_count
from amqpd.storage.metadata.store import MetadataError

if TYPE_CHECKING:
    from amqpd.auth.permissions import Kind

# Types of resources and of patterns.
ANY: Final = 1
TOPIC: Final = 2
GROUP: Final = 3
MATCH: Final = 2
LITERAL: Final = 3
PREFIXED: Final = 4
ALLOW: Final = 3

CHANGED_MAX: Final = 100
"""Most users in a request that changes credentials."""
SHOWN_MAX: Final = 10_000
"""Most permissions or users that are described, at some 10 us each."""

_OPERATIONS: Final[tuple[tuple[Kind, int, tuple[int, ...]], ...]] = (
    ("configure", TOPIC, (CREATE, DELETE, ALTER, ALTER_CONFIGS)),
    ("write", TOPIC, (WRITE,)),
    ("read", TOPIC, (READ,)),
    ("read", GROUP, (READ,)),
    ("configure", GROUP, (DELETE,)),
)
_NAME: Final = r"(?:[\w-]|\\\.)+"
_LITERALS: Final = re.compile(rf"\^(?:\(({_NAME}(?:\|{_NAME})*)\)|({_NAME}))\$", re.ASCII)
_PREFIX: Final = re.compile(rf"\^({_NAME})(?:\.\*\$?)?", re.ASCII)
_EVERYTHING: Final = frozenset({".*", "^.*", ".*$", "^.*$", "^"})
_NOTHING: Final = frozenset({"", "^$"})

NOT_ADMINISTRATOR: Final = "only users with the tag administrator may see or change permissions and credentials"
USE_PERMISSIONS: Final = (
    "ACLs are the permissions of users here, three regular expressions for each vhost; change them with "
    "amqpctl set_permissions"
)

# Numbers of the mechanisms in requests 50 and 51.
_MECHANISMS: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
SALTED_BYTES: Final = {1: 32, 2: 64}
ITERATIONS_ALTERED_MAX: Final = ITERATIONS
SALT_BYTES_MAX: Final = 255


class ResourcePattern(NamedTuple):
    """The names that an ACL applies to: LITERAL or PREFIXED."""

    name: str
    type: int


def resource_patterns(pattern: str) -> list[ResourcePattern] | None:
    """Return the names that a permission's regular expression matches, or None if they are no patterns of Kafka."""
    if pattern in _NOTHING:
        return []
    if pattern in _EVERYTHING:
        return [ResourcePattern("*", LITERAL)]
    if found := _LITERALS.fullmatch(pattern):
        names = (found[1] or found[2]).replace("\\", "")
        return [ResourcePattern(name, LITERAL) for name in names.split("|")]
    if found := _PREFIX.fullmatch(pattern):
        return [ResourcePattern(found[1].replace("\\", ""), PREFIXED)]
    return None


def _is_administrator(call: Call) -> bool:
    return "administrator" in call.session.user.tags


def _matches(request: Any, kind: int, resource: ResourcePattern) -> bool:
    """Return whether the filter of the request has this resource."""
    if request.resource_type_filter not in (ANY, kind):
        return False
    name, wanted = request.resource_name_filter, request.pattern_type_filter
    if wanted not in (ANY, MATCH, resource.type):
        return False
    if name is None or name == resource.name:
        return True
    if wanted != MATCH:
        return False
    return resource.name == "*" or (resource.type == PREFIXED and name.startswith(resource.name))


def _describe_acls(call: Call) -> Steps[None]:
    request = call.request
    if not _is_administrator(call):
        call.reply(
            {"error_code": errors.CLUSTER_AUTHORIZATION_FAILED, "error_message": NOT_ADMINISTRATOR, "resources": []}
        )
        return
    vhost = call.session.vhost.name
    rows = call.session.broker.auth.permissions(vhost=vhost)
    if len(rows) > SHOWN_MAX:
        text = f"vhost '{vhost}' has more than {SHOWN_MAX} permissions; see amqpctl list_permissions"
        call.reply({"error_code": errors.INVALID_REQUEST, "error_message": text, "resources": []})
        return
    found: dict[tuple[int, ResourcePattern], list[dict[str, Any]]] = {}
    others = 0
    for row in rows:
        yield
        principal = f"User:{row.user}"
        if request.principal_filter not in (None, principal):
            continue
        for kind, resource_type, operations in _OPERATIONS:
            patterns = resource_patterns(getattr(row, kind))
            if patterns is None:
                others += resource_type == TOPIC
            for each in patterns or ():
                if _matches(request, resource_type, each):
                    acls = found.setdefault((resource_type, each), [])
                    acls += _acls(request, principal, operations)
    resources = [
        {"resource_type": resource_type, "resource_name": each.name, "pattern_type": each.type, "acls": acls}
        for (resource_type, each), acls in found.items()
        if acls
    ]
    text = f"{others} permissions are regular expressions that no ACL has; see amqpctl list_permissions"
    call.reply({"error_code": errors.NONE, "error_message": text if others else None, "resources": resources})


def _acls(request: Any, principal: str, operations: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    if request.host_filter not in (None, "*") or request.permission_type not in (ANY, ALLOW):
        return
    for operation in operations:
        if request.operation in (ANY, operation):
            yield {"principal": principal, "host": "*", "operation": operation, "permission_type": ALLOW}


def _create_acls(call: Call) -> None:
    creations = call.request.creations or ()
    check_count(len(creations))
    call.reply(
        {"results": [{"error_code": errors.SECURITY_DISABLED, "error_message": USE_PERMISSIONS} for _ in creations]}
    )


def _delete_acls(call: Call) -> None:
    filters = call.request.filters or ()
    check_count(len(filters))
    refused = {"error_code": errors.SECURITY_DISABLED, "error_message": USE_PERMISSIONS, "matching_acls": []}
    call.reply({"filter_results": [refused for _ in filters]})


# -- SCRAM credentials -------------------------------------------------------------------------------------------------


def _describe_scram(call: Call) -> Steps[None]:
    if not _is_administrator(call):
        call.reply(
            {"error_code": errors.CLUSTER_AUTHORIZATION_FAILED, "error_message": NOT_ADMINISTRATOR, "results": []},
        )
        return
    auth = call.session.broker.auth
    asked = [each.name for each in call.request.users or ()]
    check_count(len(asked))
    results = []
    counts = Counter(asked) if asked else dict.fromkeys((row.name for row in auth.users()), 1)
    if len(counts) > SHOWN_MAX:
        text = f"there are more than {SHOWN_MAX} users: name some of them"
        call.reply({"error_code": errors.INVALID_REQUEST, "error_message": text, "results": []})
        return
    for name, count in counts.items():
        yield
        found = {number: auth.scram_credentials(name, mechanism) for number, mechanism in _MECHANISMS.items()}
        infos = [
            {"mechanism": number, "iterations": each.iterations} for number, each in found.items() if each is not None
        ]
        if count > 1:
            results.append(_user_result(name, errors.DUPLICATE_RESOURCE, "the user is in the request more than once"))
        elif infos:
            results.append({**_user_result(name, errors.NONE, None), "credential_infos": infos})
        elif asked:
            results.append(
                _user_result(name, errors.RESOURCE_NOT_FOUND, "there is no such user with SCRAM credentials")
            )
    call.reply({"error_code": errors.NONE, "error_message": None, "results": results})


def _user_result(name: str, code: int, text: str | None) -> dict[str, Any]:
    return {"user": name, "error_code": code, "error_message": text}


def _alter_scram(call: Call) -> None:
    request = call.request
    changes = [*(request.deletions or ()), *(request.upsertions or ())]
    check_count(len(changes), CHANGED_MAX)
    names = list(dict.fromkeys(each.name for each in changes))
    if not _is_administrator(call):
        code, text = errors.CLUSTER_AUTHORIZATION_FAILED, NOT_ADMINISTRATOR
        call.reply({"results": [_user_result(name, code, text) for name in names]})
        return
    call.connection.start_task(_alter_all(call, names))  # changes run one after another, each with a commit


async def _alter_all(call: Call, names: list[str]) -> None:
    request = call.request
    ACTOR.set(call.session.user.name)
    ORIGIN.set(call.session)
    deletions = {name: [each for each in request.deletions or () if each.name == name] for name in names}
    upsertions = {name: [each for each in request.upsertions or () if each.name == name] for name in names}
    results = []
    for name in names:
        async with call.session.broker.auth.change_lock:  # another request may change the user's other mechanism
            results.append(await _alter(call, name, deletions[name], upsertions[name]))
    if not call.connection.closed:
        call.reply({"results": results})


async def _alter(call: Call, name: str, deletions: list[Any], upsertions: list[Any]) -> dict[str, Any]:
    """Change the credentials of one user, all or none. The caller holds the lock of changes."""
    auth = call.session.broker.auth
    now = {number: auth.scram_credentials(name, mechanism) for number, mechanism in _MECHANISMS.items()}
    numbers = [each.mechanism for each in (*deletions, *upsertions)]
    if len(set(numbers)) < len(numbers):
        return _user_result(name, errors.DUPLICATE_RESOURCE, "a mechanism is in the request more than once")
    if set(numbers) - _MECHANISMS.keys():
        return _user_result(name, errors.UNSUPPORTED_SASL_MECHANISM, "unknown SCRAM mechanism")
    for each in deletions:
        if now[each.mechanism] is None:
            return _user_result(name, errors.RESOURCE_NOT_FOUND, "there are no such credentials to delete")
        now[each.mechanism] = None
    for each in upsertions:
        salt, salted = bytes(each.salt), bytes(each.salted_password)
        if not ITERATIONS_MIN <= each.iterations <= ITERATIONS_ALTERED_MAX:
            text = f"iterations must be {ITERATIONS_MIN} to {ITERATIONS_ALTERED_MAX}"
            return _user_result(name, errors.UNACCEPTABLE_CREDENTIAL, text)
        if not 0 < len(salt) <= SALT_BYTES_MAX or len(salted) != SALTED_BYTES[each.mechanism]:
            return _user_result(name, errors.UNACCEPTABLE_CREDENTIAL, "salt or salted password has a wrong length")
        now[each.mechanism] = credentials_of(_MECHANISMS[each.mechanism], salted, salt, each.iterations)
    sha256, sha512 = ("" if each is None else str(each) for each in (now[1], now[2]))
    try:
        await auth.set_scram(name, sha256, sha512)
    except NoSuchUser:
        return _user_result(name, errors.RESOURCE_NOT_FOUND, "there is no such user; add it with amqpctl add_user")
    except MetadataError as error:
        return _user_result(name, errors.STORAGE_ERROR, str(error))
    return _user_result(name, errors.NONE, None)


APIS: Final = (
    typed_api(29, "DescribeAcls", 1, 3, 2, _describe_acls),
    typed_api(30, "CreateAcls", 1, 3, 2, _create_acls),
    typed_api(31, "DeleteAcls", 1, 3, 2, _delete_acls),
    typed_api(50, "DescribeUserScramCredentials", 0, 0, 0, _describe_scram),
    typed_api(51, "AlterUserScramCredentials", 0, 0, 0, _alter_scram),
)
