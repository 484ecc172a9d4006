"""The types that files are written in, and which type each of a file's tensors gets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.errors import ConfigError
from penstock.interface.sources import Shape
from penstock.quant.formats import GGUF_FORMATS

_FLOATS: Final = ("F32", "F16", "BF16")
_WITH_OFFSETS: Final = {"Q4_0": "Q4_1", "Q5_0": "Q5_1"}
"""What the first ``ffn_down`` are in where columns are weighted, as ``llama-quantize`` has it."""
_FALLBACK: Final = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
"""What matrices are in whose rows are not whole blocks of 256 columns, but of 32."""
_SMALL: Final = re.compile(
    r".*_norm(_\d)?\.weight|.*ffn_gate_inp(_shexp)?\.weight|.*(position_embd|token_types)\.weight"
    r"|.*(shortconv\.conv|ssm_conv1d|exp_probs_b)\.weight|rope_f.*|(?!.*\.weight).*"
)
"""Tensors that are float32 in every file: norms, routers, biases, and other small ones."""
_LAYER: Final = re.compile(r"blk\.(\d+)\.(.+)\.weight")


@dataclass(frozen=True)
class FileType:
    """A type of files."""

    name: str
    number: int
    """``general.file_type``"""
    matrix: str
    """The type of matrices."""
    head: str
    """The type of the output matrix, which is the embedding where a model has no other."""
    more: str | None = None
    """The type of those matrices of a mixture that matter most: those of values, and
    ``ffn_down``, in the first and the last eighth of the layers, and in each third of the others.
    """
    joined: str | None = None
    """The type, in a mixture, of queries, keys and values that lie in one tensor."""


FILE_TYPES: Final[Mapping[str, FileType]] = {
    each.name: each
    for each in (
        FileType("F32", 0, "F32", "F32"),
        FileType("F16", 1, "F16", "F16"),
        FileType("BF16", 32, "BF16", "BF16"),
        FileType("Q8_0", 7, "Q8_0", "Q8_0"),
        FileType("Q6_K", 18, "Q6_K", "Q6_K"),
        FileType("Q5_K", 16, "Q5_K", "Q6_K"),
        FileType("Q5_K_M", 17, "Q5_K", "Q6_K", more="Q6_K", joined="Q6_K"),
        FileType("Q4_K", 14, "Q4_K", "Q6_K"),
        FileType("Q4_K_M", 15, "Q4_K", "Q6_K", more="Q6_K", joined="Q5_K"),
        FileType("Q5_0", 8, "Q5_0", "Q6_K"),
        FileType("Q4_0", 2, "Q4_0", "Q6_K"),
    )
}
"""Types of files by name, the largest first."""


def file_type(name: str) -> FileType:
    """The type of this name, in letters of any case, ``-`` for ``_`` too. Raises ConfigError."""
    found = FILE_TYPES.get(name.upper().replace("-", "_"))
    if found is None:
        raise ConfigError(
            f"type {name!r:.40} is not written; those that are: {', '.join(FILE_TYPES)}"
        )
    return found


@dataclass(frozen=True)
class TypeChoice:
    """Which type each tensor of a model gets."""

    wanted: FileType
    num_layers: int
    num_experts: int
    tied: bool
    """Whether the output matrix is the embedding."""
    weighted: bool = False
    """Whether an importance matrix says what columns count."""

    def of(self, name: str, shape: Shape) -> str:
        """The type of a tensor, by the names of GGUF."""
        if len(shape) < 2 or _SMALL.fullmatch(name):
            return "F32"
        wanted = self._wanted(name)
        if wanted in _FLOATS:
            return wanted
        columns = shape[-1]
        if columns % GGUF_FORMATS[wanted].scheme.columns:
            head = name == self._head
            wanted = "Q8_0" if head else _FALLBACK.get(wanted, wanted)
        return "F16" if columns % GGUF_FORMATS[wanted].scheme.columns else wanted

    @property
    def _head(self) -> str:
        return "token_embd.weight" if self.tied else "output.weight"

    def _wanted(self, name: str) -> str:
        """The type that the tensor should have, whatever its number of columns."""
        kind = self.wanted
        match = _LAYER.fullmatch(name)
        if name == self._head:
            return kind.head
        if match is None:
            return kind.matrix
        layer, part = int(match[1]), match[2]
        if kind.more is None:
            first = self.weighted and part.startswith("ffn_down") and layer < self.num_layers // 8
            return _WITH_OFFSETS.get(kind.matrix, kind.matrix) if first else kind.matrix
        if part == "attn_v":
            if self.num_experts == 8:  # small beside the experts
                return "Q8_0"
            return kind.more if self._counts_most(layer) else kind.matrix
        if part.startswith("ffn_down"):
            return kind.more if self._counts_most(layer) else kind.matrix
        if part == "attn_qkv":
            return kind.joined or kind.matrix
        return kind.matrix

    def _counts_most(self, layer: int) -> bool:
        eighth = self.num_layers // 8
        return layer < eighth or layer >= 7 * self.num_layers // 8 or (layer - eighth) % 3 == 2
