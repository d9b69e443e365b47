"""The RabbitMQ names of amqpctl: commands of each tool, installation, and shell completion."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from fake_broker import Ctl, FakeBroker, Result

from amqpd.cli.command import GROUPS
from amqpd.cli.main import TOOLS, run, tool_of
from amqpd.cli.rabbitmq_compat import BUILT_IN
from amqpd.cli.shell import TOOLS as SHELL_TOOLS


def tool(program: str, *arguments: str, directory: Path | None = None) -> Result:
    out, err = io.StringIO(), io.StringIO()
    code = run(["-n", "n@h", *arguments], out, err, io.StringIO(), {"AMQPD_DATA_DIR": str(directory)}, program)
    return Result(code, out.getvalue(), err.getvalue())


def test_tool_is_chosen_by_program_name_or_first_word() -> None:
    assert tool_of(["/usr/bin/rabbitmqctl", "status"]) == ("rabbitmqctl", ["status"])
    assert tool_of(["/usr/bin/amqpctl", "rabbitmq-plugins", "list"]) == ("rabbitmq-plugins", ["list"])
    assert tool_of(["whatever.py", "rabbitmq-queues", "peek"]) == ("rabbitmq-queues", ["peek"])
    assert tool_of(["rabbitmq-queues", "rabbitmq-plugins"]) == ("rabbitmq-queues", ["rabbitmq-plugins"])
    assert tool_of(["amqpctl"]) == ("amqpctl", [])
    assert tuple(SHELL_TOOLS) == tuple(TOOLS)


@pytest.mark.parametrize("program", TOOLS)
def test_help_of_each_tool_shows_its_name_and_commands(program: str) -> None:
    text = tool(program, "help").out
    assert f"{program} [--node <node>]" in text
    for name, command in TOOLS[program].commands.items():
        assert f"   {name} " in text and command.group in GROUPS
        assert command.usage_of(program) in tool(program, name, "--help").out


def test_tool_has_only_its_own_commands() -> None:
    for program in ("rabbitmq-diagnostics", "rabbitmq-queues", "rabbitmq-streams", "rabbitmq-plugins"):
        result = tool(program, "add_user", "a", "b")
        assert result.code == 64
        assert "Command 'add_user' not found." in result.err
    assert "list" not in TOOLS["amqpctl"].commands
    assert TOOLS["rabbitmqctl"].commands == TOOLS["amqpctl"].commands


def test_short_option_depends_on_the_tool(broker: FakeBroker) -> None:
    """-e means something else to delete_queue than to rabbitmq-plugins list."""
    broker.answers["GET", "/api/amqpd/ping"] = (200, {})
    result = tool("rabbitmq-plugins", "list", "-e", "-m", directory=broker.data_dir)
    assert (result.code, result.out.splitlines()[1:]) == (0, sorted(BUILT_IN))
    broker.answers["POST", "/api/amqpd/delete_queue"] = (200, {"message_count": 0})
    assert tool("amqpctl", "delete_queue", "q", "-e", directory=broker.data_dir).code == 0
    assert broker.requests[-1].body["if_empty"] is True


def test_plugins_are_listed_enabled_and_disabled(broker: FakeBroker) -> None:
    broker.answers["GET", "/api/amqpd/ping"] = (200, {})

    def plugins(*words: str) -> Result:
        return tool("rabbitmq-plugins", *words, directory=broker.data_dir)

    assert "[E*] rabbitmq_management " in plugins("list").out
    assert plugins("-q", "list", "^rabbitmq_management$").out == "[E*] rabbitmq_management 0.1.0\n"
    assert "rabbitmq_management_agent" not in plugins("list", "-E", "-m").out
    assert plugins("is_enabled", "rabbitmq_management").code == 0
    assert plugins("is_enabled", "rabbitmq_management", "rabbitmq_mqtt").code == 69
    assert plugins("enable", "rabbitmq_management", "rabbitmq_prometheus").code == 0
    assert plugins("enable", "rabbitmq_mqtt").code == 70
    assert plugins("disable", "rabbitmq_mqtt").code == 0
    assert plugins("disable", "rabbitmq_management").code == 69
    found = json.loads(plugins("list", "--formatter", "json").out)
    assert {each["name"] for each in found["plugins"]} == set(BUILT_IN) and found["status"] == "running"


def test_plugins_are_listed_without_a_broker(tmp_path: Path) -> None:
    """RabbitMQ lists them in this case, too."""
    result = tool("rabbitmq-plugins", "list", directory=tmp_path)
    assert (result.code, "failed to contact n@h" in result.out, "[E ] " in result.out) == (0, True, True)
    assert tool("rabbitmq-plugins", "is_enabled", "rabbitmq_management", directory=tmp_path).code == 69
    assert tool("rabbitmq-plugins", "is_enabled", "--offline", "rabbitmq_management", directory=tmp_path).code == 0


def test_install_aliases_installs_and_overwrites_nothing_foreign(ctl: Ctl, tmp_path: Path) -> None:
    """A second installation succeeds. Existing foreign files are kept."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for _ in range(2):
        result = ctl("install_aliases", str(directory))
        assert result.code == 0
        assert sorted(path.name for path in directory.iterdir()) == sorted(SHELL_TOOLS[1:])
    process = subprocess.run(
        [directory / "rabbitmq-queues", "nosuch"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (process.returncode, "'rabbitmq-queues help'" in process.stderr) == (64, True)
    (directory / "rabbitmqctl").write_text("#!/bin/sh\n", "ascii")
    (directory / "rabbitmq-queues").unlink()
    result = ctl("install_aliases", str(directory))
    assert result.code == 65
    assert "rabbitmqctl is there already" in result.err
    assert not (directory / "rabbitmq-queues").exists()
    assert ctl("install_aliases", str(tmp_path / "nosuch")).code == 65


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("list_q",), ["list_queues"]),
        (("--", "purge_queue", "-p", "s"), ["shop"]),
        (("--", "purge_queue", "-p", "shop", "ord"), ["orders", "orders old"]),
        (("--", "-p", "shop", "dump_log", "orders"), ["orders", "orders old"]),
        (("--", "list_queues", "messages_unm"), ["messages_unmatched"]),
        (("--", "list_queues", "--formatter", "p"), ["pretty_table"]),
        (("--", "list_queues", "--form"), ["--formatter"]),
        (("--", "delete_queue", "--if-"), ["--if-empty", "--if-unused"]),
        (("--", "set_policy", "--apply-to", "q"), ["queues", "quorum_queues"]),
        (("--", "set_permissions", "al"), ["alice"]),
        (("--", "list_user_limits", "--user", ""), ["alice", "bob"]),
        (("--", "help", "list_vh"), ["list_vhost_limits", "list_vhosts"]),
        (("nosuch",), []),
    ],
)
def test_autocomplete_completes_words(broker: FakeBroker, ctl: Ctl, words: tuple[str, ...], found: list[str]) -> None:
    broker.answers["GET", "/api/vhosts"] = (200, {"items": [{"name": "/"}, {"name": "shop"}]})
    broker.answers["GET", "/api/users"] = (200, {"items": [{"name": "alice"}, {"name": "bob"}]})
    queues = [{"name": "orders old"}, {"name": "orders"}, {"name": "a\nb"}, {"name": "mail"}]
    broker.answers["GET", "/api/queues/shop"] = (200, {"items": queues})
    assert ctl("autocomplete", *words) == (0, "".join(f"{each}\n" for each in found), "")


