"""What differs between the architectures of GGUF files, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.models.gguf.keys import Keys
from penstock.models.names import Name
from penstock.models.spec import ModelSpec

Fields = dict[str, object]
"""The fields of a ``config.json``."""

COMMON: Final[Mapping[str, str]] = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length",
    "head_dim": "attention.key_length",
    "rope_theta": "rope.freq_base",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}
"""The fields of most families, and the keys that have their values."""

ADJUSTED: Final[Mapping[str, str]] = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
    "mamba_d_conv": "ssm.conv_kernel",
    "mamba_d_ssm": "ssm.inner_size",
    "mamba_d_state": "ssm.state_size",
    "mamba_n_groups": "ssm.group_count",
    "mamba_n_heads": "ssm.time_step_rank",
    "mamba_num_heads": "ssm.time_step_rank",
    "n_layer": "block_count",
    "n_layers": "block_count",
    "num_experts_per_tok": "expert_used_count",
    "num_local_experts": "expert_count",
    "rope_parameters.full_attention.rope_theta": "rope.freq_base",
    "rope_parameters.sliding_attention.rope_theta": "rope.freq_base_swa",
    "rope_scaling": "rope.scaling.type",
    "rope_scaling.attention_factor": "rope.scaling.attn_factor",
    "rope_scaling.beta_fast": "rope.scaling.yarn_beta_fast",
    "rope_scaling.beta_slow": "rope.scaling.yarn_beta_slow",
    "rope_scaling.factor": "rope.scaling.factor",
    "rope_scaling.llama_4_scaling_beta": "attention.temperature_scale",
    "rope_scaling.mscale": "rope.scaling.yarn_log_multiplier",
    "rope_scaling.mscale_all_dim": "rope.scaling.yarn_log_multiplier",
    "rope_scaling.original_max_position_embeddings": "rope.scaling.original_context_length",
    "sliding_window": "attention.sliding_window",
    "v_head_dim": "attention.value_length_mla",
}
"""Fields that ``Architecture.adjust`` makes, and the keys whose values they have, for messages."""


@dataclass(frozen=True)
class Architecture:
    """How files of one ``general.architecture`` say what a family's ``config.json`` says."""

    family: str
    """The name in ``architectures`` of the family that computes it."""
    fields: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Keys of fields beside the common ones, or in place of theirs."""
    without: frozenset[str] = frozenset()
    """Common fields that the family does not have."""
    fixed: Mapping[str, object] = field(default_factory=dict, hash=False)
    """Fields that are the same in all files."""
    otherwise: Mapping[str, object] = field(default_factory=dict, hash=False)
    """What fields are whose keys are absent."""
    present: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Fields that are true where the file has a tensor."""
    partial: str | None = None
    """The field of how much of a head rotates; None: it rotates as a whole."""
    rotates: bool = True
    """Whether there is a rotary embedding."""
    adjust: Callable[[Keys, Fields], None] = lambda keys, fields: None
    """Completes the fields by keys that need more than a name."""
    names: Callable[[ModelSpec], Mapping[str, Name]] = lambda spec: {}
    """Names that are not the general ones."""
    stored: Callable[[ModelSpec], ModelSpec] = lambda spec: spec
    """Makes of a model the one whose weights lie as in files, where these order heads otherwise."""
    values: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Weights of layers that are numbers of the metadata, by the keys, which are given in full, of
    a list with one for each layer."""
    idle_keys: frozenset[str] = frozenset()
    """Keys that change nothing, or say again what others do."""
    idle: str = r"(?!)"
    """Regular expression of tensors that nothing reads."""


def without(*names: str) -> frozenset[str]:
    """Some of the common fields."""
    assert set(names) <= set(COMMON)
    return frozenset(names)
