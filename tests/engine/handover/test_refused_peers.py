"""Prefill engines that a decode engine refuses: it says why, and computes all prompts itself."""

from __future__ import annotations

import contextlib
import logging
import re
import socket
import threading

import msgspec
import pytest
from support.handed import (
    PROMPT,
    Answers,
    complete,
    connected,
    decoding,
    handovers,
    prefilling,
    request,
    until,
)
from support.needs import needs_native

from penstock.config import EngineConfig
from penstock.peers.address import Address

pytestmark = needs_native


def refused(
    asked: EngineConfig,
    expected: Answers,
    address: Address,
    caplog: pytest.LogCaptureFixture,
    **role: object,
) -> None:
    """Assert that a decode engine refuses the peer at this address, and answers by itself."""
    with decoding(asked, address, **role) as decode:
        until(lambda: "prompts are computed here meanwhile" in caplog.text)
        assert handovers(decode).peers == 0
        assert complete(decode, [request("r", PROMPT)]) == expected
        found = handovers(decode)
        assert (found.completed, found.failed, found.declined, found.bytes) == (0, 0, 1, 0)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"seed": 1}, "the prefill engine has other weights, or otherwise rounded"),
        ({"dtype": "float32"}, "other weights"),
        ({"quantization": "int8"}, "other weights"),
        ({"kv_cache_dtype": "int8"}, "a KV cache in int8, not bfloat16"),
        ({"backend": "reference", "threads": None}, "kernels reference, not cpu .*any-kernels"),
    ],
    ids=["weights", "type", "rounding", "cache", "kernels"],
)
def test_another_model_is_refused_by_name(
    options: dict[str, object],
    why: str,
    asked: EngineConfig,
    expected: Answers,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "penstock.handover")
    with prefilling(msgspec.structs.replace(asked, **options)) as (prefill, address):
        refused(asked, expected, address, caplog)
        assert handovers(prefill).peers == 0
    assert re.search(f"the prefill engine {address}: it is not taken: .*{why}", caplog.text)


@pytest.mark.parametrize(
    ("theirs", "ours", "why"),
    [
        (
            b"one secret of sixteen bytes",
            b"another one of sixteen bytes",
            "has another secret than",
        ),
        (b"one secret of sixteen bytes", b"", "the prefill engine has a secret and the decode"),
        (b"", b"another one of sixteen bytes", "the decode engine has a secret and the prefill"),
    ],
)
def test_another_secret_is_refused(
    theirs: bytes,
    ours: bytes,
    why: str,
    asked: EngineConfig,
    expected: Answers,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "penstock.handover")
    with prefilling(asked, key=theirs) as (_, address):
        refused(asked, expected, address, caplog, key=ours)
    assert re.search(why, caplog.text)


def test_nobody_listens(
    asked: EngineConfig, expected: Answers, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address(*taken.getsockname())
    refused(asked, expected, address, caplog)
    assert caplog.text.count("it cannot be reached") == 1


def test_somebody_else_listens(
    asked: EngineConfig, expected: Answers, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    sock, _ = server.accept()
                    sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    sock.close()

        thread = threading.Thread(target=answer)
        thread.start()
        refused(asked, expected, Address(*server.getsockname()), caplog)
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert "is a prefill engine what listens there?" in caplog.text


def test_other_kernels_are_taken_where_that_was_asked_for(asked: EngineConfig) -> None:
    other = msgspec.structs.replace(asked, backend="reference", threads=None)
    with (
        prefilling(other) as (_, address),
        decoding(asked, address, any_kernels=True) as decode,
    ):
        connected(decode)
        answers = complete(decode, [request("r", PROMPT)])
        assert len(answers["r", 0]) == 5
        assert handovers(decode).completed == 1