def test_autocomplete_without_broker_completes_no_names(ctl: Ctl) -> None:
    assert ctl("autocomplete", "--", "purge_queue", "o") == (0, "", "")


COMPLETION_SCRIPTS = {
    "bash": """
source {script}
complete -p rabbitmq-queues > /dev/null || exit 3
COMP_WORDS=({words}) COMP_CWORD={last}
_amqpctl
printf "%s\\n" "${{COMPREPLY[@]}}"
""",
    # compadd and _files exist only within a completion.
    "zsh": """
autoload -Uz compinit && compinit -D -u
source {script}
[[ $_comps[rabbitmq-queues] == _amqpctl ]] || exit 3
compadd() {{ print -l -- "${{(@P)2}}" }}
_files() {{ print "a file" }}
words=({words}) CURRENT=$(( {last} + 1 ))
_amqpctl
""",
    "fish": """
source {script}
complete -c {tool} -a '(__amqpctl_complete)'
complete -C "{words}" | string replace -r "\\t.*" ""
true
""",
}
"""Scripts that trigger the completion of a shell. words: the unfinished line; tool: its first word."""


@pytest.mark.slow
@pytest.mark.parametrize("shell", COMPLETION_SCRIPTS)
def test_shell_completes_with_sourced_script(ctl: Ctl, tmp_path: Path, shell: str) -> None:
    """The test completes for an installed alias, which has options and values of its own."""
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed: apt install {shell}")
    assert ctl("install_aliases", str(tmp_path)).code == 0
    script = tmp_path / "completion"
    script.write_text(ctl("completion", shell).out, "utf-8")
    tool = tmp_path / "rabbitmq-queues"
    for line, found in (
        (f"{tool} quorum_st", ["quorum_status"]),
        (f"{tool} add_member --memb", ["--membership"]),
        (f"{tool} --formatter pre", ["pretty_table"]),
    ):
        text = COMPLETION_SCRIPTS[shell].format(script=script, words=line, last=len(line.split()) - 1, tool=tool)
        plain = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
        process = subprocess.run(
            [program, *plain, "-c", text], capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
        )
        assert (process.returncode, process.stdout.split(), process.stderr) == (0, found, ""), line


