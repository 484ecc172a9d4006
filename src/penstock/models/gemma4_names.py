"""What the checkpoints of Gemma 4 call their weights."""

from __future__ import annotations

from typing import Final

from penstock.models.llama import NAMES as LLAMA_NAMES
from penstock.models.mixtures import MLP, ROUTER, shared_names, together
from penstock.models.names import Name, plain

_AT: Final = "model.layers.*."
_EXPERTS: Final = (
    plain(
        {
            ROUTER: _AT + "router.proj",
            "layers.*.experts_norm": _AT + "pre_feedforward_layernorm_2",
            "layers.*.experts_post_norm": _AT + "post_feedforward_layernorm_2",
            "layers.*.shared_post_norm": _AT + "post_feedforward_layernorm_1",
        }
    )
    | together(_AT + "experts")
    | shared_names(MLP)
    | {
        "layers.*.router_norm": Name(_AT + "router.scale", suffix=""),
        f"{ROUTER}.share_scale": Name(_AT + "router.per_expert_scale", suffix=""),
    }
)
NAMES: Final = (
    dict(LLAMA_NAMES.names)
    | _EXPERTS
    | plain(
        {
            "layers.*.attn_post_norm": _AT + "post_attention_layernorm",
            "layers.*.mlp_norm": _AT + "pre_feedforward_layernorm",
            "layers.*.mlp_post_norm": _AT + "post_feedforward_layernorm",
            "layers.*.token_gate": _AT + "per_layer_input_gate",
            "layers.*.token_up": _AT + "per_layer_projection",
            "layers.*.token_norm": _AT + "post_per_layer_input_norm",
            "token_inputs.embed": "model.embed_tokens_per_layer",
            "token_inputs.project": "model.per_layer_model_projection",
            "token_inputs.norm": "model.per_layer_projection_norm",
        }
    )
    | {"layers.*.output_scale": Name(_AT + "layer_scalar", suffix="")}
)
