"""Users, their permissions, password hashes for definitions; and creation and deletion of vhosts.

Exit codes for missing objects are rabbitmqctl 3.10's, measured, although they are not regular: a missing user is
67, but 69 for clear_password and list_user_permissions. A missing vhost is 65 for delete_vhost and the permission
lists, else 69.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from amqpd.cli.client import ApiAnswer, quoted
from amqpd.cli.command import MONITORING, Context, command
from amqpd.cli.errors import DATA, NO_USER, SOFTWARE, UNAVAILABLE, Failure, UsageError, VhostNotFound

VHOST_KEYS: Final = {"description": "description", "tags": "tags", "default-queue-type": "default_queue_type"}
"""Option of a vhost -> its key in the API."""


_USER: Final = ("<username>", "name of the user")
_PASSWORD: Final = ("<password>", "Read from standard input if missing. After `--` it may begin with a dash.")
_PATTERN: Final = "regular expression (RE2) that the names must match; '' matches no name"
_command = partial(command, "Users")
_access = partial(command, "Access Control")


@command(
    "Virtual hosts",
    "Creates a virtual host",
    "<vhost> [--description <description> --tags <tag1>,<tag2> --default-queue-type <quorum|classic|stream>]",
    (("<vhost>", "name of the vhost; an existing one is no error"),),
    examples=(
        ("add_vhost shop", "then: amqpctl set_permissions -p shop guest '.*' '.*' '.*'"),
        ("add_vhost shop --description 'web shop' --tags web,eu", "with a description and tags"),
    ),
)
def add_vhost(context: Context) -> None:
    name = named(context, "vhost")
    given = context.line.given
    body = {key: given[option] for option, key in VHOST_KEYS.items() if option in given}
    context.info(f'Adding vhost "{name}" ...')
    context.change("PUT", f"/api/vhosts/{quoted(name)}", body)


@command(
    "Virtual hosts",
    "Deletes a virtual host",
    "<vhost>",
    (("<vhost>", "the vhost; its queues and their messages go with it"),),
    examples=(("delete_vhost shop", "exit code 65 if there is none"),),
)
def delete_vhost(context: Context) -> None:
    name = named(context, "vhost")
    context.info(f'Deleting vhost "{name}" ...')
    context.no_timeout()
    context.change("DELETE", f"/api/vhosts/{quoted(name)}", missing=VhostNotFound(name))


@_command(
    "Creates a user without permissions",
    "<username> [<password>]",
    (_USER, ("<password>", _PASSWORD[1] + " An empty one disables login by password.")),
    examples=(
        ("add_user alice s3cret", "then: amqpctl set_permissions"),
        ("add_user alice < password.txt", "the password stays out of the shell's history"),
    ),
)
def add_user(context: Context) -> None:
    name = named(context, "user")
    context.info(f'Adding user "{name}" ...')
    body = {**_password(context.password(1)), "tags": ""}
    answer = context.client.send("PUT", f"/api/users/{quoted(name)}", body, {"If-None-Match": "*"})
    if answer.status == 412:
        raise Failure(SOFTWARE, f'User "{name}" already exists')
    answer.checked()
    context.info(
        "Done. Don't forget to grant the user permissions to some virtual hosts! "
        "See 'amqpctl help set_permissions' to learn more."
    )
    if context.line.formatter == "json":
        context.success()


@_command(
    "Deletes a user",
    "<username>",
    (_USER,),
    examples=(("delete_user guest", "recommended if other machines can connect"),),
)
def delete_user(context: Context) -> None:
    name = named(context, "user")
    context.info(f'Deleting user "{name}" ...')
    context.change("DELETE", f"/api/users/{quoted(name)}", missing=no_user(name))


@_command(
    "Changes the password of a user",
    "<username> [<password>]",
    (_USER, _PASSWORD),
    examples=(("change_password alice n3w", "open connections stay open"),),
)
def change_password(context: Context) -> None:
    name = named(context, "user")
    context.info(f'Changing password for user "{name}" ...')
    body = _password(context.password(1))
    context.change("PUT", f"/api/amqpd/users/{quoted(name)}/password", body, missing=no_user(name))


@_command(
    "Removes the password: the user cannot log in with any password",
    "<username>",
    (_USER,),
    examples=(("clear_password alice", "until change_password sets a new one"),),
)
def clear_password(context: Context) -> None:
    name = named(context, "user")
    context.info(f'Clearing password for user "{name}" ...')
    path = f"/api/amqpd/users/{quoted(name)}/password"
    context.change("PUT", path, {"password_hash": ""}, missing=no_user(name, UNAVAILABLE))


@_command(
    "Checks a user name and password; fails if they are wrong",
    "<username> [<password>]",
    (_USER, _PASSWORD),
    examples=(("authenticate_user alice s3cret", "exit code 0, or 65 if they are wrong"),),
)
def authenticate_user(context: Context) -> None:
    name = named(context, "user")
    context.info(f'Authenticating user "{name}" ...')
    body = {"username": name, "password": context.password(1)}
    answer = context.client.send("POST", "/api/amqpd/authenticate_user", body).checked()
    if not answer.data["authenticated"]:
        reason = answer.data.get("reason") or f"user '{name}' - invalid credentials"
        raise Failure(DATA, f'Error: failed to authenticate user "{name}"\n{reason}')
    context.success("Success")


@_command(
    "Sets the tags of a user",
    "<username> <tag> [...]",
    (_USER, ("<tag>", "administrator, monitoring, policymaker, management or impersonator; none removes all tags")),
    examples=(
        ("set_user_tags alice administrator", "alice can use the whole admin API"),
        ("set_user_tags alice", "alice cannot use the admin API"),
    ),
    needs=1,
)
def set_user_tags(context: Context) -> None:
    name, *tags = context.operands
    context.info(f'Setting tags for user "{name}" to [{", ".join(tags)}] ...')
    context.change("PUT", f"/api/amqpd/users/{quoted(name)}/tags", {"tags": tags}, missing=no_user(name))


@_command(
    "Shows users and their tags",
    "[--no-table-headers] [--timeout <timeout>]",
    examples=(("list_users -s", "without header and banner"),),
)
def list_users(context: Context) -> None:
    context.info("Listing users ...")
    users = context.client.get("/api/users")
    context.show(("user", "tags"), [(user["name"], user["tags"]) for user in users])


@_access(
    "Sets the permissions of a user in a vhost",
    "[--vhost <vhost>] <username> <conf> <write> <read>",
    (
        _USER,
        ("<conf>", f"declare and delete queues and exchanges: {_PATTERN}"),
        ("<write>", "publish, and bind to: a regular expression"),
        ("<read>", "consume, get, purge, and bind from: a regular expression"),
    ),
    examples=(
        ("set_permissions -p shop alice '.*' '.*' '.*'", "everything in vhost shop"),
        ("set_permissions alice '' '^orders$' ''", "alice can only publish to the exchange orders"),
    ),
)
def set_permissions(context: Context) -> None:
    user, configure, write, read = context.operands
    context.info(f'Setting permissions for user "{user}" in vhost "{context.vhost}" ...')
    body = {"configure": configure, "write": write, "read": read}
    _expect_pair(context, context.client.send("PUT", _pair("permissions", context, user), body), user)
    context.success()


@_access(
    "Removes the permissions of a user in a vhost",
    "[--vhost <vhost>] <username>",
    (_USER,),
    examples=(("clear_permissions -p shop alice", "alice can no longer open vhost shop"),),
)
def clear_permissions(context: Context) -> None:
    user = context.operands[0]
    context.info(f'Clearing permissions for user "{user}" in vhost "{context.vhost}" ...')
    _expect_pair(context, context.client.send("DELETE", _pair("permissions", context, user)), user, may_lack=True)
    context.success()


@_access(
    "Sets the routing keys that a user may use with an exchange",
    "[--vhost <vhost>] <username> <exchange> <write> <read>",
    (
        _USER,
        ("<exchange>", "the topic exchange"),
        ("<write>", f"routing keys to publish with: {_PATTERN}"),
        ("<read>", "routing keys to bind with: a regular expression"),
    ),
    examples=(("set_topic_permissions alice amq.topic '^eu\\.' '.*'", "publish with eu.*, bind with all keys"),),
)
def set_topic_permissions(context: Context) -> None:
    user, exchange, write, read = context.operands
    context.info(f'Setting topic permissions on "{exchange}" for user "{user}" in vhost "{context.vhost}" ...')
    body = {"exchange": exchange, "write": write, "read": read}
    _expect_pair(context, context.client.send("PUT", _pair("topic-permissions", context, user), body), user)
    context.success()


@_access(
    "Removes topic permissions of a user, in a vhost or for one exchange",
    "[--vhost <vhost>] <username> [<exchange>]",
    (_USER, ("<exchange>", "exchange of the permissions; without it, all exchanges")),
    examples=(("clear_topic_permissions alice amq.topic", "alice can use any routing key again"),),
)
def clear_topic_permissions(context: Context) -> None:
    user, *exchange = context.operands
    on = f' on "{exchange[0]}"' if exchange else ""
    context.info(f'Clearing topic permissions{on} for user "{user}" in vhost "{context.vhost}" ...')
    path = _pair("topic-permissions", context, user) + "".join(f"/{quoted(name)}" for name in exchange)
    _expect_pair(context, context.client.send("DELETE", path), user, may_lack=True)
    context.success()


@_access(
    "Shows the permissions of all users in a vhost",
    "[--vhost <vhost>] [--no-table-headers] [--timeout <timeout>]",
    examples=(("list_permissions -p shop", "the permissions in vhost shop"),),
)
def list_permissions(context: Context) -> None:
    context.info(f'Listing permissions for vhost "{context.vhost}" ...')
    _show_of_vhost(context, "permissions", ("user", "configure", "write", "read"))


@_access(
    "Shows the topic permissions of a vhost",
    "[--vhost <vhost>] [--no-table-headers] [--timeout <timeout>]",
    examples=(("list_topic_permissions -p shop", "permissions on routing keys in vhost shop"),),
)
def list_topic_permissions(context: Context) -> None:
    context.info(f'Listing topic permissions for vhost "{context.vhost}" ...')
    _show_of_vhost(context, "topic-permissions", ("user", "exchange", "write", "read"))


@_access(
    "Shows the permissions of a user in all vhosts",
    "[--no-table-headers] <username> [--timeout <timeout>]",
    (_USER,),
    examples=(("list_user_permissions alice", "one row per vhost"),),
)
def list_user_permissions(context: Context) -> None:
    user = context.operands[0]
    context.info(f'Listing permissions for user "{user}" ...')
    answer = context.client.send("GET", f"/api/users/{quoted(user)}/permissions")
    rows = answer.checked(no_user(user, UNAVAILABLE)).data
    columns = ("vhost", "configure", "write", "read")
    context.show(columns, [[row[name] for name in columns] for row in rows])


def named(context: Context, thing: str) -> str:
    """Return the first operand. rabbit: an empty name is 65, not 64."""
    name = context.operands[0]
    if not name:
        raise UsageError(f"Bad argument: {thing} cannot be an empty string", DATA)
    return name


def _password(text: str) -> dict[str, str]:
    """Return the body for a password. rabbit: an empty password disables logins by password."""
    return {"password": text} if text else {"password_hash": ""}


def _pair(kind: str, context: Context, user: str) -> str:
    return f"/api/{kind}/{quoted(context.vhost)}/{quoted(user)}"


def no_user(name: str, exit_code: int = NO_USER) -> Failure:
    return Failure(exit_code, f'User "{name}" does not exist')


def _expect_pair(context: Context, answer: ApiAnswer, user: str, *, may_lack: bool = False) -> None:
    """Check an answer about a user in a vhost. `may_lack`: a missing permission is a success (rabbit)."""
    if answer.status in {400, 404} and "does not exist" in answer.reason:
        if answer.reason.startswith("vhost"):
            raise Failure(UNAVAILABLE, f"Virtual host {context.vhost} does not exist")
        if answer.reason.startswith("user"):
            raise Failure(NO_USER, f"User {user} does not exist")
    if not (may_lack and answer.status == 404):
        answer.checked()
    elif context.client.send("GET", f"/api/users/{quoted(user)}").status == 404:
        raise Failure(NO_USER, f"User {user} does not exist")
    elif context.client.send("GET", f"/api/vhosts/{quoted(context.vhost)}").status == 404:
        raise Failure(UNAVAILABLE, f"Virtual host {context.vhost} does not exist")


def _show_of_vhost(context: Context, kind: str, columns: tuple[str, ...]) -> None:
    answer = context.client.send("GET", f"/api/vhosts/{quoted(context.vhost)}/{kind}")
    rows: list[dict[str, Any]] = answer.checked(VhostNotFound(context.vhost)).data
    context.show(columns, [[row[name] for name in columns] for row in rows])


SALT_BYTES: Final = 4
HASHES: Final = ("sha512", "sha256")
"""RabbitMQ's password hashes that amqpd accepts. Its own: docs/backup.md."""


@_command(
    "Hashes a password as RabbitMQ does, for the password_hash of definitions",
    "[<password>]",
    (("<password>", "the password; without it, amqpctl reads standard input or asks"),),
    examples=(("-q hash_password s3cret", "a different text each time, because of the salt; needs no broker"),),
    needs_app=False,
)
def hash_password(context: Context) -> None:
    """Print base64 of 4 bytes of salt and SHA-256 over salt and password (rabbit), for a user's `password_hash`."""
    import base64
    import hashlib
    import os

    password = context.password(0)
    context.info("Will hash the password")
    salt = os.urandom(SALT_BYTES)
    text = base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode("ascii")
    context.answer({"result": "ok", "value": text, "hashing_algorithm": "rabbit_password_hashing_sha256"}, text)


@command(
    MONITORING,
    "Lists the hash functions of RabbitMQ that amqpd accepts",
    "",
    examples=(("list_hashes", "sha512 and sha256"),),
    needs_app=False,
)
def list_hashes(context: Context) -> None:
    context.info("Listing supported hash algorithms ...")
    context.answer({"node": context.node, "result": "ok", "value": list(HASHES)}, "[" + ",".join(HASHES) + "]")
