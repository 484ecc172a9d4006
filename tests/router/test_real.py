"""``penstock route`` before three ``penstock serve``, with the demo model."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from support.killed_streams import REQUESTS, asked_by, is_whole, parts, streamed
from support.served import Served
from support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.slow

ADMIN = "an-admin-key"
ATTEMPTS = 10
OPTIONS = ("--threads", "1", "--kv-cache-bytes", "32MiB", "--no-access-log")


def root(served: Served) -> str:
    return served.url.removesuffix("/v1")


class Client(httpx.Client):
    """A client of a router, whose process it knows."""

    router: subprocess.Popen[str]


@contextmanager
def routed(*urls: str, **more: str) -> Iterator[Client]:
    """``penstock route`` before these, and a client of it."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    command = [sys.executable, "-m", "penstock", "route", *urls, "--port", "0"]
    command += [word for name, value in more.items() for word in ("--" + name, value)]
    environment = {**os.environ, "PYTHONPATH": path, "PENSTOCK_ADMIN_KEY": ADMIN}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    try:
        found = re.search(r"routes at (http://\S+)/v1", process.stdout.readline())
        assert found is not None
        with Client(base_url=found[1], timeout=PATIENCE_S, trust_env=False) as client:
            client.router = process
            until(lambda: client.get("/ready").status_code == 200, PATIENCE_S, "a replica")
            yield client
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@contextmanager
def started(*words: str) -> Iterator[Served]:
    """``penstock serve``, which a test may kill."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    environment = {**os.environ, "PYTHONPATH": path, "PENSTOCK_ADMIN_KEY": ADMIN}
    command = [sys.executable, "-m", "penstock", "serve", *OPTIONS, *words, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    try:
        yield Served(process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)
        process.stdout.close()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chat template for a model that has none."""
    path = tmp_path_factory.mktemp("template") / "chat.jinja"
    path.write_text(
        "{% for tool in tools or [] %}# {{ tool.function.name }}\n{% endfor %}"
        "{% for message in messages %}{{ message.content }}\n{% endfor %}"
    )
    return path


@pytest.fixture
def three(template: Path) -> Iterator[list[Served]]:
    words = ("--chat-template", str(template), "--tool-call-parser", "hermes")
    with ExitStack() as stack:
        yield [stack.enter_context(started(*words)) for _ in range(3)]


def metric(client: httpx.Client, name: str) -> float:
    """The sum of a metric over replicas."""
    lines = client.get("/metrics").text.splitlines()
    found = [line for line in lines if line.startswith((f"penstock_router:{name}",))]
    assert found, name
    return sum(float(line.rpartition(" ")[2]) for line in found if not line.startswith("#"))


def conversations() -> list[list[int]]:
    """Prompts of 12 users in turns: each begins with one of three long instructions and goes on
    with what the same user has asked before."""
    draw = random.Random(1)

    def text(tokens: int) -> list[int]:
        return [draw.randrange(10, 200) for _ in range(tokens)]

    beginnings = [text(96) for _ in range(3)]
    talks = [[*beginnings[user % 3], *text(64)] for user in range(12)]
    prompts = []
    for _ in range(5):
        for talk in draw.sample(talks, len(talks)):
            talk += text(48)
            prompts.append(list(talk))
    return prompts


