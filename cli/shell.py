"""Shell integration: completion, and amqpctl under the names of RabbitMQ's tools.

`completion SHELL` prints a script for bash, zsh or fish. The script runs `autocomplete` for every word. It
therefore has the commands of this version, and the names of queues, vhosts and users of the broker in the command
line. If that broker does not answer within NAMES_S, there is no completion and no message. The script of bash quotes
completions, because a name may have blanks or `$(...)`; zsh and fish quote them themselves.
"""

from __future__ import annotations

import stat
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from amqpd.cli.client import ApiClient, quoted
from amqpd.cli.command import Command, Context, command
from amqpd.cli.errors import DATA, Failure, UsageError
from amqpd.cli.options import BY_LONG, BY_SHORT, FORMATTERS, GENERAL, where

NAMES_S: Final = 1.0
NAMES_MAX: Final = 200
TOOLS: Final = (
    "amqpctl", "rabbitmqctl", "rabbitmq-diagnostics", "rabbitmq-plugins", "rabbitmq-queues", "rabbitmq-streams",
    "rabbitmq-upgrade",
)  # fmt: skip
_QUEUES: Final = ("<queue", "<stream>")
_USERS: Final = frozenset({"<username>", "<user>"})
_SCRIPTS: Final = {
    "bash": """\
# amqpctl and RabbitMQ's names for it, completed. Source it from ~/.bashrc:  source <(amqpctl completion bash)
_amqpctl() {{
    local IFS=$'\\n' each words=("${{COMP_WORDS[@]:1:COMP_CWORD}}")
    compopt -o default 2>/dev/null
    COMPREPLY=()
    while read -r each; do
        printf -v each %q "$each"
        COMPREPLY+=("$each")
    done < <("${{COMP_WORDS[0]}}" autocomplete -- "${{words[@]//\\\\/}}" 2>/dev/null)
}}
complete -F _amqpctl {tools}
""",
    "zsh": """\
#compdef {tools}
# amqpctl and RabbitMQ's names for it, completed. From ~/.zshrc, behind compinit:  source <(amqpctl completion zsh)
_amqpctl() {{
    local -a found
    found=("${{(@f)$("${{words[1]}}" autocomplete -- "${{(@Q)words[2,CURRENT]}}" 2>/dev/null)}}")
    (( ${{#found[1]}} )) && compadd -a found || _files
}}
compdef _amqpctl {tools}
""",
    "fish": """\
# amqpctl and RabbitMQ's names for it, completed.  amqpctl completion fish > ~/.config/fish/completions/amqpctl.fish
function __amqpctl_complete
    set -l words (commandline -opc)
    $words[1] autocomplete -- $words[2..-1] (commandline -ct) 2>/dev/null
end
for tool in {tools}
    complete -c $tool -a '(__amqpctl_complete)'
end
""",
}


_command = partial(command, "Help", needs_app=False)


@_command(
    "Displays a script that completes commands, options and names in a shell",
    "<bash | zsh | fish>",
    (("<bash | zsh | fish>", "the shell"),),
    examples=(("completion bash", "source <(amqpctl completion bash), in ~/.bashrc"),),
)
def completion(context: Context) -> None:
    kind = context.operands[0]
    if kind not in _SCRIPTS:
        raise UsageError(f"Bad argument: there are scripts for {', '.join(_SCRIPTS)}")
    context.out.write(_SCRIPTS[kind].format(tools=" ".join(TOOLS)))


@_command(
    "Displays completions of a word, for shells",
    "<prefix> | -- <word> [<word> ...] <prefix>",
    (("<prefix>", "the beginning of a command; after other words, of an option, a column or a name"),),
    examples=(
        ("autocomplete list_q", "list_queues"),
        ("autocomplete -- purge_queue -p shop ord", "queues of vhost shop whose names begin with ord"),
    ),
    needs=1,
)
def autocomplete(context: Context) -> None:
    """Print the commands that begin with the prefix (rabbit). With more words: completions of the last word."""
    words = context.operands
    for each in dict.fromkeys(_candidates(context, words[:-1], words[-1])):
        context.out.write(each + "\n")


def _candidates(context: Context, before: Sequence[str], prefix: str) -> Iterator[str]:
    option = _waiting_option(before)
    if option:
        found = _values(context, before, option)
    else:
        command = next((context.commands[word] for word in before if word in context.commands), None)
        if prefix.startswith("-"):
            longs = [one.long for one in GENERAL] + list(command.options if command else ())
            found = [f"--{name}" for name in sorted(longs)]
        elif command is None:
            found = sorted(context.commands)
        else:
            found = _operands(context, before, command)
    return (each for each in found if each.startswith(prefix))


