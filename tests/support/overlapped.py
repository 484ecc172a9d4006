"""Cores with steps in flight, for tests: an engine plan without weights, and a cache that tells."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from unittest.mock import patch

import msgspec

from penstock.cache.geometry import Window
from penstock.config import EngineConfig
from penstock.engine.core import EngineCore
from penstock.engine.loader import EnginePlan, plan_engine
from penstock.interface.executor import Executor
from penstock.plan.state_layers import StateLayer
from penstock.speculate.speculation import Speculation
from support.fake_model import ToldCache, moved
from support.overlap_executor import HashExecutor

VOCAB, EOS, POISON = 64, 2, 63


def tiny_engine_plan(path: Path) -> EnginePlan:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_act": "silu",
        "max_position_embeddings": 160,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": EOS,
    }
    (path / "config.json").write_text(json.dumps(config))
    return plan_engine(EngineConfig(model=str(path), load_format="dummy", backend="reference"))


def windowed(engine_plan: EnginePlan, windows: tuple[Window | None, Window | None]) -> EnginePlan:
    """The same model with these windows of its two layers."""
    plan = engine_plan.plan
    pairs = zip(plan.kv_layers, windows, strict=True)
    layers = tuple(dataclasses.replace(layer, window=window) for layer, window in pairs)
    return dataclasses.replace(engine_plan, plan=dataclasses.replace(plan, kv_layers=layers))


def stateful(engine_plan: EnginePlan, num_states: int) -> EnginePlan:
    """The same model with a layer that keeps states, if there are any, in so many slots."""
    if not num_states:
        return engine_plan
    layer = StateLayer(channels=4, kernel=2, heads=1, rows=4, columns=4, log_size=9)
    return dataclasses.replace(
        engine_plan,
        plan=dataclasses.replace(engine_plan.plan, state_layers=(layer,)),
        config=msgspec.structs.replace(
            engine_plan.config, num_states=num_states, state_bytes=layer.num_bytes("float32", 1)
        ),
    )


def make_core(
    engine_plan: EnginePlan,
    executor: Executor,
    speculation: Speculation | None = None,
    **limits: int,
) -> EngineCore:
    """A core whose cache remembers what its keys are of."""
    config = msgspec.structs.replace(engine_plan.config, **limits)
    with patch("penstock.engine.core.KvCache", ToldCache):
        return EngineCore(dataclasses.replace(engine_plan, config=config), executor, speculation)


def check(core: EngineCore, inner: HashExecutor) -> None:
    core.check_integrity()
    cache = core._scheduler.cache
    assert isinstance(cache, ToldCache)
    moves = core._runner.slot_moves
    if inner.model.states is not None:
        cache.check_states(inner.model.states.memory)
    cache.check_content(moved(inner.model.memory, [*moves, *core._scheduler._accepted.moves]))
