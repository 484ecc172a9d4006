"""Drafts by a second model: its own cache, what it has read, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.overlap_executor import HashExecutor
from support.overlapped import VOCAB, check, make_core, windowed

from penstock import LLM, SamplingParams, demo_model_path, draft_model_path
from penstock.config import EngineConfig
from penstock.engine.loader import EnginePlan, plan_engine
from penstock.engine_options import engine_config
from penstock.errors import ConfigError
from penstock.interface.messages import EngineRequest
from penstock.interface.step import StepInput, StepResult
from penstock.speculate.draft_model import ModelProposer
from penstock.speculate.speculation import Speculation


class Counted(HashExecutor):
    """Counts token rows by step."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks, VOCAB)
        self.rows: list[int] = []

    def run(self, step: StepInput) -> StepResult:
        self.rows.append(step.num_tokens)
        return super().run(step)


def finish(core: Any) -> dict[tuple[str, int], list[int]]:
    reported: dict[tuple[str, int], list[int]] = {}
    while core.has_work:
        for update in core.step():
            assert update.error is None
            reported.setdefault((update.request_id, update.index), []).extend(update.token_ids)
        core.check_integrity()
    return reported


def requests() -> list[EngineRequest]:
    kinds = [
        SamplingParams(temperature=0, max_tokens=50, ignore_eos=True),
        SamplingParams(temperature=0.9, seed=1, max_tokens=60, n=2),
        SamplingParams(temperature=0, max_tokens=20, ignore_eos=True),
        SamplingParams(temperature=0.5, seed=4, max_tokens=40, top_k=3),
    ]
    return [
        EngineRequest(request_id=f"{i}", prompt_token_ids=[3 + i] * (5 + 17 * i), params=params)
        for i, params in enumerate(kinds)
    ]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("draft_blocks", [2, 5, 40])
@pytest.mark.parametrize("num_blocks", [8, 40])
@pytest.mark.parametrize("windows", [(None, None), (None, 33), (20, 20)], ids=str)
def test_the_same_model_as_its_own_draft(
    engine_plan: EnginePlan,
    num_blocks: int,
    draft_blocks: int,
    windows: tuple[int | None, int | None],
) -> None:
    """Every draft of greedy requests is right, so that a wrong slot in the draft's cache, or a
    token that it did not read, shows as one that is not accepted."""
    limits = {"max_num_seqs": 4, "max_num_batched_tokens": 40}
    model = windowed(engine_plan, windows)
    groups = model.plan.kv_groups.windows
    num_blocks, draft_blocks = num_blocks * len(groups), draft_blocks * len(groups)
    plain = make_core(model, HashExecutor(num_blocks, VOCAB, windows=groups), **limits)
    executor = HashExecutor(num_blocks, VOCAB, windows=groups)
    drafting = HashExecutor(draft_blocks, VOCAB, windows=groups)
    proposer = ModelProposer(drafting, 40, True, groups)
    core = make_core(model, executor, Speculation(proposer, 4), **limits)
    greedy = []
    for request in requests():
        plain.add_request(request)
        core.add_request(request)
        if request.params.temperature == 0:
            greedy.append(core._scheduler._queues.requests[request.request_id][0])
    assert finish(core) == finish(plain)
    check(core, executor)
    drafts = core.stats().drafts
    assert drafts is not None
    assert drafts.draft_tokens > 0
    for sequence in greedy:
        assert sequence.num_accepted == sequence.num_drafted


