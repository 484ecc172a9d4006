"""A server of several models, whose engines are real but for their cores: names, loads and unloads
in all dialects."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.fake_core import NO_START, WAIT
from support.http_client import Server, running
from support.http_server import ADMIN_KEY
from support.json_schema import fault
from support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.slow  # engines are started and ended

CATALOGUE = f"""
default = "small"
[[models]]
name = "small"
model = "{{folder}}"
aliases = ["gpt-x"]
memory = 400_000_000
[[models]]
name = "many"
versions = {{{{ 1 = "{{folder}}", 2 = "{{folder}}" }}}}
memory = 300_000_000
[[models]]
name = "large"
model = "{{folder}}"
memory = 900_000_000
[[models]]
name = "huge"
model = "{{folder}}"
memory = 1_001_000_000
[[models]]
name = "broken"
model = "{{folder}}"
memory = 1_000_000
options = {{{{ max_num_seqs = {NO_START} }}}}
"""

TURNS = 4
"""How many engines may start one after the other before a request has its turn."""


@pytest.fixture(scope="module")
def catalogue(tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "models.toml"
    path.write_text(CATALOGUE.format(folder=tokenizer_folder))
    return path


@pytest.fixture(scope="module")
def served(tokenizer_folder: Path, catalogue: Path) -> Iterator[Server]:
    with running(tokenizer_folder, 0, models=str(catalogue)) as server:
        yield server


def text(served: Server, model: str | None, prompt: str = "ab", **fields: Any) -> str:
    named = {} if model is None else {"model": model}
    body = {**named, "prompt": prompt, "max_tokens": 4, **fields}
    answer = served.http.post("/v1/completions", json=body, timeout=TURNS * PATIENCE_S)
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == (model or "small")
    found: str = answer.json()["choices"][0]["text"]
    return found


def states(served: Server) -> dict[str, str]:
    return {each["name"]: each["state"] for each in served.admin("models").json()["models"]}


def memory(served: Server) -> int:
    """Bytes of all models that are loaded."""
    found: int = served.admin("models").json()["memory_bytes"]
    return found


def refused(answer: Any, status: int) -> str:
    assert answer.status_code == status, answer.text
    message: str = answer.json()["error"]["message"]
    return message


def test_each_name_has_its_model_and_those_that_do_not_fit_take_turns(served: Server) -> None:
    said = text(served, "small")
    assert [text(served, name) for name in ("gpt-x", "many", "many:1", None)] == [said] * 4
    assert states(served)["many:1"] == states(served)["many:2"] == "ready"
    assert text(served, "large") == said
    found = states(served)
    assert (found["small"], found["many:2"], found["large"]) == ("unloaded", "unloaded", "ready")
    assert memory(served) == 900_000_000


def test_all_at_once_lose_no_request(served: Server) -> None:
    names = ["small", "large", "many:1", "gpt-x", "many"] * 6
    alone = text(served, "small", "xy")
    with ThreadPoolExecutor(10) as pool:
        assert list(pool.map(lambda name: text(served, name, "xy"), names)) == [alone] * len(names)
    assert memory(served) <= 1_000_000_000


def test_a_stream_keeps_its_model(served: Server) -> None:
    client = served.client()
    stream = client.completions.create(
        model="small", prompt="ab", max_tokens=20, stream=True, extra_body={"cache_salt": ""}
    )
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(text, served, "large")
        assert "".join(part.choices[0].text for part in stream)
        assert other.result()


def test_what_is_not_served(served: Server) -> None:
    ask = {"prompt": "ab", "max_tokens": 2}
    message = refused(served.post("/v1/completions", {**ask, "model": "nobody"}), 404)
    assert message == (
        "the model 'nobody' does not exist here; there are small, many:1, many:2, large, huge, "
        "broken"
    )
    message = refused(served.post("/v1/completions", {**ask, "model": "huge"}), 507)
    assert message.startswith(
        "the model 'huge' needs 1,001,000,000 bytes of memory, and all models "
    )
    assert "may take 1,000,000,000;" in message
    for _ in range(2):
        answer = served.post("/v1/completions", {**ask, "model": "broken"})
        assert refused(answer, 503).endswith(f"max_num_seqs is {NO_START}; lower it")
        assert answer.headers["retry-after"]
    assert refused(served.post("/v1/completions", {**ask, "model": 3}), 400) == (
        "model must be a text"
    )
    assert "no JSON object" in refused(served.post("/v1/completions", b"{"), 400)
    assert refused(served.post("/v1/nothing", ask), 404) == "there is nothing at /v1/nothing"
    message = refused(served.post("/v1/completions", {**ask, "model": "small", "n": -1}), 400)
    assert "n" in message  # the model's own


def test_names_are_the_same_in_every_dialect(served: Server) -> None:
    for name in ("small", "gpt-x", "small:latest", "gpt-x:latest"):
        asked = {"model": name, "prompt": "ab", "max_tokens": 3}
        answer = served.post("/v1/completions", asked)
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == name
        asked = {"model": name, "prompt": "ab", "n_predict": 3}
        assert served.post("/completion", asked).status_code == 200
        asked = {"model": name, "messages": [{"role": "user", "content": "a"}], "max_tokens": 3}
        assert served.post("/v1/messages", asked).status_code == 200


def test_the_lists(served: Server) -> None:
    text(served, "small")
    listed = {each["id"]: each for each in served.http.get("/v1/models").json()["data"]}
    assert list(listed) == ["small", "many:1", "many:2", "large", "huge", "broken"]
    status = listed["small"]["status"]
    assert (status["value"], status["state"], status["memory_bytes"]) == (
        "loaded",
        "ready",
        400_000_000,
    )
    assert listed["small"]["max_model_len"] == 512
    assert listed["small"]["aliases"] == ["gpt-x"]
    assert listed["huge"]["status"]["value"] == "unloaded"
    assert served.http.get("/v1/models/gpt-x").json()["id"] == "small"
    assert refused(served.http.get("/v1/models/nobody"), 404)
    assert served.client().models.retrieve("large").id == "large"


def test_ollamas_clients(served: Server) -> None:
    ask = {"model": "small:latest", "prompt": "ab", "stream": False, "options": {"num_predict": 3}}
    answer = served.post("/api/generate", {**ask, "keep_alive": "5m"})
    assert answer.json()["done_reason"] == "length"
    assert "x-penstock-ignored" not in answer.headers
    names = [each["name"] for each in served.http.get("/api/tags").json()["models"]]
    assert names == ["small", "many:1", "many:2", "large", "huge", "broken"]
    loaded = {each["name"]: each for each in served.http.get("/api/ps").json()["models"]}
    assert loaded["small"]["size"] == 400_000_000
    assert loaded["small"]["expires_at"] < "9999"
    assert "completion" in served.post("/api/show", {"model": "many"}).json()["capabilities"]
    assert served.post("/api/generate", {"model": "small", "keep_alive": 0}).status_code == 200
    until(lambda: states(served)["small"] == "unloaded", PATIENCE_S, "unloading small")
    answer = served.post("/api/generate", {**ask, "keep_alive": "soon"})
    assert answer.status_code == 400
    assert "not a time: 'soon'" in answer.json()["error"]
    assert served.post("/api/chat", {"model": "nobody", "messages": []}).json()["error"]


def test_tritons_clients(served: Server) -> None:
    http = served.http
    index = served.post("/v2/repository/index", {}).json()
    assert [(each["name"], each["version"]) for each in index] == [
        *(("small", "1"), ("many", "1"), ("many", "2")),
        *(("large", "1"), ("huge", "1"), ("broken", "1")),
    ]
    assert http.post("/v2/repository/models/many/load").json()["state"] == "READY"
    assert http.get("/v2/models/many/ready").json() == {"name": "many", "ready": True}
    assert http.get("/v2/models/many/versions/2/ready").status_code == 200
    ready = served.post("/v2/repository/index", {"ready": True}).json()
    assert {"name": "many", "version": "2", "state": "READY", "reason": ""} in ready
    ask = {"text_input": "ab", "sampling_parameters": {"max_tokens": 3}}
    for path in ("many", "many/versions/2", "many/versions/1", "gpt-x"):
        assert served.post(f"/v2/models/{path}/generate", ask).json()["text_output"], path
    assert served.post("/v2/models/many/versions/3/generate", ask).json() == {
        "error": "the model 'many:3' does not exist here; there are small, many:1, many:2, large, "
        "huge, broken",
        "code": "model_not_found",
    }
    assert http.get("/v2/models/many").json()["inputs"]
    assert http.get("/v2/models/many/config").json()["backend"] == "penstock"
    stats = http.get("/v2/models/many/stats").json()["model_stats"]
    assert stats[0]["inference_count"] > 0
    assert len(http.get("/v2/models/stats").json()["model_stats"]) == 6
    assert http.post("/v2/repository/models/many/unload").json()["state"] == "UNAVAILABLE"
    answer = http.get("/v2/models/many/ready")
    assert (answer.status_code, answer.json()["error"]) == (503, "the model 'many:2' is unloaded")
    assert "must" not in http.post("/v2/repository/models/broken/load").json()["error"]
    assert http.post("/v2/repository/models/huge/load").status_code == 507


def test_other_dialects(served: Server) -> None:
    client: Any = anthropic.Anthropic(base_url=served.url, api_key="none", max_retries=0)
    message = client.messages.create(
        model="many:1", max_tokens=3, messages=[{"role": "user", "content": "Hi"}]
    )
    assert (message.model, message.usage.output_tokens) == ("many:1", 3)
    with pytest.raises(anthropic.NotFoundError, match="'nobody' does not exist"):
        client.messages.create(model="nobody", max_tokens=3, messages=[])
    ask = {"prompt": "ab", "n_predict": 3}
    assert served.post("/completion", ask).json()["model"] == "small"
    assert served.post("/completion", {**ask, "model": "many"}).json()["model"] == "many"
    assert served.http.get("/props", params={"model": "many"}).json()["model_alias"] == "many:2"
    assert served.post("/generate", {"inputs": "ab", "parameters": {"max_new_tokens": 3}}).json()
    assert served.http.get("/info").json()["model_id"] == "small"
    assert served.post("/models/unload", {"model": "many"}).json() == {"success": True}
    assert served.post("/models/load", {"model": "many"}).json() == {"success": True}
    assert served.post("/tokenize", {"model": "many", "prompt": "ab"}).json()["count"]


def test_there_is_all_that_a_server_of_one_model_has(served: Server, server: Server) -> None:
    text(served, "small")
    document = server.http.get("/openapi.json").json()
    asked = 0
    apart = ("/admin/drain", "/admin/abort")
    for path, methods in document["paths"].items():
        where = path.replace("{model}", "small")
        if "{" in where:  # what has such an id was asked of one model before
            continue
        admin = {"authorization": f"Bearer {ADMIN_KEY}"}
        if "get" in methods:
            assert served.http.head(where, headers=admin).status_code not in (404, 405), path
        if "post" in methods and path not in apart:
            body = {"model": "nobody"}
            answer = served.http.post(where, json=body, headers=admin)
            assert "nothing at" not in answer.text, path
            assert answer.status_code != 405, path
            asked += 1
    assert asked > 30


@pytest.mark.parametrize("loaded", [True, False])
def test_the_document_has_what_the_server_answers_itself(served: Server, loaded: bool) -> None:
    if loaded:
        text(served, "small")
    else:
        served.post("/models/unload", {"model": "small"})
    document = served.http.get("/openapi.json").json()
    assert ("/v1/completions" in document["paths"]) is loaded
    admin = {"authorization": f"Bearer {ADMIN_KEY}"}
    asked = [("get", path, None) for path in ("/v1/models", "/models", "/ready", "/admin/status")]
    asked += [("get", "/v1/models/{model}", None), ("get", "/admin/models", None)]
    asked.append(("post", "/models/load", {"model": "small"}))
    for method, path, body in asked:
        where = path.replace("{model}", "many:1")
        answer = served.http.request(method, where, json=body, headers=admin)
        described = document["paths"][path][method]["responses"]["200"]["content"]
        schema = described[answer.headers["content-type"]]["schema"]
        assert fault(answer.json(), schema, document) is None, path


def test_looking_loads_nothing(served: Server) -> None:
    served.post("/models/unload", {"model": "large"})
    answer = served.http.get("/slots", params={"model": "large"})
    assert refused(answer, 503) == "the model 'large' is not loaded"
    text(served, "small")
    assert served.http.get("/slots", params={"model": "small"}).json()
    assert served.http.get("/openapi.json").json()["openapi"]
    assert served.admin("check?model=small", {}).json() == {"ok": True}
    assert states(served)["large"] == "unloaded"


def test_the_catalogue_is_read_again(
    served: Server, catalogue: Path, tokenizer_folder: Path
) -> None:
    before = catalogue.read_text()
    more = f'[[models]]\nname = "new"\nmodel = "{tokenizer_folder}"\nmemory = 10_000_000\n'
    try:
        catalogue.write_text(before + more)
        assert served.admin("models/reload", {}).json() == {"changed": ["new"]}
        assert text(served, "new")
        catalogue.write_text(before + more + more)
        answer = served.admin("models/reload", {})
        assert "the name 'new' is used twice" in refused(answer, 400)
        assert text(served, "new")
        catalogue.write_text(before)
        served.process.send_signal(signal.SIGHUP)
        until(lambda: "new" not in states(served), PATIENCE_S, "reading it again")
    finally:
        catalogue.write_text(before)


def test_loading_is_seen_by_who_waits(served: Server, tokenizer_folder: Path) -> None:
    served.post("/models/unload", {"model": "small"})
    wait = tokenizer_folder / WAIT
    wait.touch()
    try:
        asking = threading.Thread(target=text, args=(served, "small"))
        asking.start()
        until(lambda: states(served)["small"] == "loading", PATIENCE_S, "loading small")
        until(
            lambda: served.http.get("/ready").json()["models"]["small"] == "loading: weights",
            PATIENCE_S,
            "weights",
        )
        assert served.metric("model_state", model_name="small", state="loading") == 1
        assert served.metric("model_requests_waiting", model_name="small") == 1
        answer = served.http.post(
            "/v1/completions",
            json={"model": "small", "prompt": "ab"},
            headers={"x-request-timeout": "0.05"},
        )
        assert "'small' is not loaded yet (weights)" in refused(answer, 504)
    finally:
        wait.unlink()
    asking.join(PATIENCE_S)
    assert not asking.is_alive()
    assert states(served)["small"] == "ready"


def test_an_engine_that_dies_takes_no_others_with_it(served: Server) -> None:
    text(served, "many:1")
    text(served, "small")
    models = {each["name"]: each for each in served.admin("status").json()["models"]}
    os.kill(models["many:1"]["pid"], signal.SIGKILL)
    assert text(served, "small")

    def again() -> bool:
        answer = served.post("/v1/completions", {"model": "many:1", "prompt": "a", "max_tokens": 2})
        return answer.status_code == 200

    until(again, PATIENCE_S, "another engine")


def counters(served: Server) -> dict[str, float]:
    """All counters that a scraper finds, and how many values histograms have."""
    families = text_string_to_metric_families(served.http.get("/metrics").text)
    return {
        f"{sample.name} {sorted(sample.labels.items())}": sample.value
        for family in families
        if family.type in ("counter", "histogram")
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def test_no_counter_falls_where_models_come_and_go(served: Server) -> None:
    before: dict[str, float] = {}
    for name in ("small", "large", "small", "many", "large", "small"):
        text(served, name, "some tokens")
        now = counters(served)
        for counter, value in before.items():
            assert now.get(counter, -1.0) >= value, counter
        before = now
    steps = [value for name, value in before.items() if "engine_steps_total" in name]
    assert len(steps) >= 3
    assert all(steps)
    gauges = served.http.get("/metrics").text
    assert 'penstock:engine_up{model_name="large"} 0.0' in gauges
    assert 'penstock:num_requests_running{model_name="large"}' not in gauges
