"""GLM-4.7-Flash: DeepSeek V3's attention over latents and experts, by layers that are named."""

from __future__ import annotations

from typing import Final

from penstock.models.blocks import read_mlp, read_num_layers
from penstock.models.deepseek import (
    DEFAULTS,
    FIELDS,
    drafting_layers,
    read_experts,
    read_latent_decoder,
    read_sigmoid_routing,
)
from penstock.models.mixtures import TRAINING
from penstock.models.reader import ConfigReader
from penstock.models.spec import DType, ModelSpec

ARCHITECTURE = "Glm4MoeLiteForCausalLM"
MODEL_TYPE = "glm4_moe_lite"
KNOWN_AS = "GLM-4.7-Flash, in bfloat16"

_DENSE, _SPARSE = "dense", "sparse"
_DEFAULTS: Final = {
    **DEFAULTS,
    "q_lora_rank": 768,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "max_position_embeddings": 202752,
    "rms_norm_eps": 1e-5,
    "num_experts": 64,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1536,
    "n_shared_experts": 1,
    "routed_scaling_factor": 1.8,
}


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted(FIELDS, _DEFAULTS, TRAINING)
    kinds, mlp = _kinds(config), read_mlp(config)
    experts = read_experts(config, mlp, read_sigmoid_routing)
    return read_latent_decoder(
        config,
        ARCHITECTURE,
        dtype,
        [experts if kind == _SPARSE else mlp for kind in kinds],
        interleaved=config.boolean("rope_interleave", True),
        idle=drafting_layers(config, len(kinds)),
    )


def _kinds(config: ConfigReader) -> tuple[str, ...]:
    """Which layers have experts: by ``mlp_layer_types``, else all but the first.

    transformers does not read ``first_k_dense_replace``; one that says otherwise is refused.
    """
    layers, name = read_num_layers(config), "mlp_layer_types"
    kinds = config.texts(name) or (_DENSE, *(_SPARSE,) * (layers - 1))
    if len(kinds) != layers or not set(kinds) <= {_DENSE, _SPARSE}:
        raise config.error(name, f"must be {layers} times {_DENSE!r} or {_SPARSE!r}")
    dense = kinds.count(_DENSE)
    if config.has("first_k_dense_replace"):
        config.only("first_k_dense_replace", dense, f"contradicts {name}: {dense} are {_DENSE}")
        if kinds != (_DENSE,) * dense + (_SPARSE,) * (layers - dense):
            raise config.error("first_k_dense_replace", f"contradicts {name}; remove one of them")
    return kinds