def test_a_draft_model_with_a_window_gives_blocks_back(engine_plan: EnginePlan) -> None:
    """A text of 160 tokens goes through a cache of 96, and every draft is right."""
    model = windowed(engine_plan, (20, 20))
    executor = HashExecutor(20, VOCAB, windows=(20,))
    proposer = ModelProposer(HashExecutor(3, VOCAB, windows=(20,)), 40, True, (20,))
    core = make_core(model, executor, Speculation(proposer, 4))
    params = SamplingParams(temperature=0, max_tokens=150, ignore_eos=True)
    core.add_request(EngineRequest(request_id="a", prompt_token_ids=[3] * 10, params=params))
    finish(core)
    stats = core.stats()
    assert stats.drafts is not None
    assert stats.steps == 1 + stats.drafts.steps
    assert stats.drafts.accepted_tokens == stats.drafts.draft_tokens > 0


def test_the_draft_reads_every_token_once(engine_plan: EnginePlan) -> None:
    inner = Counted(20)
    proposer = ModelProposer(inner, 512, True)
    executor = HashExecutor(20, VOCAB)
    core = make_core(engine_plan, executor, Speculation(proposer, 3))
    params = SamplingParams(temperature=0, max_tokens=21, ignore_eos=True)
    core.add_request(EngineRequest(request_id="a", prompt_token_ids=[3] * 10, params=params))
    finish(core)
    # The prompt and the first token; then the last draft, which was not read, and one more token.
    assert inner.rows[:6] == [11, 1, 1, 2, 1, 1]
    assert core.stats().steps == 1 + 20 // 4


def test_a_long_prompt_is_read_in_parts(engine_plan: EnginePlan) -> None:
    inner = Counted(20)
    proposer = ModelProposer(inner, 16, True)
    executor = HashExecutor(20, VOCAB)
    core = make_core(engine_plan, executor, Speculation(proposer, 2))
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    core.add_request(EngineRequest(request_id="a", prompt_token_ids=[3] * 40, params=params))
    finish(core)
    assert inner.rows[:3] == [16, 16, 11]
    assert core.stats().drafts.accepted_tokens > 0  # type: ignore[union-attr]


def test_a_reset_of_the_prefix_cache_reaches_the_draft(engine_plan: EnginePlan) -> None:
    inner = Counted(20)
    core = make_core(
        engine_plan, HashExecutor(20, VOCAB), Speculation(ModelProposer(inner, 512, True), 3)
    )
    params = SamplingParams(temperature=0, max_tokens=21, ignore_eos=True)

    def read(name: str) -> int:
        """Rows of the draft's first step for the same prompt."""
        before = len(inner.rows)
        core.add_request(EngineRequest(request_id=name, prompt_token_ids=[3] * 70, params=params))
        finish(core)
        return inner.rows[before]

    assert read("a") == 71
    assert read("b") < 71
    core.reset_prefix_cache()
    core.check_integrity()
    assert read("c") == 71


def test_a_reset_while_the_draft_reads_changes_nothing(engine_plan: EnginePlan) -> None:
    """Those that run keep what they hold, and nobody finds it afterwards."""
    inner = Counted(40)
    proposer = ModelProposer(inner, 512, True)
    core = make_core(engine_plan, HashExecutor(40, VOCAB), Speculation(proposer, 3))
    plain = make_core(engine_plan, HashExecutor(40, VOCAB))
    for request in requests():
        core.add_request(request)
        plain.add_request(request)
    reported: dict[tuple[str, int], list[int]] = {}
    for _ in range(6):
        for update in core.step():
            reported.setdefault((update.request_id, update.index), []).extend(update.token_ids)
    assert proposer._cache._cache.num_used_blocks > 0
    core.reset_prefix_cache()
    core.check_integrity()
    for name, tokens in finish(core).items():
        reported.setdefault(name, []).extend(tokens)
    assert reported == finish(plain)
    assert proposer._cache._cache.num_cached_blocks == 0


def test_blocks_come_back(engine_plan: EnginePlan) -> None:
    proposer = ModelProposer(HashExecutor(20, VOCAB), 512, False)
    core = make_core(engine_plan, HashExecutor(20, VOCAB), Speculation(proposer, 2))
    for request in requests():
        core.add_request(request)
    core.step()
    core.step()
    assert proposer._cache._cache.num_used_blocks > 0
    core.abort([request.request_id for request in requests()])
    assert proposer.propose([]) == []
    assert proposer._cache._cache.num_used_blocks == 0


