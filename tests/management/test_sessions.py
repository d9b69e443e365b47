"""Logins of the page: the cookie, what it opens, what ends it, and what other pages cannot do with it."""

from __future__ import annotations

import os
import threading
from hashlib import sha256
from urllib.parse import urlencode

import pytest

from amqpd.auth.internal_backend import NoSuchUser
from amqpd.management import sessions
from amqpd.management.sessions import USER_SESSIONS_MAX, LoginSessions, cookie, token_of

PAGE = {"Amqpd-Page": "1"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
PLACE = "/api/amqpd/session"


class Row:
    def __init__(self, password_hash: str) -> None:
        self.password_hash = password_hash


class Users:
    """As much of a backend as sessions ask."""

    def __init__(self, **hashes: str) -> None:
        self.rows = {name: Row(each) for name, each in hashes.items()}

    def user(self, name: str) -> Row:
        if name not in self.rows:
            raise NoSuchUser(name)
        return self.rows[name]


@pytest.fixture
def told(monkeypatch) -> list[str]:
    """What goes into the log, whatever other tests have made of logging."""
    lines: list[str] = []
    monkeypatch.setattr(sessions.log, "warning", lambda text, *values: lines.append(text % values))
    return lines


class TestSessions:
    def test_it_stands_for_its_user_until_its_time_is_over(self):
        now = [100.0]
        users = Users(ann="1")
        kept = LoginSessions(60.0, None, lambda: now[0])
        token = kept.open("ann", users)
        assert kept.user(token, users) == "ann"
        now[0] += 59.9
        assert kept.user(token, users) == "ann"
        assert kept.remaining_s(token) == pytest.approx(0.1)
        now[0] += 0.1
        assert kept.user(token, users) is None
        assert kept.remaining_s(token) is None

    def test_another_password_or_no_user_ends_it(self):
        users = Users(ann="1", bob="2")
        kept = LoginSessions(60.0)
        tokens = [kept.open(name, users) for name in ("ann", "bob", "bob")]
        users.rows["ann"] = Row("3")
        assert [kept.user(token, users) for token in tokens] == [None, "bob", "bob"]
        users.rows["ann"] = Row("1")
        del users.rows["bob"]
        assert [kept.user(token, users) for token in tokens] == [None, None, None]

    def test_one_users_many_logins_end_his_oldest_and_nobody_elses(self):
        users = Users(ann="1", bob="2")
        kept = LoginSessions(60.0)
        other = kept.open("bob", users)
        tokens = [kept.open("ann", users) for _ in range(USER_SESSIONS_MAX + 2)]
        assert [kept.user(token, users) for token in tokens[:3]] == [None, None, "ann"]
        assert kept.user(other, users) == "bob"
        assert len(set(tokens)) == len(tokens)

    def test_it_outlives_a_restart_and_the_file_opens_nothing(self, tmp_path):
        users = Users(ann="1", bob="2")
        path = tmp_path / "page-sessions.json"
        kept = LoginSessions(60.0, path)
        token, ended = kept.open("ann", users), kept.open("bob", users)
        kept.end_by_digest(sha256(ended.encode()).hexdigest())
        kept.wait_saved()
        assert token not in path.read_text("utf-8")
        assert path.stat().st_mode & 0o777 == 0o600
        again = LoginSessions(60.0, path)
        assert again.user(token, users) == "ann"
        assert again.user(ended, users) is None
        users.rows["ann"] = Row("another")
        assert LoginSessions(60.0, path).user(token, users) is None

    @pytest.mark.parametrize(
        "text", ["", "[]", "{", '{"a": 1}', '{"a": [1, 2]}', '{"a": ["u", "p", "soon"]}', "null", '"x"']
    )
    def test_a_file_that_cannot_be_read_logs_everybody_out(self, tmp_path, text, told):
        path = tmp_path / "page-sessions.json"
        path.write_text(text, "utf-8")
        kept = LoginSessions(60.0, path)
        assert "log in again" in told[0]
        users = Users(ann="1")
        token = kept.open("ann", users)
        kept.wait_saved()
        assert LoginSessions(60.0, path).user(token, users) == "ann"

    def test_a_disk_that_takes_nothing_costs_no_login(self, tmp_path, told):
        users = Users(ann="1")
        kept = LoginSessions(60.0, tmp_path / "none" / "page-sessions.json")
        assert kept.user(kept.open("ann", users), users) == "ann"
        kept.wait_saved()
        assert "will be lost at the next start" in told[0]

    async def test_what_is_made_up_opens_nothing(self):
        kept = LoginSessions(60.0)
        for token in ("", "x" * 43, "x.", "x.y", "x.\xff", f"{'x' * 43}.bm9ib2R5"):
            assert kept.user(token, Users()) is None
            assert await kept.find(token, Users()) is None
            await kept.close(token)

    def test_a_disk_that_is_slow_holds_nobody(self, tmp_path, monkeypatch):
        users, path = Users(ann="1"), tmp_path / "page-sessions.json"
        moves, moving = threading.Event(), threading.Event()

        def wait(*args: object, **kwargs: object) -> int:
            moving.set()
            moves.wait(60)
            return opened(*args, **kwargs)

        opened = os.open
        monkeypatch.setattr(sessions.os, "open", wait)
        kept = LoginSessions(60.0, path)
        tokens = [kept.open("ann", users) for _ in range(3)]
        assert moving.wait(60)
        assert not path.exists()
        moves.set()
        kept.wait_saved()
        again = LoginSessions(60.0, path)
        assert [again.user(token, users) for token in tokens] == ["ann"] * 3


@pytest.mark.parametrize(
    ("host", "origin", "name"),
    [
        ("localhost:15672", "http://localhost:15672", "amqpd-session-15672"),
        ("broker.example", "https://broker.example", "__Host-amqpd-session"),
        ("[::1]:15671", "https://[::1]:15671", "__Host-amqpd-session-15671"),
        ("nonsense:port", "", "amqpd-session"),
    ],
)
def test_the_cookie_is_of_one_port_and_of_https_where_that_is_spoken(host, origin, name):
    headers = {"Host": host, "Origin": origin}
    made = cookie(headers, "TOKEN", 60)
    assert made.startswith(f"{name}=TOKEN; Path=/; HttpOnly; SameSite=Strict; Max-Age=60")
    assert made.endswith("; Secure") == origin.startswith("https")
    assert token_of({"Host": host, "Cookie": f"a=b;{name}=TOKEN; c=d=e"}) == "TOKEN"
    assert token_of({"Host": host, "Cookie": "amqpd-session-1=TOKEN"}) == ""


class TestOverHttp:
    @pytest.fixture
    def anybody(self, api):
        return type(api)(api.broker, "")

    @pytest.fixture
    def user(self, api):
        api("PUT", "/api/users/ann", {"password": "secret", "tags": "monitoring"})
        api("PUT", "/api/permissions/%2F/ann", {"configure": ".*", "write": ".*", "read": ".*"})
        yield "ann"
        api("DELETE", "/api/users/ann", raw=True)

    def login(self, anybody, name="ann", password="secret", headers=None):
        form = urlencode({"username": name, "password": password}).encode()
        return anybody("POST", PLACE, form, {**FORM, **PAGE, **(headers or {})}, raw=True)

    def cookie(self, answer):
        return answer.headers["set-cookie"].partition(";")[0]

    def test_in_and_out(self, anybody, user):
        answer = self.login(anybody)
        assert answer.status == 200
        assert (answer.json["name"], answer.json["tags"]) == ("ann", ["monitoring"])
        given = answer.headers["set-cookie"]
        assert "HttpOnly" in given and "SameSite=Strict" in given
        assert "secret" not in given
        mine = {**PAGE, "Cookie": self.cookie(answer)}
        assert anybody("GET", "/api/whoami", headers=mine).json["name"] == "ann"
        assert 0 < anybody("GET", PLACE, headers=mine).json["ends_in_s"] <= 28800
        gone = anybody("DELETE", PLACE, headers=mine, raw=True)
        assert gone.status == 204
        assert "Max-Age=0" in gone.headers["set-cookie"]
        assert anybody("GET", PLACE, headers=mine, raw=True).status == 401

    def test_a_wrong_password_opens_nothing_and_the_browser_does_not_ask_for_one(self, anybody, user):
        answer = self.login(anybody, password="wrong")
        assert answer.status == 401
        assert answer.json["reason"] == "Login failed"
        assert "set-cookie" not in answer.headers
        assert "www-authenticate" not in answer.headers
        assert "www-authenticate" not in anybody("GET", "/api/overview", headers=PAGE, raw=True).headers
        assert "www-authenticate" in anybody("GET", "/api/overview", raw=True).headers

    def test_who_has_no_tag_gets_no_session(self, api, anybody, user):
        api("PUT", "/api/amqpd/users/ann/tags", {"tags": ""})
        answer = self.login(anybody)
        assert (answer.status, answer.json["reason"]) == (401, "Not management user")
        assert "set-cookie" not in answer.headers

    def test_rights_are_those_of_now(self, api, anybody, user):
        mine = {**PAGE, "Cookie": self.cookie(self.login(anybody))}
        assert anybody("GET", "/api/nodes", headers=mine, raw=True).status == 200
        api("PUT", "/api/amqpd/users/ann/tags", {"tags": "management"})
        assert anybody("GET", "/api/nodes", headers=mine, raw=True).status == 401
        api("PUT", "/api/amqpd/users/ann/password", {"password": "another"})
        answer = anybody("GET", PLACE, headers=mine, raw=True)
        assert (answer.status, answer.json["reason"]) == (401, "Login failed")

    def test_a_change_by_cookie_takes_the_pages_header_and_origin(self, anybody, user):
        mine = {"Cookie": self.cookie(self.login(anybody))}
        place = "/api/queues/%2F/made-by-cookie"
        refused = anybody("PUT", place, {}, mine)
        assert (refused.status, refused.json["error"]) == (403, "forbidden")
        for foreign in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "same-site"}):
            assert anybody("PUT", place, {}, {**mine, **PAGE, **foreign}).status == 403
        assert anybody("PUT", place, {}, {**mine, **PAGE}).status == 201
        assert anybody("DELETE", place, headers={**mine, **PAGE}, raw=True).status == 204

    def test_another_page_can_log_nobody_in(self, anybody, user):
        for foreign in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
            assert self.login(anybody, headers=foreign).status == 403
        form = urlencode({"username": "ann", "password": "secret"}).encode()
        assert anybody("POST", PLACE, form, FORM, raw=True).status == 403

    def test_a_login_in_the_request_counts_more_than_a_cookie(self, api, anybody, user):
        mine = self.cookie(self.login(anybody))
        assert api("GET", "/api/whoami", headers={"Cookie": mine}).json["name"] != "ann"

    def test_an_old_cookie_beside_nothing_is_a_failed_login(self, anybody, user):
        name = self.cookie(self.login(anybody)).partition("=")[0]
        assert anybody("GET", PLACE, headers={**PAGE, "Cookie": f"{name}=made-up"}, raw=True).status == 401
