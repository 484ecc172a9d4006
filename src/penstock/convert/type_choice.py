"""Which type each tensor of a file gets: that which ``llama-quantize`` gives it.

The rules are those of ``src/llama-quant.cpp`` in https://github.com/ggml-org/llama.cpp, for the
types of files that both write.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.convert.types import FileType
from penstock.interface.sources import Shape
from penstock.quant.formats import GGUF_FORMATS

_FLOATS: Final = ("F32", "F16", "BF16")
_WITH_OFFSETS: Final = {"Q4_0": "Q4_1", "Q5_0": "Q5_1"}
"""What the first ``ffn_down`` are in where columns are weighted."""
_FALLBACK: Final = {
    "Q2_K": "Q4_0",
    "Q3_K": "Q4_0",
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
}
"""What matrices are in whose rows are not whole blocks of 256 columns, but of 32."""
_SMALL: Final = re.compile(
    r".*_norm(_\d)?\.weight|.*ffn_gate_inp(_shexp)?\.weight|.*(position_embd|token_types)\.weight"
    r"|.*(shortconv\.conv|ssm_conv1d|exp_probs_b)\.weight|rope_f.*|(?!.*\.weight).*"
)
"""Tensors that are float32 in every file: norms, routers, biases, and other small ones."""
_NEVER_ROUNDED: Final = "per_layer_model_proj.weight"
"""A matrix that stays in floats: it is not large, and all layers read what it makes."""
_HEAD: Final = "output.weight"
_EMBEDDINGS: Final = ("token_embd.weight", "per_layer_token_embd.weight")
_LAYER: Final = re.compile(r"blk\.(\d+)\.(.+)\.weight")
_VALUES: Final = ("attn_v", "attn_qkv", "attn_kv_b")
"""Matrices that make values, alone or beside others."""
_DOWN: Final = "ffn_down"
_EIGHT: Final = 8
"""So many experts are so large that keys and values are small beside them."""
_SHARED: Final = 4
"""So many heads that read the values of one make these small beside the other matrices."""
_LARGE: Final[Mapping[str, int]] = {"llama": 80, "qwen2": 80, "olmo": 80, "jais2": 68}
"""The layers of models of 70B, by architecture, whose values are small, too."""
_FALCON: Final = "falcon"
_FALCONS_DOWN: Final[Mapping[str, tuple[str, str, str]]] = {
    "Q4_K_M": ("Q6_K", "Q5_K", "Q4_K"),
    "Q4_K_S": ("Q4_K", "Q4_K", "Q4_K"),
    "Q3_K_L": ("Q4_K", "Q4_K", "Q4_K"),
    "Q3_K_M": ("Q5_K", "Q4_K", "Q3_K"),
}
"""Falcon's ``ffn_down`` by the type of file: in the first sixteenth of the layers, where they count
most, and in the others."""


@dataclass(frozen=True)
class ModelTraits:
    """What types depend on, of a model."""

    architecture: str
    num_layers: int
    num_experts: int
    queries_per_key: int
    """How many heads read the keys of one, in the first layer; 0 where that has none."""
    names: Collection[str]
    """The names of all tensors."""

    @property
    def tied(self) -> bool:
        """Whether the output matrix is the embedding."""
        return _HEAD not in self.names

    @classmethod
    def of(cls, metadata: Mapping[str, object], names: Collection[str]) -> ModelTraits:
        """What a file with these metadata says of its model."""
        architecture = str(metadata.get("general.architecture"))

        def number(key: str, default: int = 0) -> int:
            value = metadata.get(f"{architecture}.{key}", default)
            if isinstance(value, Sequence) and value:  # a number for each layer
                value = value[0]
            return value if isinstance(value, int) else 0

        heads = number("attention.head_count")
        keys = number("attention.head_count_kv", heads)
        return cls(
            architecture,
            number("block_count"),
            number("expert_count"),
            heads // keys if keys else 0,
            names,
        )


class TypeChoice:
    """Which type each tensor of a model gets in a file of type ``wanted``. ``weighted`` says
    whether there is an importance matrix."""

    def __init__(self, wanted: FileType, model: ModelTraits, weighted: bool = False) -> None:
        self._wanted, self._model, self._weighted = wanted, model, weighted
        self._heads = frozenset(_EMBEDDINGS if model.tied else (_HEAD,))
        layers = [match for name in model.names if (match := _LAYER.fullmatch(name)) is not None]
        self._values = _places([match for match in layers if match[2] in _VALUES])
        # Where there are experts, several tensors of a layer are called so.
        downs = [] if model.num_experts > 1 else [m for m in layers if m[2].startswith(_DOWN)]
        self._downs = _places(downs)

    def of(self, name: str, shape: Shape, stored: str | None = None) -> str:
        """The type of a tensor, by the names of GGUF. ``stored`` is the one that it has in the
        source, where its bytes can be taken over."""
        if self._wanted.keeps and stored is not None:
            return stored
        if len(shape) < 2 or _SMALL.fullmatch(name):
            return "F32"
        if name == _NEVER_ROUNDED:
            return stored or "F32"
        kind = self._wanted.matrix if self._wanted.matrix in _FLOATS else self._of_matrix(name)
        if kind in _FLOATS:
            return kind
        columns = shape[-1]
        if columns % GGUF_FORMATS[kind].scheme.columns:
            kind = "Q8_0" if name in self._heads else _FALLBACK.get(kind, kind)
        return "F16" if columns % GGUF_FORMATS[kind].scheme.columns else kind

    def _of_matrix(self, name: str) -> str:
        """The type that a matrix should have, whatever its number of columns."""
        wanted, model = self._wanted, self._model
        if name in self._heads:
            return "Q8_0" if model.architecture == _FALCON else wanted.head
        match = _LAYER.fullmatch(name)
        if match is None:
            return wanted.matrix
        part = match[2]
        if model.num_experts == _EIGHT and part in (*_VALUES, "attn_k"):
            return "Q8_0"
        if part in _VALUES:
            return self._of_values(self._values[int(match[1])])
        if part.startswith(_DOWN):
            return self._of_down(self._downs.get(int(match[1]), int(match[1])))
        if part == "attn_output":
            return self._of_attention_output()
        return wanted.matrix

    def _of_values(self, place: int) -> str:
        wanted, model = self._wanted, self._model
        kind = wanted.values or wanted.matrix
        if wanted.shared_values is not None and model.queries_per_key >= _SHARED:
            kind = wanted.shared_values
        if wanted.more is not None and _counts_most(place, len(self._values)):
            kind = wanted.more
        elif wanted.first is not None and place < wanted.first_values:
            kind = wanted.first
        large = _LARGE.get(model.architecture) == model.num_layers
        if large and (model.queries_per_key != 1 or model.architecture != "llama"):
            return "Q5_K" if kind in ("Q3_K", "Q4_K") else kind
        return kind

    def _of_attention_output(self) -> str:
        wanted, model = self._wanted, self._model
        if model.architecture == _FALCON:
            return "Q4_K" if wanted.name == "Q3_K_L" else wanted.matrix
        if model.num_experts == _EIGHT:
            raised = wanted.matrix in ("Q2_K", "Q3_K", "Q4_K") and wanted.name != "Q3_K_L"
            return "Q5_K" if raised else wanted.matrix
        return wanted.attention_output or wanted.matrix

    def _of_down(self, place: int) -> str:
        wanted, layers = self._wanted, self._model.num_layers
        if self._model.architecture == _FALCON and wanted.name in _FALCONS_DOWN:
            first, most, other = _FALCONS_DOWN[wanted.name]
            if place < layers // 16:
                return first
            return most if _counts_most(place, layers) else other
        if wanted.more is not None:
            return wanted.more if _counts_most(place, layers) else wanted.matrix
        offsets = _WITH_OFFSETS.get(wanted.matrix) if self._weighted else None
        first_type = wanted.first or offsets
        if first_type is not None and place < layers // wanted.first_part:
            return first_type
        return wanted.down or wanted.matrix


def _places(tensors: list[re.Match[str]]) -> Mapping[int, int]:
    """Where layers stand among those that have one of these tensors."""
    return {layer: place for place, layer in enumerate(sorted({int(each[1]) for each in tensors}))}


def _counts_most(place: int, of: int) -> bool:
    eighth = of // 8
    return place < eighth or place >= 7 * of // 8 or (place - eighth) % 3 == 2