# --- with real models -------------------------------------------------------------------------

PROMPTS = [
    "def fib(n):\n    ",
    "import os\n\n\nclass Path:\n    def",
    "for i in range(",
    "class A:\n",
]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=2),
    SamplingParams(temperature=0.8, top_p=0.9, seed=1, max_tokens=24, repetition_penalty=1.2),
    SamplingParams(temperature=0, max_tokens=24, ignore_eos=True),
    SamplingParams(temperature=0.4, n=2, seed=5, max_tokens=60, stop=("self", "\n\n")),
]


def said(**options: Any) -> list[Any]:
    with LLM(backend="cpu", threads=1, artifact=False, max_model_len=256, **options) as llm:
        outputs = llm.generate(PROMPTS, PARAMS)
        assert outputs[-1].outputs[0].finish_reason == "stop"
        llm.check_integrity()
        choices = [choice for output in outputs for choice in output.outputs]
        if "speculative" in options:
            assert sum(choice.num_accepted_tokens for choice in choices) > 5
        return [(c.token_ids, c.text, c.logprobs, c.finish_reason) for c in choices]


@pytest.fixture(scope="module")
def plainly() -> list[Any]:
    return said()


@pytest.mark.parametrize(
    "speculative",
    [
        f"{method},adaptive=false"
        for method in ("draft:num_tokens=3", "self:num_tokens=3", "ngram:min_match=1")
    ],
)
def test_the_demo_model_says_the_same(plainly: list[Any], speculative: str) -> None:
    assert said(speculative=speculative) == plainly


def copy_of_draft(folder: Path, **changes: Any) -> Path:
    shutil.copytree(draft_model_path(), folder)
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def drawn(draft: object, **options: Any) -> EnginePlan:
    asked = {"method": "draft", "model": str(draft)}
    return plan_engine(engine_config("", {"backend": "cpu", "speculative": asked, **options}))


def test_a_draft_shares_the_budget(tmp_path: Path) -> None:
    budget = 8 << 20
    engine_plan = drawn("", kv_cache_bytes=budget, max_model_len=256)
    plain = plan_engine(EngineConfig(backend="cpu", kv_cache_bytes=budget, max_model_len=256))
    draft = engine_plan.draft
    assert draft is not None
    assert draft.config.num_blocks == engine_plan.config.num_blocks < plain.config.num_blocks
    assert engine_plan.config.kv_cache_bytes <= budget
    assert draft.config.max_model_len == engine_plan.config.max_model_len
    assert "draft" in engine_plan.config.reasons["num_blocks"]


def test_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"vocabulary of 4000 tokens .* one of 4096"):
        drawn(copy_of_draft(tmp_path / "vocab", vocab_size=4000))
    other = copy_of_draft(tmp_path / "tokenizer")
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    first, second = list(vocab)[300:302]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ConfigError, match="another tokenizer"):
        drawn(other)
    with pytest.raises(ConfigError, match="set max_model_len to at most 128"):
        drawn(copy_of_draft(tmp_path / "short", max_position_embeddings=128))
    drawn(tmp_path / "short", max_model_len=128)
    with pytest.raises(ConfigError, match=r"draft's part included.* set kv_cache_bytes"):
        drawn("", kv_cache_bytes=1 << 20, max_model_len=2048)
    with pytest.raises(ConfigError, match="nothing would be faster"):
        plan_engine(
            engine_config("", {"speculative": "self", "quantization": "int4", "backend": "cpu"})
        )
    target = shutil.copytree(demo_model_path(), tmp_path / "target")
    with pytest.raises(ConfigError, match="needs the option 'model'"):
        plan_engine(EngineConfig(model=str(target), speculative=drawn("").config.speculative))
