"""Requests that are out of the ordinary, and servers that change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from support.replicas import ADMIN_KEY, FakeReplica, cache_event, routing
from support.stepped_http import Request, Step, plain

from penstock.engine.prompt_keys import prompt_keys
from penstock.errors import ConfigError
from penstock.router import app, probes, prompts, replica
from penstock.router.target import Target

JSON = {"content-type": "application/json"}


def fine(request: Request) -> Sequence[Step]:
    return [plain("200 OK", b"{}")]


@pytest.mark.parametrize(
    "path", ["/v1/../admin/status", "/v1/./x", "/v1/%2e%2e/admin", "/v1/a/%2E%2e%2fadmin", "/v1/.."]
)
def test_paths_lead_nowhere_else(path: str) -> None:
    async def main() -> None:
        there = FakeReplica(fine)
        async with routing(there) as routed:
            host, port = routed.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(f"GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
            assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")
            writer.close()
            assert not there.asked

    asyncio.run(main())


@pytest.mark.parametrize(
    "field",
    ['"user":5', '"seed":"x"', '"stream":1', '"prompt_cache_key":[]', f'"seed":{2**70}', '"x":1'],
)
def test_a_field_of_another_type_is_for_the_server_of_the_model(field: str) -> None:
    async def main() -> None:
        one, two = FakeReplica(fine, ("a",)), FakeReplica(fine, ("b",))
        async with routing(one, two) as routed:
            for model in "ababb":
                body = f'{{"model":"{model}",{field}}}'
                answer = await routed.http.post("/v1/completions", content=body, headers=JSON)
                assert answer.status_code == 200
            assert [each.json["model"] for each in one.asked] == ["a", "a"]
            assert [each.json["model"] for each in two.asked] == ["b", "b", "b"]
            assert two.asked[0].body == f'{{"model":"b",{field}}}'.encode()

    asyncio.run(main())


def test_the_card_of_a_model_is_its_servers() -> None:
    async def main() -> None:
        one, two = FakeReplica(fine, ("a/b",)), FakeReplica(fine, ("c",))
        async with routing(one, two) as routed:
            for name in ("c", "a%2Fb", "a/b", "c", "c"):
                assert (await routed.http.get(f"/v1/models/{name}")).status_code == 200
            assert [each.path for each in one.asked] == ["/v1/models/a%2Fb", "/v1/models/a/b"]
            assert {each.path for each in two.asked} == {"/v1/models/c"}
            answer = await routed.http.get("/v1/models/d")
            assert answer.status_code == 404
            assert answer.json()["error"]["code"] == "model_not_found"

    asyncio.run(main())


def test_redirects_stay_at_the_router() -> None:
    async def main() -> None:
        there = FakeReplica(fine)
        async with routing(there) as routed:
            for location, passed in (
                (f"{there.url}/v1/completions", "/v1/completions"),
                ("/v1/x?y", "/v1/x?y"),
                ("http://elsewhere/v1/x", "http://elsewhere/v1/x"),
                (f"{there.url}0/v1/x", f"{there.url}0/v1/x"),
                ("//elsewhere/x", "//elsewhere/x"),
            ):
                there.answer = lambda request, to=location: [  # type: ignore[misc]
                    plain("307 X", b"", f"Location: {to}")
                ]
                answer = await routed.http.post("/v1/completions/", json={})
                assert answer.headers["location"] == passed
            assert (await routed.http.get("/v1")).status_code == 404

    asyncio.run(main())


def test_a_server_below_a_path() -> None:
    async def main() -> None:
        there = FakeReplica(fine)
        real = there._steps
        paths = []

        def steps(request: Request) -> Sequence[Step]:
            paths.append(request.path)
            request.path = request.path.removeprefix("/below")
            return real(request)

        there._steps = steps  # type: ignore[method-assign]
        await there.start()
        there.url += "/below/v1/"
        there.answer = lambda request: [plain("307 X", b"", f"Location: {there.url}x")]
        async with routing(there) as routed:
            answer = await routed.complete(prompt="a")
            assert answer.headers["location"] == "/v1/x"
            assert all(path.startswith("/below/") for path in paths)
            assert "/below/v1/completions" in paths

    asyncio.run(main())


@pytest.mark.parametrize("offered", ["websocket", "h2c"])
def test_another_protocol_is_not_taken_up(offered: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        there = FakeReplica(fine)
        async with routing(there) as routed:
            headers = {"connection": "upgrade", "upgrade": offered, "x-a": "b"}
            answer = await routed.http.get("/v1/realtime", headers=headers)
            assert answer.status_code == 200
            assert "upgrade" not in there.asked[0].headers
            assert there.asked[0].headers["x-a"] == "b"

    asyncio.run(main())
    assert "uvicorn" not in caplog.text


def test_a_server_that_keeps_the_router_waiting_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replica, "LATE_S", 0.02)
    monkeypatch.setattr(prompts, "LATE_S", 0.02)

    async def main() -> None:
        def ours() -> FakeReplica:
            events: asyncio.Queue[bytes] = asyncio.Queue()
            events.put_nowait(cache_event("e", None, 0, []))
            return FakeReplica(fine, is_ours=True, events=events)

        hanging, good = ours(), ours()
        hanging.before_keys = [30.0]
        async with routing(hanging, good, admin_key=ADMIN_KEY) as routed:
            while not all(each.synchronized for each in routed.fleet.replicas):
                await asyncio.sleep(0.001)
            for number in range(6):
                prompt = list(range(number, number + 320))
                assert (await routed.complete(prompt=prompt)).status_code == 200
            # It was asked once, by then another one was, and no request went to it any more.
            assert (hanging.keys_asked, good.keys_asked) == (1, 1)
            assert len(hanging.asked) + len(good.asked) == 6
            assert len(good.asked) >= 5
            metrics = (await routed.http.get("/metrics")).text
            assert "penstock_router:key_queries_failed_total 0.0" in metrics
            await routed.look()
            assert not routed.fleet.replicas[0].is_late

    asyncio.run(main())


def test_keys_of_a_prompt_that_cannot_be_are_asked_for_once() -> None:
    async def main() -> None:
        events = [asyncio.Queue[bytes]() for _ in range(3)]
        for each in events:
            each.put_nowait(cache_event("e", None, 0, []))
        replicas = [FakeReplica(fine, is_ours=True, events=each) for each in events]
        for each in replicas:
            each.before_keys = [plain("400 X", b"{}"), 0]
        async with routing(*replicas, admin_key=ADMIN_KEY) as routed:
            while not all(each.synchronized for each in routed.fleet.replicas):
                await asyncio.sleep(0.001)
            assert (await routed.complete(prompt=[1])).status_code == 200
            assert sum(each.keys_asked for each in replicas) == 1

    asyncio.run(main())


def test_models_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "_AGAIN_S", 0.0)

    async def main() -> None:
        one, two = FakeReplica(fine, ("a",)), FakeReplica(fine, ("b",))
        async with routing(one, two) as routed:
            assert (await routed.complete(model="c")).status_code == 404
            two.models = ("c",)
            await routed.look()
            assert (await routed.complete(model="c")).status_code == 200
            assert (await routed.complete(model="b")).status_code == 404

    asyncio.run(main())


def test_another_kind_of_server_at_the_same_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "_AGAIN_S", 0.0)

    async def main() -> None:
        keys = prompt_keys(list(range(96)))
        there = FakeReplica(fine, is_ours=True, events=asyncio.Queue())
        assert there.events is not None
        async with routing(there, admin_key=ADMIN_KEY) as routed:
            there.events.put_nowait(cache_event("e", None, 3, keys))
            index = routed.fleet.router.index
            while len(index) != 3:
                await asyncio.sleep(0.001)
            await routed.look()
            assert len(index) == 3
            assert there.follows == ["/admin/cache/events"]  # it is followed on
            there.is_ours = False
            await routed.look()
            assert len(index) == 0
            assert not routed.fleet.replicas[0].synchronized
            there.is_ours = True
            await routed.look()
            there.events.put_nowait(cache_event("f", None, 1, keys[:1]))
            while len(index) != 1:
                await asyncio.sleep(0.001)
            assert there.follows == ["/admin/cache/events"] * 2

    asyncio.run(main())


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("HTTP://LocalHost:80/v1/", "http://localhost"),
        ("a:8000", "http://a:8000"),
        ("https://a:443/b/v1", "https://a/b"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("http://b\u00fccher.example", "http://xn--bcher-kva.example"),
    ],
)
def test_one_server_has_one_name(url: str, shown: str) -> None:
    target = Target.of(url)
    assert target.url == shown
    assert Target.of(shown) == target
    assert shown == f"{'https' if target.tls else 'http'}://{target.authority}{target.prefix}"


@pytest.mark.parametrize("url", ["http://a/#b", "http://a?b", "http://u:p@a", "http://a b", "a..b"])
def test_what_is_no_server(url: str) -> None:
    with pytest.raises(ConfigError):
        Target.of(url)


def test_heads_and_questions_of_browsers() -> None:
    async def main() -> None:
        there = FakeReplica(lambda request: [plain("200 OK", b'{"a":1}')])
        async with routing(there) as routed:
            answer = await routed.http.head("/v1/files")
            assert (answer.status_code, answer.content) == (200, b"")
            assert answer.headers["content-length"] == "7"
            assert there.asked[0].method == "GET"
            assert (await routed.http.options("/v1/completions")).status_code == 405
            origin = {"origin": "http://evil.example"}
            answer = await routed.http.post("/v1/completions", json={}, headers=origin)
            assert answer.status_code == 403
            assert len(there.asked) == 1

    asyncio.run(main())


def test_pages_that_may_ask() -> None:
    async def main() -> None:
        there = FakeReplica(fine)
        async with routing(there, cors_origins=("http://page.example",)) as routed:
            for origin, status in (("http://page.example", 200), ("http://evil.example", 403)):
                headers = {"origin": origin}
                answer = await routed.http.post("/v1/completions", json={}, headers=headers)
                assert answer.status_code == status
            assert "origin" not in there.asked[0].headers
            asks = {"access-control-request-method": "DELETE"}
            headers = {"origin": "http://page.example", **asks}
            answer = await routed.http.options("/v1/files/a", headers=headers)
            assert answer.status_code == 200
            assert answer.headers["access-control-allow-origin"] == "http://page.example"

    asyncio.run(main())


def test_a_body_that_comes_in_chunks() -> None:
    async def main() -> None:
        there = FakeReplica(fine)
        async with routing(there) as routed:

            async def pieces() -> AsyncIterator[bytes]:
                for piece in (b'{"mod', b'el":"m"', b"}"):
                    yield piece

            answer = await routed.http.post("/v1/completions", content=pieces(), headers=JSON)
            assert answer.status_code == 200
            assert there.asked[0].body == b'{"model":"m"}'
            assert there.asked[0].headers["content-length"] == "13"

    asyncio.run(main())


def test_bodies_take_memory_until_they_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "BODIES_BYTES", 300_000)

    async def main() -> None:
        held = asyncio.Event()
        there = FakeReplica(lambda request: [held.is_set, plain("200 OK", b"{}")])
        async with routing(there, max_body_bytes=200_000) as routed:
            prompt = "a" * 180_000
            first = asyncio.ensure_future(routed.complete(prompt=prompt))
            while not there.asked:
                await asyncio.sleep(0.001)
            assert (await routed.complete(prompt=prompt)).json()["error"]["code"] == "bodies_full"
            held.set()
            assert (await first).status_code == 200
            for _ in range(3):
                assert (await routed.complete(prompt=prompt)).status_code == 200

    asyncio.run(main())
