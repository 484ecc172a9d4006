"""Nemotron-H and Nemotron 3: layers of one part, which is a selective scan (Mamba 2), attention
without rotation, an MLP without a gate, or experts of that kind."""

from __future__ import annotations

from typing import Final

from penstock.models.blocks import FULL, read_model, read_norm, read_positions
from penstock.models.mixtures import CHOICE_BIAS, DOWN, ROUTER, TRAINING, UP
from penstock.models.names import Name, NameMap, either, plain, stacked
from penstock.models.nemotron_h_parts import MLP, MOE, read_parts
from penstock.models.reader import ConfigReader
from penstock.models.selective import SCAN, scan_names
from penstock.models.spec import DType, ModelSpec

ARCHITECTURE = "NemotronHForCausalLM"
MODEL_TYPE = "nemotron_h"
KNOWN_AS = "Nemotron-H 4B to 56B, Nemotron Nano 2, Nemotron 3 Nano"
IDLE: Final = frozenset(
    {
        "chunk_size",
        "expand",
        "moe_shared_expert_overlap",
        "mtp_hybrid_override_pattern",
        "mtp_layers_block_type",
        "num_logits_to_keep",
        "num_nextn_predict_layers",
        "rescale_prenorm_residual",
        "residual_in_fp32",
        "rms_norm_eps",
        "time_step_floor",
        "time_step_max",
        "time_step_min",
        "time_step_rank",
        "use_mamba_kernels",
    }
)
_MIXER: Final = "backbone.layers.*.mixer"
NAMES: Final = NameMap(
    plain(
        {
            "embed": "backbone.embeddings",
            "layers.*.attn_norm": "backbone.layers.*.norm",
            "layers.*.mlp_norm": "backbone.layers.*.norm",
            **{f"layers.*.{x}": f"{_MIXER}.{x}_proj" for x in ("q", "k", "v", "o", "up", "down")},
            **{f"layers.*.shared.{x}": f"{_MIXER}.shared_experts.{x}_proj" for x in ("up", "down")},
            "layers.*.latent_in": f"{_MIXER}.fc1_latent_proj",
            "layers.*.latent_out": f"{_MIXER}.fc2_latent_proj",
            ROUTER: f"{_MIXER}.gate",
            "final_norm": "backbone.norm_f",
            "head": "lm_head",
        }
    )
    | either(
        plain({UP: f"{_MIXER}.experts.#.up_proj", DOWN: f"{_MIXER}.experts.#.down_proj"}),
        stacked(f"{_MIXER}.experts.up_proj", UP) | stacked(f"{_MIXER}.experts.down_proj", DOWN),
    )
    | scan_names(_MIXER)
    | {CHOICE_BIAS: Name(f"{_MIXER}.gate.e_score_correction_bias", suffix="")},
    idle=r"mtp\..*",
)

_FIELDS: Final = {
    "conv_bias": "use_conv_bias",
    "groups": "n_groups",
    "head_dim": "attention_head_dim",
    "heads": "mamba_num_heads",
    "hidden_act": "mlp_hidden_act",
    "kernel": "conv_kernel",
    "layer_types": "layers_block_type",
    "num_experts": "n_routed_experts",
    "projection_bias": "use_bias",
    "state_size": "ssm_state_size",
}
_DEFAULTS: Final = {
    "groups": 8,
    "head_dim": 128,
    "heads": 128,
    "hidden_act": "relu2",
    "intermediate_size": 21504,
    "kernel": 4,
    "layer_norm_epsilon": 1e-5,
    "layer_types": [SCAN, MOE, FULL, MLP],
    "mamba_head_dim": 64,
    "max_position_embeddings": 4096,
    "moe_intermediate_size": 7688,
    "moe_shared_expert_intermediate_size": 7688,
    "num_attention_heads": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "num_key_value_heads": 8,
    "state_size": 128,
}


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted(_FIELDS, _DEFAULTS, TRAINING)
    norm = read_norm(config, "layer_norm_epsilon")
    return read_model(
        config,
        ARCHITECTURE,
        dtype,
        layers=read_parts(config, norm),
        final_norm=norm,
        max_positions=read_positions(config),
    )