@pytest.mark.parametrize(
    ("shell", "entered"),
    [
        ("bash", 'IFS=" "; eval "printf %s ${{COMPREPLY[*]}}"'),
        ("zsh", ""),  # zsh and fish quote completions themselves
    ],
)
def test_completed_name_is_one_word_and_no_command(ctl: Ctl, tmp_path: Path, shell: str, entered: str) -> None:
    """A client chooses the names of its queues: a key of the administrator's shell must not execute one."""
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed: apt install {shell}")
    name = "a $(touch owned) `touch owned` 'b"
    tool = tmp_path / "rabbitmq-queues"
    tool.write_text(f"""#!/bin/sh\nprintf '%s\\n' "$@" > words\ncat <<'END'\n{name}\nEND\n""")
    tool.chmod(0o700)
    script = tmp_path / "completion"
    script.write_text(ctl("completion", shell).out, "utf-8")
    words = f"{tool} -p 'my\\ shop' purge_queue 'a\\ '"
    template = COMPLETION_SCRIPTS[shell]
    if entered:
        template = template[: template.index("printf")] + entered
    text = template.format(script=script, words=words, last=4, tool=tool)
    plain = {"bash": ["--norc"], "zsh": ["-f"]}[shell]
    process = subprocess.run(
        [program, *plain, "-c", text], capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
    )
    assert (process.stdout.rstrip("\n"), process.stderr) == (name, "")
    assert (tmp_path / "words").read_text().splitlines() == ["autocomplete", "--", "-p", "my shop", "purge_queue", "a "]
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("shell", COMPLETION_SCRIPTS)
def test_completion_script_names_each_tool(ctl: Ctl, shell: str) -> None:
    script = ctl("completion", shell)
    assert script.code == 0
    assert [name for name in SHELL_TOOLS if name not in script.out] == []


def test_unknown_shell_is_a_usage_error(ctl: Ctl) -> None:
    assert ctl("completion", "tcsh").code == 64
