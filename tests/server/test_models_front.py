"""The application of a server of several models, whose models only say what they were asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

import httpx
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send
from support.waiting import PATIENCE_S

from penstock.config import EngineConfig
from penstock.errors import ModelError
from penstock.interface.loading import ProgressCallback
from penstock.repository.catalogue import Catalogue, ModelEntry
from penstock.repository.loaded import Lease
from penstock.repository.repository import Repository
from penstock.server.keys import Keys
from penstock.server.models.admin import Reloader
from penstock.server.models.app import build_models_app
from penstock.server.models.served import ModelOptions, ServedModel
from penstock.server.open_requests import OpenRequests
from penstock.server.options import ServerOptions

ADMIN = {"authorization": "Bearer admin-key"}


@dataclass
class Echo:
    """A model that answers with what it was asked; it waits for ``gate`` before it does."""

    name: str
    gate: asyncio.Event
    takes_bytes: int = 60
    closed: bool = False

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        body = await request.body()
        await self.gate.wait()
        assert not self.closed
        said = {"by": self.name, "path": scope["path"], "body": body.decode()}
        await JSONResponse(said)(scope, receive, send)

    async def lost(self) -> None:
        await asyncio.Event().wait()

    async def aclose(self) -> None:
        self.closed = True


class Echoes:
    def __init__(self) -> None:
        self.loading, self.answering = asyncio.Event(), asyncio.Event()
        self.loading.set()
        self.answering.set()

    async def size(self, entry: ModelEntry) -> int:
        return entry.memory_bytes or 60

    async def load(self, entry: ModelEntry, progress: ProgressCallback) -> Echo:
        progress("weights", 0.5, 10)
        await self.loading.wait()
        if entry.name == "broken":
            raise ModelError("its file is cut off")
        return Echo(entry.name, self.answering)


def entry(
    name: str, *aliases: str, memory: int = 60, version: str | None = None, lora: str = ""
) -> ModelEntry:
    adapters = (f"{lora}=/adapters/{lora}",) if lora else ()
    config = EngineConfig(model=f"/models/{name}", served_model_name=name, lora_modules=adapters)
    return ModelEntry(config, aliases, version, memory)


CATALOGUE = Catalogue(
    (
        entry("own/a", "gpt-x"),
        entry("b:1", version="1"),
        entry("b:2", "b", version="2"),
        entry("huge", memory=101),
        entry("broken", memory=1, lora="sql"),
    )
)


@dataclass
class Site:
    http: httpx.AsyncClient
    repository: Repository[ServedModel]
    models: Echoes
    requests: OpenRequests

    async def post(self, path: str, body: object, **headers: str) -> tuple[int, Any]:
        answer = await self.http.post(path, json=body, headers=headers)
        return answer.status_code, answer.json()


def on_site(body: Callable[[Site], Awaitable[None]]) -> None:
    async def main() -> None:
        models, requests = Echoes(), OpenRequests()
        options = ServerOptions(keys=Keys.read(None, None, {"PENSTOCK_ADMIN_KEY": "admin-key"}))
        repository: Repository[ServedModel] = Repository(CATALOGUE, cast(Any, models), 100)
        app = build_models_app(
            repository,
            ModelOptions(requests, options),
            Reloader(repository, lambda: Catalogue((entry("own/a", "gpt-x"),))),
        )
        transport = httpx.ASGITransport(app, raise_app_exceptions=True)
        try:
            async with (
                asyncio.timeout(PATIENCE_S),
                httpx.AsyncClient(transport=transport, base_url="http://localhost") as http,
            ):
                await body(Site(http, repository, models, requests))
                repository.check()
                assert not any(status.open for status in repository.statuses())
        finally:
            await repository.aclose()

    asyncio.run(main())


def test_an_adapter_stands_for_its_model_in_bodies_alone() -> None:
    async def body(site: Site) -> None:
        status, said = await site.post("/v1/completions", {"model": "sql"})
        assert (status, said["error"]["code"]) == (503, "model_load_failed")
        assert "'broken'" in said["error"]["message"]
        assert (await site.post("/v2/models/sql/infer", {"inputs": []}))[0] == 404
        listed = (await site.http.get("/v1/models")).json()["data"]
        (card,) = [each for each in listed if each.get("parent")]
        assert (card["id"], card["root"], card["parent"]) == ("sql", "/adapters/sql", "broken")
        alone = (await site.http.get("/v1/models/sql")).json()
        assert (alone["id"], alone["parent"]) == ("sql", "broken")

    on_site(body)


def test_a_request_is_handed_to_its_model_as_it_came() -> None:
    async def body(site: Site) -> None:
        for path, asked, model in (
            ("/v1/chat/completions", "gpt-x", "own/a"),
            ("/v1/messages", "b", "b:2"),
            ("/api/chat", "b:latest", "b:2"),
            ("/completion", "b:1", "b:1"),
            ("/", "own/a", "own/a"),
        ):
            sent = {"model": asked, "messages": [1]}
            status, said = await site.post(path, sent)
            assert (status, said["by"], said["path"]) == (200, model, path)
            assert json.loads(said["body"]) == sent
        status, said = await site.post("/v2/models/own/a/infer", {"inputs": []})
        assert (said["by"], said["path"]) == ("own/a", "/v2/models/own/a/infer")
        status, said = await site.post("/v2/models/b/versions/1/infer", {"inputs": []})
        assert (said["by"], said["path"]) == ("b:1", "/v2/models/b:1/infer")
        answer = await site.http.get("/props?model=gpt-x")
        assert answer.json() == {"by": "own/a", "path": "/props", "body": ""}
        assert site.repository.held_bytes <= 100

    on_site(body)


def test_what_gets_no_model() -> None:
    async def body(site: Site) -> None:
        path = "/v1/completions"
        status, said = await site.post(path, {"model": "nobody"})
        assert (status, said["error"]["code"]) == (404, "model_not_found")
        status, said = await site.post(path, {})
        assert (status, said["error"]["code"]) == (400, "model_required")
        assert "own/a, b:1, b:2, huge, broken" in said["error"]["message"]
        status, said = await site.post(path, {"model": "huge"})
        assert (status, said["error"]["code"]) == (507, "model_too_large")
        for _ in range(2):
            status, said = await site.post("/api/chat", {"model": "broken"})
            assert (status, "its file is cut off" in said["error"]) == (503, True)
        status, said = await site.post("/v1/nothing", {"model": "b"})
        assert (status, said["error"]["message"]) == (404, "there is nothing at /v1/nothing")
        assert (await site.http.get("/slots?model=b")).status_code == 503
        assert (await site.http.post("/admin/models/reload")).status_code == 401
        site.requests.draining = "the server is being drained"
        status, said = await site.post(path, {"model": "b"})
        assert (status, said["error"]["code"]) == (503, "draining")

    on_site(body)


def test_a_model_stays_to_the_end_of_an_answer_and_for_its_keep_alive() -> None:
    async def body(site: Site) -> None:
        site.models.answering.clear()
        answering = asyncio.ensure_future(
            site.post("/api/chat", {"model": "own/a", "keep_alive": 0})
        )
        while not site.repository.status("own/a").open:
            await asyncio.sleep(0)
        waiting = asyncio.ensure_future(site.post("/v1/completions", {"model": "b"}))
        while site.repository.status("b:2").state != "queued":
            await asyncio.sleep(0)
        site.models.answering.set()
        assert (await answering)[0] == (await waiting)[0] == 200
        assert site.repository.status("own/a").state == "unloaded"
        assert (await site.post("/api/chat", {"model": "b", "keep_alive": "x"}))[0] == 400

    on_site(body)


def test_a_model_that_is_taken_out_as_its_request_comes_in_goes() -> None:
    async def body(site: Site) -> None:
        repository = site.repository
        enter = repository.enter

        async def entering(name: str) -> Lease[ServedModel]:
            lease = await enter(name)
            repository.reload(Catalogue((entry("b"),)))
            return lease

        repository.enter = entering  # type: ignore[method-assign]
        status, answer = await site.post("/api/chat", {"model": "own/a", "keep_alive": 5})
        assert (status, answer["error"]) == (404, "there is no model 'own/a'")
        while repository.held_bytes:
            await asyncio.sleep(0)

    on_site(body)


def test_loading_is_seen() -> None:
    async def body(site: Site) -> None:
        site.models.loading.clear()
        waiting = asyncio.ensure_future(site.post("/v1/completions", {"model": "b"}))
        while not site.repository.status("b:2").phase.startswith("weights"):
            await asyncio.sleep(0)
        ready = await site.http.get("/ready")
        assert ready.json()["models"]["b:2"] == "loading: weights (50%)"
        metrics = (await site.http.get("/metrics")).text
        assert 'penstock:model_state{model_name="b:2",state="loading"} 1.0' in metrics
        assert 'penstock:model_requests_waiting{model_name="b:2"} 1.0' in metrics
        listed = (await site.http.get("/v1/models/b")).json()
        assert (listed["status"]["value"], listed["aliases"]) == ("loading", ["b"])
        index = (await site.http.post("/v2/repository/index")).json()
        assert index[2] == {
            "name": "b",
            "version": "2",
            "state": "LOADING",
            "reason": "weights (50%)",
        }
        status, said = await site.post(
            "/v1/completions", {"model": "b"}, **{"x-request-timeout": "0.01"}
        )
        assert (status, "not loaded yet (weights (50%))" in said["error"]["message"]) == (504, True)
        site.models.loading.set()
        assert (await waiting)[0] == 200

    on_site(body)


def test_another_catalogue_for_the_administrator() -> None:
    async def body(site: Site) -> None:
        answer = await site.http.post("/admin/models/reload", headers=ADMIN)
        assert answer.json() == {"changed": ["b:1", "b:2", "huge", "broken"]}
        models = (await site.http.get("/admin/models", headers=ADMIN)).json()["models"]
        assert [each["name"] for each in models] == ["own/a"]
        _, said = await site.post("/v1/completions", {})
        assert said["by"] == "own/a"  # the only one is meant by who names none

    on_site(body)
