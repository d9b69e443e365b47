"""Permissions: RabbitMQ's pattern semantics, hostile patterns, topic variables, and the result cache."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpd.auth.patterns import InvalidPattern, compile_search
from amqpd.auth.permissions import Kind, Permissions, compile_permission, compile_topic_pattern
from amqpd.storage.metadata.rows import PermissionRow, TopicPermissionRow


@pytest.mark.parametrize(
    ("pattern", "name", "answer"),
    [
        ("", "", True),
        ("", "q", False),
        ("^$", "", True),
        (".*", "", True),
        (".*", "anything", True),
        ("b", "abc", True),  # unanchored
        ("^b", "abc", False),
        ("^(amq\\.gen.*|amq\\.default)$", "amq.default", True),
        ("^(amq\\.gen.*|amq\\.default)$", "amqxdefault", False),
        ("^é$", "é", True),
        ("^.$", "é", False),  # RabbitMQ matches bytes, and this name has two
        ("^..$", "é", True),
        ("^.$", "\udcff", True),  # a byte that is not UTF-8
        ("(?i)^ABC$", "abc", True),
        ("^a$", "a\n", False),  # PCRE would match
        ("^a$", "x\na", False),
        ("a\x00b", "a\x00b", True),
        ("^(?!amq\\.).*", "orders", True),
        ("^(?!amq\\.).*", "amq.direct", False),
        ("(?i)^(?=.*ok)(?!a)", "BOK", True),
        ("(?i)^(?=.*ok)(?!a)", "AOK", False),
    ],
)
def test_pattern_matches_like_rabbitmq(pattern: str, name: str, answer: bool) -> None:
    assert compile_permission(pattern).matches(name) is answer


@pytest.mark.parametrize(
    "pattern",
    ["(", "*", "a{2000}", "(?=a)", "^(?=a)|b", "^(?!a)" * 11, "(?<!a)b", "(a)\\1", "[", "a" * 4097, "\udcff", "\\"],
)
def test_bad_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidPattern):
        compile_permission(pattern)
    with pytest.raises(InvalidPattern):
        Permissions.check_patterns(PermissionRow("u", "/", ".*", ".*", pattern))
    with pytest.raises(InvalidPattern):
        Permissions.check_patterns(TopicPermissionRow("u", "/", "x", ".*", pattern))


@pytest.mark.parametrize(
    "pattern",
    [
        "(?i)" + "\\pL" * 3,
        "(?s-U:a(?mi:[\\pL\\PN]\\p{Any}))",
        "\\pL" * 65,
        "(?i)\\Q\\E\\\\\\pL\\pL\\pL",
        "(?i)^" + "(?!\\pL)" * 3,
    ],
)
def test_pattern_that_takes_long_to_compile_is_refused(pattern: str) -> None:
    """RE2 takes up to 36 ms for one of these classes if it ignores case, and a pattern has room for a thousand."""
    for compile_text in (compile_permission, compile_search):
        with pytest.raises(InvalidPattern, match="classes"):
            compile_text(pattern)


@pytest.mark.parametrize(
    "pattern", ["(?i)^[\\pL\\pN]+$", "^" + "\\pL" * 3, "(?P<i>\\pL)\\pL\\pL", "(?i)\\\\p\\\\p\\\\pL|abc"]
)
def test_few_classes_of_unicode_are_allowed(pattern: str) -> None:
    assert compile_permission(pattern).matches("abc")


def test_pattern_of_a_request_is_small_and_not_cached() -> None:
    large = "(?:a?){990}" * 10  # 40 ms for a name, and some 100 KiB
    assert compile_permission(large).matches("a")
    with pytest.raises(InvalidPattern, match="too large"):
        compile_search(large)
    assert compile_search("|".join(f"topic-{number:04}" for number in range(350))).matches("topic-0349")
    assert compile_search("^a").matches("abc")
    assert not compile_search("(?i)^(?!A).*").matches("abc")
    half = "(?:a?){990}"  # look-aheads share the memory: ten of them would take ten times as long
    assert compile_search(f"^(?={half})a").matches("a")
    with pytest.raises(InvalidPattern, match="too large"):
        compile_search("^" + f"(?={half})" * 9 + "a")
    assert compile_search("^a") is not compile_search("^a")


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|a)*$", "^(.*a){12}$"])
def test_catastrophic_pattern_is_matched_in_linear_time(pattern: str, processor_s: Callable[..., float]) -> None:
    compiled = compile_permission(pattern)
    name = "a" * 254 + "!"
    assert not compiled.matches(name)
    assert processor_s(lambda: compiled.matches(name)) < 2


@given(pattern=st.text(max_size=12))
def test_any_text_compiles_or_is_refused(pattern: str) -> None:
    with suppress(InvalidPattern):  # any other exception fails the test
        compile_permission(pattern).matches("amq.default")


def test_permissions_are_separate_for_kinds_users_and_vhosts() -> None:
    permissions = Permissions([PermissionRow("u", "/", "^c", "^w", "^r"), PermissionRow("v", "shop", ".*", ".*", ".*")])
    kinds: tuple[Kind, ...] = get_args(Kind)
    assert [kind for kind in kinds if permissions.is_allowed("u", "/", kind, "cq")] == ["configure"]
    assert [kind for kind in kinds if permissions.is_allowed("u", "/", kind, "wq")] == ["write"]
    assert [kind for kind in kinds if permissions.is_allowed("u", "/", kind, "rq")] == ["read"]
    assert not any(permissions.is_allowed("u", "shop", kind, "cwr") for kind in kinds)
    assert not any(permissions.is_allowed("nobody", "/", kind, "cwr") for kind in kinds)
    assert permissions.may_access_vhost("u", "/")
    assert not permissions.may_access_vhost("u", "shop")
    assert permissions.rows("u") == [PermissionRow("u", "/", "^c", "^w", "^r")]
    assert [row.user for row in permissions.rows(vhost="shop")] == ["v"]
    assert len(permissions.rows()) == 2


def test_topic_permissions_expand_variables_and_can_be_removed() -> None:
    row = TopicPermissionRow("bob", "/", "t", "^{username}\\.", "^{vhost}/")
    permissions = Permissions((), [row])
    assert permissions.is_topic_allowed("bob", "/", "t", "write", "bob.x")
    assert not permissions.is_topic_allowed("bob", "/", "t", "write", "alice.x")
    assert permissions.is_topic_allowed("bob", "/", "t", "read", "//x")
    assert not permissions.is_topic_allowed("bob", "/", "t", "read", "bob.x")
    assert permissions.is_topic_allowed("bob", "/", "other exchange", "write", "alice.x")
    assert permissions.is_topic_allowed("bob", "/", "t", "write", "bob.\udcff")
    permissions.put(row._replace(write=""))
    assert not permissions.is_topic_allowed("bob", "/", "t", "write", "bob.x")
    permissions.remove([row])
    assert permissions.is_topic_allowed("bob", "/", "t", "write", "alice.x")
    assert permissions.topic_rows() == []


@given(user=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6), other=st.text(max_size=6))
def test_user_name_is_escaped_in_topic_pattern(user: str, other: str) -> None:
    compiled = compile_topic_pattern("^{username}$", user, "/")
    assert compiled.matches(user)
    try:
        expected = other.encode() == user.encode()
    except UnicodeEncodeError:
        return
    assert compiled.matches(other) is expected


def test_variables_are_not_expanded_twice() -> None:
    assert compile_topic_pattern("^{username}$", "{vhost}", "/").matches("{vhost}")
    assert not compile_topic_pattern("^{username}$", "{vhost}", "/").matches("/")


def test_invalid_stored_pattern_matches_nothing(caplog: pytest.LogCaptureFixture) -> None:
    permissions = Permissions([PermissionRow("u", "/", "(", ".*", "")], [TopicPermissionRow("u", "/", "t", "(", ".*")])
    assert not permissions.is_allowed("u", "/", "configure", "q")
    assert permissions.is_allowed("u", "/", "write", "q")
    assert not permissions.is_topic_allowed("u", "/", "t", "write", "k")
    assert not permissions.is_topic_allowed("u", "/", "t", "read", "k")
    assert caplog.text.count("missing )") == 2


def test_cache_size_is_bounded() -> None:
    permissions = Permissions([PermissionRow("u", "/", "^q1", "", "")], cache_max=10)
    for number in range(50):
        permissions.is_allowed("u", "/", "configure", f"q{number}")
    assert len(permissions._cache) == 10
    assert permissions.is_allowed("u", "/", "configure", "q1")


words = st.text("ab.", max_size=3)
patterns = st.sampled_from(["", "a", "^a", "b$", ".*", "^a.b$", "a|b", "^$"])
users, vhosts = st.sampled_from("uv"), st.sampled_from(["/", "w"])
steps = st.lists(
    st.one_of(
        st.builds(PermissionRow, users, vhosts, patterns, patterns, patterns),
        st.tuples(st.just("remove"), users, vhosts),
        st.tuples(st.just("ask"), users, vhosts, st.sampled_from(get_args(Kind)), words),
    ),
    max_size=60,
)


@given(steps=steps)
def test_cached_results_equal_naive_model(steps: list[object]) -> None:
    permissions = Permissions(cache_max=4)
    model: dict[tuple[str, str], dict[str, str]] = {}
    for step in steps:
        match step:
            case PermissionRow():
                permissions.put(step)
                model[step.user, step.vhost] = step._asdict()
            case ("remove", str(user), str(vhost)):
                permissions.remove([PermissionRow(user, vhost, "", "", "")])
                model.pop((user, vhost), None)
            case ("ask", str(user), str(vhost), kind, str(name)):
                row = model.get((user, vhost))
                expected = row is not None and re.search(row[kind] or r"\A\Z", name) is not None
                assert permissions.is_allowed(user, vhost, kind, name) is expected
