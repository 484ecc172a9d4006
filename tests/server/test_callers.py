"""Keys with properties, and what they let a request ask for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.http_client import Server, running

from penstock.errors import ConfigError
from penstock.server.callers import Caller, address_name
from penstock.server.errors import ApiError
from penstock.server.keys import Keys, fingerprint

BODIES = {
    "/v1/completions": {"prompt": "a", "max_tokens": 1},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1},
    "/v1/responses": {"input": "a", "max_output_tokens": 1},
    "/v1/embeddings": {"input": "a"},
}


def read(text: str, folder: Path, **options: int) -> Keys:
    file = folder / "keys"
    file.write_text(text)
    return Keys.read(file, None, {}, **options)


@dataclass(frozen=True)
class Body:
    priority: int | None = None
    cache_salt: str | None = None
    safety_identifier: str | None = None
    user: str | None = None


def test_properties_of_keys(tmp_path: Path) -> None:
    keys = read("plain\nheavy weight=2.5\n# none\n both priority=-5  weight=3\n", tmp_path)
    assert keys.caller("plain") == Caller(fingerprint("plain"), 1.0, 0)
    assert keys.caller("heavy") == Caller(fingerprint("heavy"), 2.5, 0)
    assert keys.caller("both") == Caller(fingerprint("both"), 3.0, -5)
    assert keys.best_of_all == -5
    assert not keys.is_user("weight=2.5")
    assert read("plain\nbound priority=0", tmp_path, best_priority=-3).caller("plain") == Caller(
        fingerprint("plain"), 1.0, -3
    )
    assert read("bound priority=0", tmp_path, best_priority=-3).caller("bound").best_priority == 0
    given = Keys.read(None, None, {"PENSTOCK_API_KEYS": "a weight=2, b priority=-1"})
    assert [given.caller("a").weight, given.caller("b").best_priority] == [2.0, -1]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("secret weight", "weight=NUMBER and priority=NUMBER"),
        ("secret wieght=2", "weight=NUMBER and priority=NUMBER"),
        ("secret weight=0", "from 0.01 to 1000"),
        ("secret weight=-1", "from 0.01 to 1000"),
        ("secret weight=nan", "from 0.01 to 1000"),
        ("secret weight=1e3", "from 0.01 to 1000"),
        ("secret weight=2000", "from 0.01 to 1000"),
        ("secret weight=", "from 0.01 to 1000"),
        ("secret weight=1 weight=1", "weight is given twice"),
        ("secret priority=5", "to 0"),
        ("secret priority=-5..5", "to 0"),
        ("secret priority=-99999999999", "to 0"),
        ("secret priority=-0", "to 0"),
    ],
)
def test_properties_that_cannot_be_meant(tmp_path: Path, line: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(f"fine\n\n{line}\n", tmp_path)
    assert words in str(caught.value)
    assert "keys, line 3" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_key_is_one_key(tmp_path: Path) -> None:
    assert len(read("a\na\n", tmp_path).users) == 1
    with pytest.raises(ConfigError, match="given twice"):
        read("a\na weight=2\n", tmp_path)


def test_what_a_caller_may_ask_for() -> None:
    caller = Caller("k", 2.0, -2)
    for priority in (None, 0, -2, 7):
        options = caller.options(Body(priority))
        assert options.priority == (priority or 0)
    with pytest.raises(ApiError) as caught:
        caller.options(Body(-3))
    assert caught.value.status == 403
    assert caught.value.body.error.param == "priority"
    assert Caller("k", 1.0, None).options(Body(-(2**62), "salt")).cache_salt == "salt"
    one, two = (caller.options(Body(user=user)).tenant for user in ("one", "two" * 10**6))
    assert (one.name, one.weight) == (two.name, two.weight) == ("k", 2.0)
    assert one.user != two.user
    assert len(two.user) == 16
    assert caller.options(Body(user="")).tenant.user == ""


def test_addresses() -> None:
    assert address_name(("10.0.0.1", 5)) == address_name(("10.0.0.1", 6)) == "10.0.0.1"
    assert address_name(("::ffff:10.0.0.1", 5)) == "10.0.0.1"
    assert address_name(("2001:db8::1", 5)) == address_name(("2001:db8::2", 5))
    assert address_name(("2001:db8::1", 5)) != address_name(("2001:db8:0:1::1", 5))
    assert address_name(None) == ""


@pytest.fixture(scope="module")
def locked(tokenizer_folder: Path) -> Iterator[Server]:
    keys = "plain,good priority=-5 weight=2"
    with running(tokenizer_folder, 1, api_keys=keys) as server:
        yield server


@pytest.mark.parametrize("path", BODIES)
def test_a_better_priority_than_a_key_allows_is_refused(locked: Server, path: str) -> None:
    def asked(key: str, priority: int | None) -> tuple[int, str | None]:
        answer = locked.http.post(
            path,
            json={"model": "fake", "priority": priority, **BODIES[path]},
            headers={"authorization": f"Bearer {key}"},
        )
        return answer.status_code, (answer.json().get("error") or {}).get("param")

    assert asked("plain", -1) == (403, "priority")
    assert asked("good", -6) == (403, "priority")
    for key, priority in (
        ("plain", None),
        ("plain", 3),
        ("good", -5),
        ("good", 9),
        ("admin-key", -100),
    ):
        assert asked(key, priority) == (200, None)


def test_without_keys_only_worse_ones_may_be_asked_for(server: Server) -> None:
    body = {"model": "fake", "prompt": "a", "max_tokens": 1}
    assert server.post("/v1/completions", {**body, "priority": -1}).status_code == 403
    assert server.post("/v1/completions", {**body, "priority": 1}).status_code == 200


def test_one_key_cannot_fill_the_room_for_another(tokenizer_folder: Path) -> None:
    body = {"model": "fake", "prompt": "a", "max_tokens": 400, "stream": True}

    with running(tokenizer_folder, 50, api_keys="crowd,other", max_waiting=0) as server:

        def status(key: str, n: int, **fields: object) -> int:
            headers = {"authorization": f"Bearer {key}"}
            return server.http.post(
                "/v1/completions", json={**body, "n": n, **fields}, headers=headers
            ).status_code

        room = server.status()["engine"]["max_sequences"]
        headers = {"authorization": "Bearer crowd"}
        with (
            server.http.stream(
                "POST", "/v1/completions", json={**body, "n": room // 2}, headers=headers
            ) as first,
            server.http.stream(
                "POST", "/v1/completions", json={**body, "n": room - room // 2}, headers=headers
            ) as second,
        ):
            assert first.status_code == second.status_code == 200
            assert status("crowd", 1) == 429
            assert status("other", 1, max_tokens=1, stream=False) == 200
