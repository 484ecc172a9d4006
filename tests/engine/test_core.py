"""The engine's loop on real parts: what comes out, and what is refused before it goes in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from penstock.config import EngineConfig
from penstock.engine.core import EngineCore
from penstock.engine.loader import load, plan_engine
from penstock.errors import ConfigError, ModelError, RequestError
from penstock.interface.host_executor import HostExecutor
from penstock.interface.messages import EngineRequest, FinishReason, SequenceUpdate
from penstock.interface.step import StepInput, StepResult
from penstock.sampling.params import SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_act": "silu",
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (path / "config.json").write_text(json.dumps(config))
    return path


def options(folder: Path, **changes: object) -> EngineConfig:
    values = {"model": str(folder), "load_format": "dummy", "backend": "reference"} | changes
    return EngineConfig(**values)  # type: ignore[arg-type]


@pytest.fixture
def core(folder: Path) -> Iterator[EngineCore]:
    core = EngineCore.start(options(folder))
    yield core
    core.check_integrity()
    assert core.stats().kv_blocks_used == 0
    core.close()


def request(
    prompt: list[int], params: SamplingParams = GREEDY, request_id: str = "r"
) -> EngineRequest:
    return EngineRequest(request_id=request_id, prompt_token_ids=prompt, params=params)


def finish(core: EngineCore) -> list[SequenceUpdate]:
    updates = []
    while core.has_work:
        updates += core.step()
        core.check_integrity()
    return updates


def tokens(updates: list[SequenceUpdate], request_id: str = "r", index: int = 0) -> list[int]:
    mine = [u for u in updates if (u.request_id, u.index) == (request_id, index)]
    return [token for update in mine for token in update.token_ids]


def test_prompt_logprobs_are_those_of_the_same_tokens_generated(core: EngineCore) -> None:
    params = SamplingParams(temperature=0, max_tokens=40, logprobs=3, ignore_eos=True)
    core.add_request(request([5, 9, 13], params))
    generated = finish(core)
    text = [5, 9, 13, *tokens(generated)]
    wants_prompt = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=3)
    core.add_request(request(text, wants_prompt))
    (update,) = finish(core)
    assert update.prompt_logprobs is not None
    assert update.prompt_logprobs[0] is None
    assert len(update.prompt_logprobs) == len(text)
    for logprobs_of, made in zip(
        update.prompt_logprobs[3:], [u.logprobs for u in generated], strict=True
    ):
        assert logprobs_of is not None
        assert made is not None
        assert logprobs_of.token_id == made[0].token_id
        assert logprobs_of.logprob == pytest.approx(made[0].logprob, abs=1e-4)
        assert [t for t, _ in logprobs_of.top] == [t for t, _ in made[0].top]


def test_prompt_logprobs_in_chunks_with_a_warm_cache(folder: Path, core: EngineCore) -> None:
    prompt = [int(t) for t in np.random.default_rng(0).integers(3, 64, 150)]
    params = SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=1)
    core.add_request(request(prompt, params))
    whole = finish(core)[0].prompt_logprobs
    chunked = EngineCore.start(options(folder, max_num_batched_tokens=16, max_num_seqs=4))
    for _ in range(2):
        chunked.add_request(request(prompt, params))
        parts = finish(chunked)[0].prompt_logprobs
        assert whole is not None
        assert parts is not None
        assert len(parts) == len(whole) == 150
        for a, b in zip(parts[1:], whole[1:], strict=True):
            assert a is not None
            assert b is not None
            assert a.token_id == b.token_id
            assert a.logprob == pytest.approx(b.logprob, abs=1e-4)
    chunked.close()


def test_a_seed_decides_the_text_whatever_else_runs(core: EngineCore) -> None:
    params = SamplingParams(temperature=1.5, seed=11, max_tokens=20, ignore_eos=True)
    core.add_request(request([3, 4, 5], params))
    lone = tokens(finish(core))
    for i in range(6):
        other = SamplingParams(temperature=1.0, max_tokens=5 + i, ignore_eos=True)
        core.add_request(request([6 + i, 7], other, f"other-{i}"))
    core.add_request(request([3, 4, 5], params))
    assert tokens(finish(core)) == lone


def test_requests_without_a_seed_differ_among_themselves_and_repeat_with_the_engine(
    folder: Path,
) -> None:
    params = SamplingParams(temperature=1.5, max_tokens=20, ignore_eos=True)
    runs = []
    for _ in range(2):
        core = EngineCore.start(options(folder, seed=5))
        for name in ("a", "b"):
            core.add_request(request([3, 4, 5], params, name))
        updates = finish(core)
        runs.append([tokens(updates, name) for name in ("a", "b")])
        core.close()
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[0][1]


def test_n_sequences_share_the_prompt_and_differ(core: EngineCore) -> None:
    params = SamplingParams(n=4, temperature=1.5, seed=1, max_tokens=12, ignore_eos=True)
    prompt = list(range(3, 48))
    core.add_request(request(prompt, params))
    core.step()
    # 45 tokens are two blocks; the second is shared until somebody writes to it.
    assert core.stats().kv_blocks_used == 2
    updates = finish(core)
    assert core.stats().tokens_computed == 45 + 4 * 11
    outputs = {tuple(tokens(updates, index=i)) for i in range(1, 4)}
    assert len(outputs) == 3


def test_abort_at_any_point_leaves_the_others_alone(core: EngineCore) -> None:
    core.add_request(request([3, 4], request_id="keep"))
    expected = tokens(finish(core), "keep")
    core.add_request(request([3, 4], request_id="keep"))
    core.add_request(request(list(range(3, 60)), request_id="gone"))
    updates = core.step()
    ended = core.abort(["gone", "never was"])
    assert [(u.request_id, u.finish_reason) for u in ended] == [("gone", FinishReason.ABORT)]
    assert tokens(updates + finish(core), "keep") == expected


def test_one_sequence_of_a_request_is_stopped_alone(core: EngineCore) -> None:
    params = SamplingParams(n=3, temperature=1.5, seed=1, max_tokens=12, ignore_eos=True)
    core.add_request(request([3, 4, 5], params))
    expected = finish(core)
    core.add_request(request([3, 4, 5], params))
    updates = core.step() + core.step()
    (ended,) = core.abort(["r", "never was"], 1)
    assert (ended.index, ended.finish_reason) == (1, FinishReason.ABORT)
    assert core.abort(["r"], 1) == []
    updates += finish(core)
    assert [tokens(updates, index=i) for i in (0, 2)] == [tokens(expected, index=i) for i in (0, 2)]
    assert tokens(updates, index=1) == tokens(expected, index=1)[:2]


class Poisoned(HostExecutor):
    """An executor that writes NaN into the logits of sequences whose first token is 63."""

    def __init__(self, inner: object) -> None:
        self._inner = inner
        self.num_blocks = inner.num_blocks  # type: ignore[attr-defined]

    def run(self, step: StepInput) -> StepResult:
        result = self._inner.run(step)  # type: ignore[attr-defined]
        for row, token_row in enumerate(step.logit_rows):
            sequence = int(np.searchsorted(step.query_starts, token_row, side="right")) - 1
            if step.token_ids[step.query_starts[sequence]] == 63:
                result.logits[row] = np.nan
                result.argmax[row] = 0
        return result

    @property
    def sampler(self) -> object:
        return self._inner.sampler  # type: ignore[attr-defined]

    def close(self) -> None:
        self._inner.close()  # type: ignore[attr-defined]


def test_nan_logits_end_their_own_request_only(folder: Path, core: EngineCore) -> None:
    core.add_request(request([3, 4], request_id="well"))
    expected = tokens(finish(core), "well")
    engine_plan = plan_engine(options(folder))
    poisoned = EngineCore(engine_plan, Poisoned(load(engine_plan)))
    poisoned.add_request(request([3, 4], request_id="well"))
    poisoned.add_request(request([63, 4], request_id="ill"))
    updates = finish(poisoned)
    assert tokens(updates, "well") == expected
    (ill,) = [u for u in updates if u.request_id == "ill"]
    assert ill.finish_reason is FinishReason.ERROR
    assert "NaN" in (ill.error or "")
    assert poisoned.stats().kv_blocks_used == 0
    poisoned.close()


@pytest.mark.parametrize(
    ("prompt", "params", "words"),
    [
        ([], GREEDY, "empty"),
        ([64], GREEDY, "outside the vocabulary of 64"),
        ([-1], GREEDY, "outside the vocabulary"),
        ([3, None], GREEDY, "holds token id None"),
        ([3, True], GREEDY, "holds token id True"),
        ([3, 4.0], GREEDY, "holds token id 4.0"),
        ([3] * 256, GREEDY, "context"),
        ([3], SamplingParams(temperature=float("nan")), "temperature"),
        ([3], SamplingParams(top_p=0.0), "top_p"),
        ([3], SamplingParams(temperature=float("inf")), "temperature"),
        ([3], SamplingParams(n=10**9), "n must be"),
        ([3], SamplingParams(logprobs=10**6), "logprobs"),
        ([3], SamplingParams(min_tokens=9, max_tokens=8), "min_tokens"),
        ([3], SamplingParams(logit_bias={64: 1.0}), "logit_bias"),
        ([3], SamplingParams(stop_token_ids=(99,)), "stop_token_ids"),
    ],
)
def test_bad_requests_are_refused_by_name(
    core: EngineCore, prompt: list[int], params: SamplingParams, words: str
) -> None:
    core.add_request(request([3, 4], request_id="other"))
    with pytest.raises(RequestError, match=words):
        core.add_request(request(prompt, params))
    assert len(tokens(finish(core), "other")) == 8


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kv_cache_bytes": 8191, "max_model_len": 256}, "set kv_cache_bytes to at least"),
        ({"kv_cache_bytes": 100}, "holds 0 blocks"),
        ({"max_model_len": 257}, "exceeds the model's 256 positions"),
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1"),
        ({"max_num_batched_tokens": 8, "max_num_seqs": 9}, "max_num_batched_tokens"),
        ({"threads": -1}, "threads must be at least 1"),
    ],
)
def test_impossible_options_are_refused_before_weights_are_read(
    folder: Path, changes: dict[str, object], words: str
) -> None:
    # The folder holds no weights at all, so anything later would say that instead.
    with pytest.raises(ConfigError, match=words):
        plan_engine(options(folder, load_format="auto", **changes))


def test_an_unknown_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no folder"):
        plan_engine(EngineConfig(model=str(tmp_path / "absent")))


def test_every_resolved_value_has_its_reason(folder: Path) -> None:
    config = plan_engine(options(folder, threads=1)).config
    text = config.explain()
    assert "threads                 1  (as asked)" in text
    assert "cpus                    any  (placed by the system)" in text
    cache = f"{config.kv_cache_bytes:,}"
    assert "," in cache
    assert f"kv_cache_bytes          {cache}  (64 sequences of 256 tokens)" in text
    assert "the checkpoint's" in text
