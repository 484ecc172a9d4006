"""Chats with models whose layers keep states: the command, the real engine, quantized weights."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from support.checkpoints import tiny_checkpoint
from support.needs import require_native
from support.served import Served, serving

pytest.importorskip("torch", reason="checkpoints are made with it")
pytest.importorskip("transformers", reason="checkpoints are made with it")

pytestmark = pytest.mark.slow

TEMPLATE = "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}<s>assistant:"
FIRST = {"role": "user", "content": "Tell of the girl who found a red ball in the park. " * 3}
MODELS = [("qwen3_5_text", "int8"), ("granitemoehybrid", "int4")]


@pytest.fixture(scope="module", params=MODELS, ids=" ".join)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    require_native()
    family, scheme = request.param
    made = tiny_checkpoint(family, max_position_embeddings=1024)
    folder = Path(shutil.copytree(made, tmp_path_factory.mktemp("served") / "model"))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings |= {"chat_template": TEMPLATE, "model_max_length": 1024}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    words = ["--backend", "cpu", "--quantization", scheme, "--no-artifact", "--threads", "1"]
    words += ["--kv-cache-bytes", str(1 << 23), "--max-num-seqs", "4"]
    words += ["--max-num-batched-tokens", "64", "--served-model-name", "tiny"]
    with serving(str(folder), *words) as served:
        yield served


def asked(messages: list[dict[str, str]], **options: Any) -> dict[str, Any]:
    body = {"model": "tiny", "messages": messages, "max_tokens": 40, "temperature": 0.7, "seed": 4}
    return body | {"extra_body": {"ignore_eos": True}} | options


async def whole(client: openai.AsyncOpenAI, messages: list[dict[str, str]]) -> tuple[str, int]:
    """The answer, and how many tokens of the prompt were found in the cache."""
    answer = await client.chat.completions.create(**asked(messages))
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.completion_tokens == 40
    text = answer.choices[0].message.content
    assert text is not None
    return text, answer.usage.prompt_tokens_details.cached_tokens or 0


async def streamed(client: openai.AsyncOpenAI, messages: list[dict[str, str]]) -> str:
    stream = await client.chat.completions.create(**asked(messages, stream=True))
    return "".join([part.choices[0].delta.content or "" async for part in stream])


def test_a_chat_and_its_next_turn(served: Served) -> None:
    """Streamed and not, with its prefix found, and two at once."""

    async def main() -> None:
        async with served.async_client() as client:
            text, cached = await whole(client, [FIRST])
            assert text
            assert cached == 0
            again, cached = await whole(client, [FIRST])
            assert again == text
            assert cached >= 128
            assert await streamed(client, [FIRST]) == text
            turn = [FIRST, {"role": "assistant", "content": text}]
            turn.append({"role": "user", "content": "And then?"})
            other = [{"role": "user", "content": "The dog " * 20}]
            next_turn, cached = await whole(client, turn)
            assert cached >= 128
            alone, _ = await whole(client, other)
            both = await asyncio.gather(streamed(client, turn), whole(client, other))
            assert both[0] == next_turn
            assert both[1][0] == alone

    asyncio.run(main())


def test_what_is_kept_of_states_is_told(served: Served) -> None:
    import urllib.request

    with urllib.request.urlopen(served.url.replace("/v1", "/metrics"), timeout=60) as answer:
        text = answer.read().decode()
    (line,) = [x for x in text.splitlines() if "state_slots_usage_perc{" in x]
    assert float(line.split()[-1]) == 0
