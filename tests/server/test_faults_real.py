"""The command and the real engine under faults: a small cache, disconnects, a killed engine."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.needs import needs_native
from support.waiting import PATIENCE_S

KEY = {"authorization": "Bearer admin-key"}
PROMPTS = [f"def f{i}(x):" for i in range(12)]


pytestmark = needs_native


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    command = [sys.executable, "-m", "penstock", "serve", "--port", "0", "--threads", "1"]
    # Room for a few of these sequences at a time: the others wait, or lose their blocks.
    command += ["--max-model-len", "256", "--kv-cache-bytes", "1MiB", "--no-access-log"]
    environment = {**os.environ, "PYTHONPATH": path, "PENSTOCK_ADMIN_KEY": "admin-key"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    first = process.stdout.readline()
    found = re.search(r"at (http://\S+)/v1", first)
    assert found is not None, first
    yield found[1]
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 0
    process.stdout.close()


def body(prompt: str, tokens: int = 90) -> dict[str, object]:
    return {
        "model": "penstock-demo",
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
    }


async def texts(url: str) -> list[str]:
    async with httpx.AsyncClient(base_url=url, verify=False, timeout=PATIENCE_S) as client:
        answers = await asyncio.gather(
            *(client.post("/v1/completions", json=body(prompt)) for prompt in PROMPTS)
        )
    return [answer.json()["choices"][0]["text"] for answer in answers]


def metric(http: httpx.Client, name: str) -> float:
    text = http.get("/metrics").text
    found = re.search(rf"^penstock:{name}\{{.*\}} (\S+)$", text, re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def check(http: httpx.Client) -> None:
    assert http.post("/admin/check").json() == {"ok": True}


@pytest.fixture(scope="module")
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, headers=KEY, verify=False, timeout=PATIENCE_S) as client:
        yield client


@pytest.mark.slow
def test_kv_exhaustion_and_leaving_clients_change_no_byte(url: str, http: httpx.Client) -> None:
    alone = [http.post("/v1/completions", json=body(prompt)).json() for prompt in PROMPTS]
    expected = [answer["choices"][0]["text"] for answer in alone]
    assert len(set(expected)) > len(PROMPTS) / 2

    async def leave(client: httpx.AsyncClient, i: int) -> None:
        request = {**body(f"# {i} leaves"), "stream": True}
        async with client.stream("POST", "/v1/completions", json=request) as response:
            async for _ in response.aiter_lines():
                return

    async def main() -> list[str]:
        async with httpx.AsyncClient(base_url=url, verify=False, timeout=PATIENCE_S) as client:
            staying = asyncio.ensure_future(texts(url))
            for i in range(20):
                await leave(client, i)
            return await staying

    assert asyncio.run(main()) == expected
    assert metric(http, "num_preemptions_total") > 0
    deadline = time.monotonic() + PATIENCE_S
    while metric(http, "kv_cache_usage_perc"):
        assert time.monotonic() < deadline, "blocks are held by nobody"
        time.sleep(0.05)
    check(http)

    pid = http.get("/admin/status").json()["engine"]["pid"]
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE_S
    while http.get("/ready").status_code == 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    while http.get("/ready").status_code != 200:
        assert time.monotonic() < deadline, "the engine is not back"
        time.sleep(0.05)
    assert asyncio.run(texts(url)) == expected
    check(http)
    assert Path(f"/proc/{pid}").exists() is False
