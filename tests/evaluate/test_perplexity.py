"""Perplexities and divergences, against the engine's own log-probabilities and against NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from support.checkpoints import load_oracle, tiny_checkpoint

from penstock import LLM, SamplingParams
from penstock.config import EngineConfig
from penstock.evaluate.comparison import compare
from penstock.evaluate.perplexity import perplexity
from penstock.evaluate.text_model import PIECE, TextModel
from penstock.evaluate.windows import WINDOW_METHODS, WindowMethod, cut

TEXT = "".join(
    f"def function_{i}(x):\n    return [x + {i}, 'word {i * i}', None]\n\n\n" for i in range(60)
)
WINDOW = 96


def config(quantization: str = "none", backend: str = "auto") -> EngineConfig:
    return EngineConfig(quantization=quantization, backend=backend, artifact=False)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", WINDOW_METHODS)
def test_it_is_what_the_engine_says_of_prompts(method: WindowMethod) -> None:
    with TextModel.open(config(), WINDOW) as model:
        tokens, bos = model.encode(TEXT)
        windows = cut(tokens, WINDOW, method, bos)[:5]
        result = perplexity(model, windows)
    llm = LLM(artifact=False)
    outputs = llm.generate(
        [{"prompt_token_ids": list(w.token_ids)} for w in windows],
        SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0),
    )
    losses = []
    for window, output in zip(windows, outputs, strict=True):
        assert output.prompt_logprobs is not None
        for place in range(window.first, len(window.token_ids)):
            entry = output.prompt_logprobs[place]
            assert entry is not None
            losses.append(-entry[window.token_ids[place]].logprob)
    assert result.tokens == len(losses) == 5 * (WINDOW - windows[0].first)
    assert result.perplexity == pytest.approx(math.exp(np.mean(losses)), rel=1e-5)
    error = np.std(losses, ddof=1) / math.sqrt(len(losses)) * result.perplexity
    assert result.standard_error == pytest.approx(error, rel=1e-4)
    text = "".join(llm.tokenizer.decode(list(w.targets)) for w in windows)
    bits = sum(losses) / math.log(2) / len(text.encode())
    assert result.bits_per_byte == pytest.approx(bits, rel=1e-5)


@pytest.mark.parametrize("family", ["gemma3", "lfm2"])
def test_layers_that_have_windows(family: str) -> None:
    """Text that is longer than they are, in several steps: blocks are given back on the way."""
    pytest.importorskip("torch", reason="checkpoints are made with it")
    pytest.importorskip("transformers", reason="checkpoints are made with it")
    options: dict[str, Any] = {"artifact": False, "threads": 1, "dtype": "float32"}
    folder, size = str(tiny_checkpoint(family, max_position_embeddings=2048)), 1100
    tokens = np.random.default_rng(1).integers(0, 256, size).tolist()
    (window,) = cut(tokens, size, "llama.cpp", None)
    with TextModel.open(EngineConfig(model=folder, **options), size) as model:
        found = perplexity(model, [window])
    with LLM(folder, max_num_seqs=1, **options) as llm:
        params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0)
        (output,) = llm.generate([{"prompt_token_ids": tokens}], params)
    assert output.prompt_logprobs is not None
    entries = [output.prompt_logprobs[i] for i in range(window.first, size)]
    losses = [-e[t].logprob for e, t in zip(entries, window.targets, strict=True) if e]
    assert found.tokens == len(losses) == len(window.targets)
    assert found.perplexity == pytest.approx(math.exp(np.mean(losses)), rel=1e-4)


def test_a_model_does_not_diverge_from_itself() -> None:
    with TextModel.open(config(), WINDOW) as model, TextModel.open(config(), WINDOW) as base:
        tokens, bos = model.encode(TEXT)
        result = compare(model, base, cut(tokens, WINDOW, "gptq", bos)[:3])
    assert result.kl_max == 0.0
    assert result.agreement == 1.0
    assert result.model_perplexity == result.base_perplexity


def test_divergences_are_those_of_the_definition() -> None:
    with TextModel.open(config("int4"), WINDOW) as model, TextModel.open(config(), WINDOW) as base:
        tokens, bos = model.encode(TEXT)
        windows = cut(tokens, WINDOW, "llama.cpp", bos)[:4]
        result = compare(model, base, windows)
        divergences, same = [], 0
        for window in windows:
            for ours, theirs in zip(model.logits(window), base.logits(window), strict=True):
                assert len(ours) <= PIECE
                p = np.exp(theirs.astype(np.float64))
                q = np.exp(ours.astype(np.float64))
                p /= p.sum(axis=1, keepdims=True)
                q /= q.sum(axis=1, keepdims=True)
                divergences += [float((a * np.log(a / b)).sum()) for a, b in zip(p, q, strict=True)]
                same += int((p.argmax(1) == q.argmax(1)).sum())
        alone = perplexity(model, windows)
    assert len(divergences) == result.model_perplexity.tokens
    assert result.kl_mean == pytest.approx(np.mean(divergences), rel=1e-6)
    assert result.kl_max == pytest.approx(max(divergences), rel=1e-6)
    assert 0 < result.kl_median < result.kl_p99 <= result.kl_max
    assert result.agreement == same / len(divergences) < 1.0
    assert result.model_perplexity == alone
    assert result.perplexity_ratio != 1.0


def test_backends_agree() -> None:
    found = []
    for backend in ("reference", "auto"):
        with TextModel.open(config(backend=backend), WINDOW) as model:
            tokens, bos = model.encode(TEXT)
            found.append(perplexity(model, cut(tokens, WINDOW, "llama.cpp", bos)[:1]).perplexity)
    assert found[0] == pytest.approx(found[1], rel=2e-2)  # the model's weights are bfloat16


@pytest.mark.parametrize("family", ["lfm2", "qwen3_next", "deepseek_v3"])
def test_models_that_keep_something_else_than_keys_and_values(family: str) -> None:
    torch = pytest.importorskip("torch", reason="the oracle is made of it")
    pytest.importorskip("transformers", reason="the oracle is made of it")
    folder = tiny_checkpoint(family)
    ids = np.random.default_rng(3).integers(0, 200, 3 * WINDOW).tolist()
    windows = cut(ids, WINDOW, "llama.cpp", None)
    asked = EngineConfig(model=str(folder), dtype="float32", artifact=False)
    with TextModel.open(asked, WINDOW) as model:
        result = perplexity(model, windows)
    oracle = load_oracle(folder)
    losses = []
    for window in windows:
        with torch.no_grad():
            logits = oracle(torch.tensor([list(window.token_ids)])).logits[0].double()
        scores = torch.log_softmax(logits[window.first - 1 : -1], dim=1)
        losses += [-float(row[t]) for row, t in zip(scores, window.targets, strict=True)]
    assert result.perplexity == pytest.approx(math.exp(np.mean(losses)), rel=1e-4)


def test_names_of_special_tokens_are_text() -> None:
    """As llama.cpp's tool has it: a text that speaks of <unk> has no token of that kind."""
    with TextModel.open(config(), WINDOW) as model:
        special = model.tokenizer.special_ids
        names = "".join(model.tokenizer.token_text(token) for token in sorted(special))
        tokens, bos = model.encode(names)
    assert special
    assert not special & set(tokens[bos is not None :])
