"""Models whose layers have windows: the same bits, from a cache that forgets what nobody sees."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.needs import require_native
from support.spoiled import spoil
from support.windowed import one_group

from penstock.cache.geometry import BLOCK_SIZE, Chunk, window_blocks
from penstock.config import EngineConfig
from penstock.engine.core import EngineCore
from penstock.engine.loader import load, plan_engine
from penstock.interface.messages import EngineRequest
from penstock.models.spec import LayerSpec, ModelSpec
from penstock.sampling.params import SamplingParams
from penstock.weights.model_folder import load_model_spec

WINDOW = 44  # of most layers, as in Gemma 3: five to one without
LAYERS = 7

Stories = dict[str, tuple[list[int], list[float]]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test with windows and with chunks; those of both backends quickly where one is slow."""
    if "backend" in metafunc.fixturenames:
        pairs = [
            ("cpu", "window"),
            ("cpu", "chunk"),
            ("reference", "window"),
            pytest.param("reference", "chunk", marks=pytest.mark.slow),
        ]
        metafunc.parametrize(("backend", "sight"), pairs, indirect=True)
    else:
        metafunc.parametrize("sight", ["window", "chunk"], indirect=True)


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> str:
    if request.param == "cpu":
        require_native()
    return str(request.param)


@pytest.fixture(autouse=True)
def sight(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What layers that do not see all see: the latest tokens, or those of their chunk."""
    if request.param == "chunk":

        def chunked(*model: Any) -> ModelSpec:
            spec = load_model_spec(*model)
            return replace(spec, layers=tuple(map(_in_chunks, spec.layers)))

        monkeypatch.setattr("penstock.engine.loader.load_model_spec", chunked)
    return str(request.param)


def _in_chunks(layer: LayerSpec) -> LayerSpec:
    window = layer.attention.window
    if window is None:
        return layer
    return replace(layer, mixer=replace(layer.attention, window=Chunk(window)))


def folder(path: Path, window: int = WINDOW, positions: int = 640, **changes: Any) -> str:
    kinds = ["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(LAYERS)]
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 300,
        "hidden_size": 40,
        "intermediate_size": 72,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "max_position_embeddings": positions,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "eos_token_id": 0,
        "use_sliding_window": True,
        "sliding_window": window,
        "layer_types": kinds,
    }
    (path / "config.json").write_text(json.dumps(config | changes))
    return str(path)


def core_of(model: str, **options: Any) -> EngineCore:
    options = {
        "load_format": "dummy",
        "max_num_seqs": 4,
        "max_num_batched_tokens": 96,
        "kv_cache_bytes": 16 << 20,
        "artifact": False,
        "threads": 1 if options.get("backend") == "cpu" else None,
    } | options
    engine_plan = plan_engine(EngineConfig(model=model, **options))
    return EngineCore(engine_plan, load(engine_plan))


def prompt(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 300, length).tolist()


def run_core(core: EngineCore, requests: list[EngineRequest]) -> Stories:
    """Tokens and log-probabilities of each sequence; the books are checked after every step."""
    for request in requests:
        core.add_request(request)
    stories: Stories = {}
    while core.has_work:
        for update in core.step():
            assert update.error is None
            tokens, logprobs = stories.setdefault(f"{update.request_id}.{update.index}", ([], []))
            tokens += update.token_ids
            logprobs += [each.logprob for each in update.logprobs or []]
        core.check_integrity()
    return stories


def requests() -> list[EngineRequest]:
    greedy = {"temperature": 0.0, "logprobs": 0, "ignore_eos": True}
    kinds = [
        (prompt(1, 150), {"max_tokens": 90, **greedy}),
        (prompt(2, 3), {"max_tokens": 120, **greedy}),
        (prompt(1, 130) + prompt(3, 20), {"max_tokens": 60, "logprobs": 0, "seed": 5, "n": 3}),
        (prompt(4, 100), {"max_tokens": 10, "prompt_logprobs": 1, **greedy}),
        (prompt(5, 300), {"max_tokens": 70, **greedy}),
    ]
    return [
        EngineRequest(request_id=f"{i}", prompt_token_ids=tokens, params=SamplingParams(**options))
        for i, (tokens, options) in enumerate(kinds)
    ]


def remembering(model: str, backend: str) -> Stories:
    with one_group():
        core = core_of(model, backend=backend)
        assert core._scheduler.cache.windows == (None,)
        stories = run_core(core, requests())
        core.close()
    return stories


@pytest.mark.thinned(4)
def test_groups_and_windows_change_no_bit(backend: str, sight: str, tmp_path: Path) -> None:
    model = folder(tmp_path)
    expected = remembering(model, backend)
    core = core_of(model, backend=backend)
    windows = core._scheduler.cache.windows
    assert windows == core._engine_plan.plan.kv_groups.windows
    assert windows == (None, *[WINDOW if sight == "window" else Chunk(WINDOW)] * 6)
    assert run_core(core, requests()) == expected
    core.close()


@pytest.mark.parametrize("blocks", [48, 70])
def test_nor_do_preemption_and_smaller_steps(blocks: int, sight: str, tmp_path: Path) -> None:
    require_native()
    model = folder(tmp_path)
    expected = remembering(model, "cpu")
    page = plan_engine(EngineConfig(model=model, load_format="dummy")).plan.kv_groups.page_bytes
    core = core_of(model, backend="cpu", kv_cache_bytes=blocks * page, max_model_len=400)
    assert core.config.num_blocks == blocks
    assert run_core(core, requests()) == expected
    # Chunks are left behind whole: sequences hold less on average, and 70 blocks suffice.
    assert (core.stats().preemptions > 0) is (sight == "window" or blocks == 48)
    core.close()


@pytest.mark.slow
def test_a_prefix_is_found_after_its_blocks_were_given_back(backend: str, tmp_path: Path) -> None:
    model, params = folder(tmp_path), SamplingParams(temperature=0.0, max_tokens=40, logprobs=0)
    core = core_of(model, backend=backend)

    def ask(tokens: list[int]) -> tuple[Any, int]:
        before = core.stats().prefix_hits
        request = EngineRequest(request_id="r", prompt_token_ids=tokens, params=params)
        return run_core(core, [request])["r.0"], core.stats().prefix_hits - before

    stem = prompt(9, 200)
    first, found = ask(stem)
    assert found == 0
    # Behind the stem's window blocks were given back long before its sequence ended.
    longer, found = ask([*stem, *prompt(10, 30)])
    assert found == 192
    again, found = ask(stem)
    assert (again, found) == (first, 192)
    shorter, found = ask(stem[:100])
    assert found == 96
    core.close()
    cold = core_of(model, backend=backend, enable_prefix_caching=False)
    for tokens, warm in ((stem, first), ([*stem, *prompt(10, 30)], longer), (stem[:100], shorter)):
        request = EngineRequest(request_id="r", prompt_token_ids=tokens, params=params)
        assert run_core(cold, [request])["r.0"] == warm
    cold.close()


@pytest.mark.thinned(3)
def test_blocks_behind_a_window_may_hold_anything(backend: str, tmp_path: Path) -> None:
    """What a sequence has given back is somebody else's at once: here nothing but NaN."""
    core = core_of(folder(tmp_path), backend=backend, enable_prefix_caching=False)
    plain = core_of(folder(tmp_path), backend=backend, enable_prefix_caching=False)
    asked = requests()[0]
    core.add_request(asked)
    pool, seen = core._scheduler.cache._pool, []
    while core.has_work:
        free = [block for block, count in enumerate(pool.ref_counts) if count == 0]
        spoil(core._executor, free, LAYERS)
        for update in core.step():
            seen += [each.logprob for each in update.logprobs or []]
    assert seen == run_core(plain, [asked])["0.0"][1]
    core.close()
    plain.close()


@pytest.mark.slow
def test_a_long_context_holds_its_windows_and_a_block(sight: str, tmp_path: Path) -> None:
    require_native()
    window, length = 512, 32_000
    core = core_of(
        folder(tmp_path, window, 32_768, hidden_size=32, num_attention_heads=2),
        backend="cpu",
        max_num_batched_tokens=512,
        kv_cache_bytes=64 << 20,
    )
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    core.add_request(
        EngineRequest(request_id="r", prompt_token_ids=prompt(1, length), params=params)
    )
    cache, most = core._scheduler.cache, 0
    while core.has_work:
        core.step()
        for sequence in core._scheduler.running:
            table = sequence.table
            for group, blocks in enumerate(table.blocks):
                held = len(blocks) - table.forgotten[group]
                if cache.windows[group] is None:
                    assert held == -(-sequence.num_computed // BLOCK_SIZE)
                else:
                    assert held <= window_blocks(window) == window // BLOCK_SIZE + 1
                    most = max(most, held)
    # A chunk of whole blocks needs no block more.
    each = window // BLOCK_SIZE + (1 if sight == "window" else 0)
    # Steps that compute whole chunks leave nothing; the last tokens lie within one.
    assert most == (each if sight == "window" else (length % window + 40) // BLOCK_SIZE + 1)
    # What is served at once is what all these hold, and not seven times the context.
    assert cache.blocks_for(length) == 1000 + 6 * each
    core.close()