def _waiting_option(before: Sequence[str]) -> str:
    """Return the option whose value comes next; empty: none."""
    word = before[-1] if before else ""
    found = BY_LONG.get(word[2:]) if word.startswith("--") else BY_SHORT.get(word[1:]) if word.startswith("-") else None
    return found.long if found is not None and found.value else ""


def _values(context: Context, before: Sequence[str], option: str) -> list[str]:
    if option == "formatter":
        return list(FORMATTERS)
    if option == "vhost":
        return _names(context, before, "/api/vhosts")
    if option == "user":
        return _names(context, before, "/api/users")
    choices = BY_LONG[option].value.strip("<>")
    return choices.split("|") if "|" in choices else []


def _operands(context: Context, before: Sequence[str], command: Command) -> list[str]:
    if command.name == "help":
        return sorted(context.commands)
    if command.columns and not any(word in command.usage for word in _QUEUES):
        return sorted(command.columns)
    if any(word in command.usage for word in _QUEUES):
        return _names(context, before, f"/api/queues/{quoted(_given(before, 'vhost', 'p') or '/')}")
    if "<group>" in command.usage:
        return _names(context, before, f"/api/amqpd/kafka/groups/{quoted(_given(before, 'vhost', 'p') or '/')}")
    if any(word in command.usage for word in _USERS):
        return _names(context, before, "/api/users")
    return _names(context, before, "/api/vhosts") if command.usage.startswith("<vhost>") else []


def _given(before: Sequence[str], long: str, short: str = "") -> str:
    """Return the value of an option on the unfinished line; the last one counts."""
    found = ""
    for place, word in enumerate(before):
        if word in {f"--{long}", f"-{short}"} and place + 1 < len(before):
            found = before[place + 1]
        elif word.startswith(f"--{long}="):
            found = word.partition("=")[2]
    return found


def _names(context: Context, before: Sequence[str], path: str) -> list[str]:
    """Return the first NAMES_MAX names of objects in the broker, without those that are not printable."""
    given = {name: value for name in ("uri", "data-dir") if (value := _given(before, name))}
    client = context.client
    if given:
        uri, data_dir = where(context.line._replace(given=given), {})
        client = ApiClient(uri, data_dir, context.node, NAMES_S, False)
        client.tls = context.client.tls
    client.timeout_s = NAMES_S
    try:
        answer = client.send("GET", f"{path}?columns=name&page=1&page_size={NAMES_MAX}")
    except Failure:
        return []
    finally:
        client.close()
    items = answer.data.get("items", ()) if answer.ok and isinstance(answer.data, dict) else answer.data or ()
    return sorted(each["name"] for each in items if isinstance(each, dict) and each["name"].isprintable())


@_command(
    "Installs amqpctl under the names of RabbitMQ's tools, for scripts that call them",
    "<directory>",
    (("<directory>", f"a directory in PATH; the command writes {', '.join(TOOLS[1:])}"),),
    examples=(("install_aliases ~/.local/bin", "refused if such a program exists there already"),),
)
def install_aliases(context: Context) -> None:
    """Write one script per name, for this interpreter. Raises: Failure if a file exists that amqpctl did not write."""
    from pathlib import Path

    directory = Path(context.operands[0])
    if not directory.is_dir():
        raise Failure(DATA, f"there is no directory {directory}")
    text = f"#!{sys.executable} -P\n{_MARK}\nimport sys\n\nfrom amqpd.cli.main import main\n\nsys.exit(main())\n"
    paths = [directory / name for name in TOOLS[1:]]
    for path in paths:
        if (path.exists() or path.is_symlink()) and not _is_ours(path):
            raise Failure(DATA, f"{path} is there already, and is not amqpctl's: nothing was installed")
    for path in paths:
        coming = path.with_name(f".{path.name}.new")
        try:
            coming.write_text(text, "utf-8")
            coming.chmod(stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
            coming.replace(path)
        except OSError as error:
            raise Failure(DATA, f"{path} cannot be written: {error.strerror}") from None
        context.info(str(path))
    context.success(f"Installed {len(paths)} names of amqpctl in {directory}")


_MARK: Final = "# amqpctl by another name; made by `amqpctl install_aliases`."


def _is_ours(path: object) -> bool:
    from pathlib import Path

    assert isinstance(path, Path)
    try:
        return _MARK in path.read_text("utf-8").splitlines()[:2]
    except (OSError, UnicodeDecodeError):
        return False
