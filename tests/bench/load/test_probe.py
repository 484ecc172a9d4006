"""What is found out of a server before it is loaded, and while it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from support.mock_api import HEAD, Body, MockApi, end, mock_api, said, usual
from support.stepped_http import Step, plain

from penstock.bench.load.connection import Pool
from penstock.bench.load.probe import Prober, Server
from penstock.bench.load.scrape import Scraper
from penstock.bench.load.target import Target, checked_header
from penstock.errors import ConfigError, PenstockError


def probed(api: MockApi, tokens_of: Callable[[str], int] | None = None, **fields: Any) -> Server:
    async def main() -> Server:
        async with mock_api(api):
            target = replace(Target.parse(api.url), **fields)
            pool = Pool(target)
            try:
                return await Prober(target, pool).server(tokens_of)
            finally:
                pool.close()

    return asyncio.run(main())


def test_a_server_is_probed() -> None:
    server = probed(MockApi())
    assert (server.target.model, server.max_model_len) == ("mock", 4096)
    assert server.wordbook.known_by == "usage"
    assert server.wordbook.tokens_per_word == pytest.approx(1)
    assert not server.wordbook.exact
    assert server.round_trip_s < 5
    assert server.tells_usage
    assert probed(MockApi(), lambda text: len(text.split())).wordbook.exact


def test_a_server_that_tokenizes() -> None:
    import json

    strings = ["\u0120" + word for word in ("a", "able", "about")] * 30
    body = json.dumps({"token_strs": strings, "count": 90}).encode()
    book = probed(MockApi(tokenize=plain("200 OK", body))).wordbook
    assert book.known_by == "server"
    assert book.tokens_per_word < 1


def test_usage_calibrates_texts() -> None:
    """Two tokens a word, and ten of a template."""

    def answer(body: Body) -> Sequence[Step]:
        words = len(body["messages"][0]["content"].split())
        return [HEAD, said("x"), end(10 + 2 * words, 1)]

    assert probed(MockApi(answer)).wordbook.tokens_per_word == pytest.approx(2)


def test_a_server_without_ignore_eos() -> None:
    def strict(body: Body) -> Sequence[Step]:
        if "ignore_eos" in body:
            return [plain("400 Bad Request", b'{"error": {"message": "ignore_eos is unknown"}}')]
        return usual(body)

    assert not probed(MockApi(strict)).target.exact_lengths


@pytest.mark.parametrize(
    ("api", "fields", "message"),
    [
        (MockApi(models=plain("200 OK", b'{"data": []}')), {}, "names no model"),
        (
            MockApi(models=plain("200 OK", b'{"data": [{"id": "a"}, {"id": "b"}]}')),
            {},
            "has a, b; name one with --model",
        ),
        (MockApi(models=plain("200 OK", b"<html>")), {}, "does not list models"),
        (MockApi(models=plain("401 No", b'{"detail": "who?"}')), {}, "who.; name the environment"),
        (MockApi(models=plain("301 There", b"", "Location: /x")), {}, "redirects to /x"),
        (MockApi(models=b"junk\r\n\r\n"), {}, "gives no answer"),
        (MockApi(lambda b: [plain("500 Oh", b"broken")]), {}, "first request.*broken"),
    ],
)
def test_servers_that_cannot_be_measured(
    api: MockApi, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(PenstockError, match=message):
        probed(api, **fields)


def test_no_server_at_all() -> None:
    api = MockApi()
    probed(api)  # its port is free again

    async def main() -> None:
        target = Target.parse(api.url)
        await Prober(target, Pool(target)).server(None)

    with pytest.raises(PenstockError, match=r"cannot be reached.*check the URL"):
        asyncio.run(main())


def test_metrics_are_scraped() -> None:
    api = MockApi()

    def text(accepted: int) -> bytes:
        return plain(
            "200 OK",
            b"# HELP x\nx:num_requests_running 1\nx:up 1\n"
            b'x:spec_decode_num_draft_tokens_total{m="a b"} %d\n'
            b'x:spec_decode_num_accepted_tokens_total{m="a b"} %d\n'
            b'x:t_bucket{le="1"} 3\nx:nan NaN\nbroken\n' % (2 * accepted, accepted),
        )

    async def main() -> None:
        async with mock_api(api):
            target = Target.parse(api.url)
            pool = Pool(target)
            scraper = Scraper(target, pool, 1.0)
            await scraper.look(lambda: 0.0)
            assert scraper.result() is None
            for count in (10, 15, 40):
                api.metrics = text(count)
                await scraper.look(lambda count=count: float(count))
            pool.close()
            found = scraper.result()
            assert found is not None
            assert found.times_s == [10, 15, 40]
            assert found.failed == 1
            assert found.draft_acceptance == 0.5
            assert found.constant == {"x:num_requests_running": 1, "x:up": 1}
            assert found.varying['x:spec_decode_num_accepted_tokens_total{m="a b"}'] == [10, 15, 40]
            assert len(found.varying) == 2

    asyncio.run(main())


@pytest.mark.parametrize(
    "url", ["ftp://x", "http://", "http://a:b@c", "http://x:99999", "http://x?y", "http://x/a b"]
)
def test_bad_urls(url: str) -> None:
    with pytest.raises(ConfigError):
        Target.parse(url)


def test_urls() -> None:
    assert Target.parse("localhost:8000").path == "/v1/chat/completions"
    target = Target.parse("https://[::1]/api/v2/chat/completions/")
    assert (target.url, target.path) == ("https://[::1]:443", "/api/v2/chat/completions")


@pytest.mark.parametrize("text", ["x", ": y", "a b: c", "Host: x", "X: \u00e4", "X: a\r\nY: b"])
def test_bad_headers(text: str) -> None:
    with pytest.raises(ConfigError, match="--header"):
        checked_header(text)