def found_tokens(client: httpx.Client, prompts: list[list[int]]) -> int:
    found = 0
    for prompt in prompts:
        body = {"prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True}
        answer = client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        found += answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        time.sleep(0.02)
    return found


def test_three_caches_find_what_one_finds(three: list[Served]) -> None:
    prompts = conversations()
    with httpx.Client(base_url=root(three[0]), timeout=PATIENCE_S, trust_env=False) as one:
        whole = found_tokens(one, prompts)
        headers = {"authorization": f"Bearer {ADMIN}"}
        assert one.post("/admin/cache/clear", headers=headers, json={}).status_code == 200
    with routed(*map(root, three)) as client:
        until(lambda: metric(client, "cache_followed") == 3, PATIENCE_S, "the caches' events")
        shared = found_tokens(client, prompts)
        asked = sum(map(len, prompts))
        print(f"found of {asked}: {whole} by one cache, {shared} by three")
        assert shared >= 0.9 * whole
        assert whole > 0.5 * asked
        assert abs(metric(client, "prompt_tokens_cached_total") - shared) <= 0.1 * shared
    with routed(*map(root, three), policy="random") as client:
        for each in three:
            httpx.post(f"{root(each)}/admin/cache/clear", headers=headers, json={})
        assert found_tokens(client, prompts) < shared  # which is not what any router finds


def engine_pid(served: Served) -> int:
    headers = {"authorization": f"Bearer {ADMIN}"}
    status = httpx.get(f"{root(served)}/admin/status", headers=headers).json()
    pid: int = status["engine"]["pid"]
    return pid


def test_an_engine_that_begins_anew_holds_nothing(three: list[Served]) -> None:
    servers = three[:2]
    prompts = [[number, *range(10, 80)] for number in range(80, 110)]
    with routed(*map(root, servers)) as client:

        def ask(prompt: list[int]) -> bool:
            body = {"prompt": prompt, "max_tokens": 2, "temperature": 0}
            return client.post("/v1/completions", json=body).is_success

        def expected(prompt: list[int]) -> float:
            """Tokens of one more request that the router expects to be in a cache."""
            before = metric(client, "prompt_tokens_cached_total")
            assert ask(prompt)
            return metric(client, "prompt_tokens_cached_total") - before

        until(lambda: metric(client, "cache_followed") == 2, PATIENCE_S, "the caches' events")
        for prompt in prompts:
            assert expected(prompt) == 0
            until(lambda prompt=prompt: expected(prompt) == 64, PATIENCE_S, "events of a prompt")
        before = [engine_pid(each) for each in servers]
        for pid in before:
            os.kill(pid, signal.SIGKILL)

        def is_back() -> bool:
            pids = [engine_pid(each) for each in servers]
            return not {*pids} & {*before} and metric(client, "ready") == 2 and ask([5])

        until(is_back, PATIENCE_S, "engines that serve again")
        # What the new caches hold is told within seconds; until then the old ones are believed.
        asked = iter(prompts)

        def is_forgotten() -> bool:
            time.sleep(1)
            return expected(next(asked)) == 0

        until(is_forgotten, len(prompts), "caches that hold nothing")
        prompt = next(asked)
        assert expected(prompt) == 0
        until(lambda: expected(prompt) == 64, PATIENCE_S, "events of a prompt")


def test_a_router_that_is_stopped_ends_what_it_has_begun(three: list[Served]) -> None:
    body = {"prompt": "def f", "stream": True, "max_tokens": 400, "ignore_eos": True}
    with routed(root(three[0])) as client:
        stop = iter([client.router.terminate])  # a second signal would end it at once
        lines = streamed(client, "/v1/completions", body, lambda: next(stop, lambda: None)())
        assert lines[-1] == "[DONE]"
        assert client.router.wait(PATIENCE_S) == 0
        with pytest.raises(httpx.ConnectError):
            client.get("/health")


def test_a_stream_outlives_its_engine(three: list[Served]) -> None:
    """The server lives on, and says within the stream that its engine is gone."""
    body = {"prompt": "def f", "stream": True, "max_tokens": 1500, "seed": 4, "ignore_eos": True}
    with routed(*map(root, three)) as client:

        def kill() -> None:
            text = client.get("/metrics").text
            busy = re.findall(r'penstock_router:decoding\{replica="([^"]+)"\} 1\.0', text)
            for each in three:
                if root(each) in busy:
                    os.kill(engine_pid(each), signal.SIGKILL)

        lines = streamed(client, "/v1/completions", body, kill)
        assert lines[-1] == "[DONE]", lines[-1]
        # The second kill may come when all is computed and not yet read, on a quick machine.
        assert metric(client, "resumed_streams_total") in (1, 2)
        with httpx.Client(base_url=root(three[2]), timeout=PATIENCE_S, trust_env=False) as last:
            until(lambda: last.get("/ready").is_success, PATIENCE_S, "the third")
            whole = streamed(last, "/v1/completions", body)
            assert parts("/v1/completions", lines) == parts("/v1/completions", whole)


def test_a_stream_outlives_the_only_engine(template: Path) -> None:
    body = {"prompt": "def f", "stream": True, "max_tokens": 1500, "seed": 4, "ignore_eos": True}
    with started("--chat-template", str(template)) as only, routed(root(only)) as client:
        left = [engine_pid(only)]

        def kill() -> None:
            if left:
                os.kill(left.pop(), signal.SIGKILL)

        lines = streamed(client, "/v1/completions", body, kill)
        assert not left
        assert lines[-1] == "[DONE]", lines[-1]
        assert metric(client, "resumed_streams_total") == 1
        assert parts("/v1/completions", lines) == parts(
            "/v1/completions", streamed(client, "/v1/completions", body)
        )


@pytest.mark.parametrize("kind", REQUESTS)
def test_streams_outlive_their_replicas(kind: str, three: list[Served]) -> None:
    path, body = asked_by(kind, tokens=1500)
    killed: list[int] = []
    with routed(*map(root, three)) as client:

        def kill() -> None:
            """Kill the server that answers: its guardian, and with it all the others."""
            text = client.get("/metrics").text
            busy = re.findall(r'penstock_router:decoding\{replica="([^"]+)"\} 1\.0', text)
            for number, each in enumerate(three):
                if root(each) in busy and number not in killed:
                    os.kill(each.process.pid, signal.SIGKILL)
                    killed.append(number)

        resumed = 0.0
        for _ in range(ATTEMPTS):  # all may have been computed before a fifth event is read
            lines = streamed(client, path, body, kill)
            assert is_whole(path, lines), lines[-1]
            resumed = metric(client, "resumed_streams_total")
            if resumed or len(killed) > 1:
                break
        assert 1 <= resumed <= len(killed)
        left = next(each for number, each in enumerate(three) if number not in killed)
        if path == "/v1/responses":
            numbers = [json.loads(line)["sequence_number"] for line in lines]
            assert numbers == list(range(len(lines)))
            names = re.findall(r'"(?:id|item_id)":"([a-z]+)_[0-9a-f]+"', "".join(lines))
            assert len(set(re.findall(r'"((?:resp|msg|fc)_[0-9a-f]+)"', "".join(lines)))) == len(
                set(names)
            )
        elif path in ("/v1/completions", "/v1/chat/completions"):
            assert len({json.loads(line)["id"] for line in lines[:-1]}) == 1
        text = json.dumps(body)
        if '"seed"' in text or re.search(r'"temperature": 0[,}]', text):
            with httpx.Client(base_url=root(left), timeout=PATIENCE_S, trust_env=False) as one:
                whole = streamed(one, path, body)
                assert parts(path, lines) == parts(path, whole)
    for number in killed:
        three[number].process.wait()
