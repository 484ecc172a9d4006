"""GPTBigCode (StarCoder, SantaCoder): GPT-2 with one KV head for all, or one for each."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models.gpt2 import FIELDS, PLAIN, QKV, read_gpt
from penstock.models.names import NameMap, fused, plain
from penstock.models.reader import ConfigReader
from penstock.models.spec import DType, ModelSpec

ARCHITECTURE = "GPTBigCodeForCausalLM"
MODEL_TYPE = "gpt_bigcode"
KNOWN_AS = "StarCoder, SantaCoder"
_IDLE: Final = """
    attention_softmax_in_fp32 attn_pdrop inference_runner max_batch_size max_sequence_length
    n_ctx num_key_value_heads pad_key_length pre_allocate_kv_cache scale_attention_softmax_in_fp32
    summary_activation summary_first_dropout summary_proj_to_labels summary_type
    summary_use_proj validate_runner_input
"""
IDLE: Final = frozenset(_IDLE.split())
"""Fields of training, of other heads, and of how others run it; scores are always float32.
transformers writes ``num_key_value_heads`` of its defaults, and reads ``multi_query`` alone."""

_DEFAULTS: Final = {
    "activation_function": "gelu_pytorch_tanh",
    "layer_norm_epsilon": 1e-5,
    "max_position_embeddings": 1024,
}


def names(shares: int) -> NameMap:
    """The names of the weights, where rows of query, key and value alternate in ``shares``."""
    return NameMap(
        plain(PLAIN) | fused("transformer.h.*.attn.c_attn", *QKV, shares=shares),
        idle=r"transformer\.(h\.\d+\.attn\.)?(bias|masked_bias)",
        prefix="transformer.",
    )


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted(FIELDS, _DEFAULTS)
    heads = 1 if config.boolean("multi_query", True) else config.integer("num_attention_heads")
    return replace(read_gpt(config, ARCHITECTURE, dtype, heads), names=names(heads))
