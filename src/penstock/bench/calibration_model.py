"""The models that a calibration runs: made up, so that no model is predicted by its own times."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from penstock.dtypes import DType
from penstock.hardware import Hardware

_LAYER_INT4 = 17 << 20
"""Bytes of a layer's weights in 4 bits, the fewest that are measured."""
_CACHES = 4
"""Weights take so many times the last-level caches, so that steps read them from memory."""
_MOST_LAYERS = 24
_VOCABULARY = 32768


@dataclass(frozen=True)
class CalibrationModel:
    """A decoder of random weights.

    ``normed``: it norms heads before it rotates them, as Qwen3 does, which takes time of its own.
    """

    layers: int
    normed: bool = False
    dtype: DType = "bfloat16"

    @classmethod
    def of(cls, hardware: Hardware, dtype: DType) -> CalibrationModel:
        """The model in this type whose weights do not fit into this machine's caches."""
        wanted = -(-_CACHES * hardware.last_level_bytes // _LAYER_INT4)
        return cls(min(max(wanted, 4), _MOST_LAYERS), dtype=dtype)

    def write(self, folder: Path) -> None:
        """Write a ``config.json``, all that dummy weights need."""
        family = "Qwen3" if self.normed else "Llama"
        config = {
            "architectures": [f"{family}ForCausalLM"],
            "model_type": family.lower(),
            "hidden_size": 1536,
            "intermediate_size": 5120,
            "num_hidden_layers": self.layers,
            "num_attention_heads": 12,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "vocab_size": _VOCABULARY,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "torch_dtype": self.dtype,
        }
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
