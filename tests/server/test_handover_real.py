"""Two servers, of which one computes the prompts of the other, as the commands start them."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support.needs import needs_native
from support.served import Served, serving
from support.waiting import PATIENCE_S

pytestmark = [needs_native, pytest.mark.slow]
PROMPTS = [f"def f{i}(x):\n" + f"    x = x * {i} + y  # a line of it\n" * 12 for i in range(6)]
SMALL = ("--threads", "1", "--kv-cache-bytes", "64MiB", "--no-page")


@pytest.fixture(scope="module")
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@pytest.fixture(scope="module")
def prefill(port: int) -> Iterator[Served]:
    words = ("--role", "prefill", "--handover-listen", f"127.0.0.1:{port}", *SMALL)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PENSTOCK_ADMIN_KEY", "admin")
        with serving(*words) as server:
            yield server


@pytest.fixture(scope="module")
def decode(port: int, prefill: Served) -> Iterator[Served]:
    words = ("--role", "decode", "--prefill", f"127.0.0.1:{port}", *SMALL)
    with serving(*words, "--handover-least-tokens", "64") as server:
        yield server


@pytest.fixture(scope="module")
def expected() -> Iterator[list[str]]:
    with serving(*SMALL) as server:
        yield [text(server, prompt) for prompt in PROMPTS]


def root(server: Served) -> str:
    return server.url.removesuffix("/v1")


def text(server: Served, prompt: str) -> str:
    body: dict[str, Any] = {"prompt": prompt, "max_tokens": 20, "temperature": 0}
    answer = httpx.post(f"{server.url}/completions", json=body, timeout=PATIENCE_S).json()
    return str(answer["choices"][0]["text"])


def metric(server: Served, name: str) -> float:
    for line in httpx.get(f"{root(server)}/metrics").text.splitlines():
        if line.startswith(f"penstock:{name}{{"):
            return float(line.rpartition(" ")[2])
    raise AssertionError(f"there is no metric {name}")


def until(server: Served, name: str, value: float) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while metric(server, name) != value:
        assert time.monotonic() < deadline, f"{name} is {metric(server, name)}"
        time.sleep(0.05)


def test_prompts_are_computed_by_the_other(
    decode: Served, prefill: Served, expected: list[str]
) -> None:
    assert any("computes prompts for the decode engines" in line for line in prefill.lines)
    assert any("has long prompts computed by 127.0.0.1:" in line for line in decode.lines)
    until(decode, "handover_peers", 1)
    assert [text(decode, prompt) for prompt in PROMPTS[:3]] == expected[:3]
    assert metric(decode, "handovers_total") == metric(prefill, "handovers_total") == 3
    assert metric(decode, "handover_bytes_total") == metric(prefill, "handover_bytes_total") > 0
    assert metric(decode, "handover_recomputed_tokens_total") == 0
    assert metric(decode, "handover_failures_total") == 0
    # The other server answers, too.
    assert text(prefill, PROMPTS[0]) == expected[0]


def test_it_goes_on_without_the_other_and_with_it_again(
    decode: Served, prefill: Served, expected: list[str]
) -> None:
    """The prefill engine is killed; its server starts another one, on the same port."""
    headers = {"Authorization": "Bearer admin"}
    status = httpx.get(f"{root(prefill)}/admin/status", headers=headers).json()
    os.kill(status["engine"]["pid"], signal.SIGKILL)
    until(decode, "handover_peers", 0)
    assert text(decode, PROMPTS[3]) == expected[3]
    until(decode, "handover_peers", 1)
    before = metric(decode, "handovers_total")
    assert text(decode, PROMPTS[4]) == expected[4]
    assert metric(decode, "handovers_total") == before + 1
