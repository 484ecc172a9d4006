"""Models that also read images: their language model alone equals what transformers computes."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import COMMON, add_tokenizer
from support.families import PUBLISHED
from support.model_configs import CONFIGS
from support.needs import require_native

from penstock import LLM, SamplingParams
from penstock.errors import ModelError
from penstock.models.registry import read_spec

torch = pytest.importorskip("torch", reason="transformers needs torch")
transformers = pytest.importorskip("transformers", reason="the oracle")

SIGHT = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
TURNS = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}


def gemma3() -> Any:
    own = {"head_dim": 16, "sliding_window": 9, "query_pre_attn_scalar": 24}
    config = transformers.Gemma3Config(
        text_config=COMMON | own, vision_config=SIGHT, mm_tokens_per_image=4
    )
    return transformers.Gemma3ForConditionalGeneration(config)


def llava() -> Any:
    config = transformers.LlavaConfig(
        text_config=transformers.LlamaConfig(**COMMON),
        vision_config=transformers.CLIPVisionConfig(**SIGHT),
    )
    return transformers.LlavaForConditionalGeneration(config)


def mistral3() -> Any:
    config = transformers.Mistral3Config(
        text_config=transformers.MistralConfig(**COMMON, head_dim=16, sliding_window=None),
        vision_config=transformers.PixtralVisionConfig(**SIGHT),
    )
    return transformers.Mistral3ForConditionalGeneration(config)


def qwen_vl() -> Any:
    eyes = {"depth": 1, "hidden_size": 32, "num_heads": 2, "out_hidden_size": 64}
    config = transformers.Qwen2_5_VLConfig(
        text_config={**COMMON, "rope_parameters": TURNS}, vision_config=eyes
    )
    return transformers.Qwen2_5_VLForConditionalGeneration(config)


def qwen_vl_moe() -> Any:
    """Experts are stored in stacks of transposed matrices."""
    own = {"head_dim": 16, "num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 28}
    eyes = {"depth": 1, "hidden_size": 32, "num_heads": 2, "out_hidden_size": 64}
    config = transformers.Qwen3VLMoeConfig(
        text_config={**COMMON, **own, "rope_parameters": TURNS},
        vision_config={**eyes, "intermediate_size": 32, "deepstack_visual_indexes": []},
    )
    return transformers.Qwen3VLMoeForConditionalGeneration(config)


NETS = {
    "head_dim": 16,
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "rope_parameters": TURNS | {"partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]},
}


def qwen3_5() -> Any:
    eyes = {"depth": 1, "hidden_size": 32, "num_heads": 2, "out_hidden_size": 64}
    config = transformers.Qwen3_5Config(
        text_config=COMMON | NETS, vision_config={**eyes, "intermediate_size": 32}
    )
    return transformers.Qwen3_5ForConditionalGeneration(config)


def qwen3_5_moe() -> Any:
    own = {"num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 28}
    own |= {"shared_expert_intermediate_size": 20}
    eyes = {"depth": 1, "hidden_size": 32, "num_heads": 2, "out_hidden_size": 64}
    config = transformers.Qwen3_5MoeConfig(
        text_config=COMMON | NETS | own, vision_config={**eyes, "intermediate_size": 32}
    )
    return transformers.Qwen3_5MoeForConditionalGeneration(config)


def llama4() -> Any:
    own = {"head_dim": 16, "num_local_experts": 5, "intermediate_size_mlp": 44, "floor_scale": 8}
    chunks = {"attention_chunk_size": 16, "no_rope_layer_interval": 2}
    config = transformers.Llama4Config(
        text_config={**COMMON, **own, **chunks},
        vision_config={**SIGHT, "vision_output_dim": 32, "projector_output_dim": 32},
    )
    return transformers.Llama4ForConditionalGeneration(config)


MODELS = {
    each.__name__: each
    for each in (gemma3, llava, llama4, mistral3, qwen_vl, qwen_vl_moe, qwen3_5, qwen3_5_moe)
}


@cache
def checkpoint(name: str, root: Path) -> tuple[Path, Any]:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(5)
        model = MODELS[name]().eval()
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 1.5 / parameter.shape[-1] ** 0.5)
            else:
                parameter.copy_(parameter.mean().round() + 2.0 * torch.randn_like(parameter))
    folder = root / name
    model.save_pretrained(folder)
    add_tokenizer(folder)
    return folder, model


@pytest.mark.parametrize("name", MODELS)
def test_text_is_continued_as_by_transformers(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    require_native()
    folder, model = checkpoint(name, tmp_path_factory.mktemp("text-parts"))
    prompt = np.random.default_rng(3).integers(0, 256, 25).tolist()
    params = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True, logprobs=0)
    with LLM(str(folder), dtype="float32", backend="cpu", kv_cache_bytes=1 << 22) as llm:
        (output,) = llm.generate([{"prompt_token_ids": prompt}], params)
        assert any("its language model alone is served" in note for note in llm.config.notes)
    tokens = [*prompt, *output.outputs[0].token_ids]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([tokens])).logits[0]
    assert tokens[25:] == logits[24:-1].argmax(-1).tolist()
    assert len(set(tokens[25:])) > 4
    expected = torch.log_softmax(logits.double(), -1)[range(24, 56), tokens[25:]]
    chosen = zip(output.outputs[0].logprobs, tokens[25:], strict=True)
    ours = [entry[t].logprob for entry, t in chosen]
    # transformers computes delta nets in chunks, with sums in another order.
    apart = 1e-3 if name.startswith("qwen3_5") else 1e-4
    np.testing.assert_allclose(ours, expected.numpy(), rtol=apart, atol=apart)


def test_published_text_configs_leave_out_what_transformers_assumes() -> None:
    """As Gemma 3 4B and LLaVA 1.5 are published."""
    gemma = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    outer = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3"}
    more = {"eos_token_id": [1, 106], "torch_dtype": "bfloat16", "mm_tokens_per_image": 256}
    spec = read_spec({**outer, **more, "text_config": gemma, "vision_config": {"patch_size": 14}})
    theirs = transformers.Gemma3TextConfig(**gemma)
    full = spec.layers[5].attention
    assert (full.num_heads, full.num_kv_heads, full.head_dim) == (8, 4, 256)
    assert full.scale == theirs.query_pre_attn_scalar**-0.5
    assert (spec.vocab_size, spec.max_positions) == (262208, 131072)
    assert (spec.eos_token_ids, spec.tie_embeddings, spec.dtype) == ((1, 106), True, "bfloat16")
    llava = {
        "architectures": ["LlavaForConditionalGeneration"],
        "model_type": "llava",
        "text_config": {
            "_name_or_path": "lmsys/vicuna-7b-v1.5",
            "architectures": ["LlamaForCausalLM"],
            "max_position_embeddings": 4096,
            "model_type": "llama",
            "rms_norm_eps": 1e-05,
            "torch_dtype": "float16",
            "vocab_size": 32064,
        },
        "tie_word_embeddings": False,
    }
    tensors = ["language_model.model.embed_tokens.weight", "vision_tower.x"]
    spec = read_spec(llava, tensors=tensors)
    assert spec.names is not None
    assert spec.names.is_idle("vision_tower.x")
    assert spec.names.is_idle("language_model.model.layers.0.self_attn.rotary_emb.inv_freq")
    assert not spec.names.is_idle("language_model.model.layers.0.norm.weight")
    assert (spec.hidden_size, len(spec.layers), spec.vocab_size) == (4096, 32, 32064)


def test_the_older_form_of_qwen_vl() -> None:
    """Its language model's fields stand beside the others, and positions have three dimensions."""
    own = {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}
    other = {"vision_start_token_id": 5, "image_token_id": 6, "vision_config": {}}
    architecture = {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
    }
    spec = read_spec({**CONFIGS["qwen2"], **own, **other, **architecture})
    plain = read_spec(CONFIGS["qwen2"])
    assert spec.layers == plain.layers
    assert spec.names is not None
    assert spec.names.is_idle("visual.blocks.0.norm1.weight")
    assert not spec.names.is_idle("model.layers.0.norm.weight")


def test_a_text_part_of_another_type_of_its_family() -> None:
    """As Kimi K2.5 has it, whose language model is DeepSeek V3's by another ``model_type``."""
    section = {**PUBLISHED["deepseek_v3"], "model_type": "kimi_k2"}
    outer = {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25"}
    spec = read_spec({**outer, "text_config": section})
    assert spec.layers == read_spec(PUBLISHED["deepseek_v3"]).layers


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["PaliGemmaForConditionalGeneration"]}, "not read causally"),
        ({"architectures": ["MllamaForConditionalGeneration"]}, "of type 'mllama_text_model'"),
    ],
)
def test_text_parts_that_are_refused(changes: dict[str, Any], message: str) -> None:
    section = {**CONFIGS["llama"], "model_type": "mllama_text_model"}
    with pytest.raises(ModelError, match=message):
        read_spec({"text_config": section, **changes})
