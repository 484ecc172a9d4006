"""Matrices of NVFP4 whose factors are tensors of their own stay in blocks, with the same values."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize
from numpy.typing import NDArray
from support.checkpoints import tiny_checkpoint
from support.gguf_models import floats, rounded, weights_of, write_gguf
from support.gguf_nvfp4 import F32, decoded, nvfp4, with_factors

from penstock.errors import WeightError
from penstock.interface.sources import Packed
from penstock.models.gguf.blocks import BlockMatrix
from penstock.quant import BlockTensor
from penstock.quant.formats import NVFP4_SCALED
from penstock.weights.blocks import read_blocks
from penstock.weights.checkpoint import CheckpointWeights
from penstock.weights.gguf_file import open_gguf
from penstock.weights.model_folder import load_model_spec

FAMILIES: Final[dict[str, dict[str, Any]]] = {
    "llama": {"intermediate_size": 128, "tie_word_embeddings": True},
    "qwen3_moe": {"moe_intermediate_size": 64},
    "phi3": {"intermediate_size": 128},
}
"""Queries and keys that are stored in turns, and a table that is also looked up; stacks of experts;
matrices in one tensor."""


def opened(path: Path) -> CheckpointWeights:
    return weights_of(path, load_model_spec(path))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_values_are_those_of_floats(family: str, tmp_path: Path) -> None:
    folder = tiny_checkpoint(family, **FAMILIES[family])
    path = write_gguf(folder, tmp_path / "model.gguf", nvfp4, change=with_factors)
    found = opened(path)
    expected = opened(write_gguf(folder, tmp_path / "floats.gguf", floats, change=decoded))
    formats = set()
    for name in expected.names():
        value, wanted = found.get(name), expected.get(name)
        assert isinstance(wanted, np.ndarray)
        if isinstance(value, BlockTensor):
            formats.add((value.scheme.format, name == "layers.1.v"))
            decoded_value = value.dequantize().reshape(wanted.shape)
            np.testing.assert_array_max_ulp(decoded_value, wanted, 2)
            if name.endswith(".o"):
                np.testing.assert_array_equal(decoded_value, wanted)
        else:
            np.testing.assert_array_equal(value, wanted)
        if "experts" in name:
            member = found.member(name, 2)
            assert isinstance(member, BlockTensor)
            np.testing.assert_array_max_ulp(member.dequantize(), wanted[2], 2)
    own = "NVFP4_SCALED" if family == "phi3" else "NVFP4"  # where it is stored with its factor
    assert formats == {("NVFP4_SCALED", False), (own, True)}


def test_a_scale_that_files_have_for_zero(tmp_path: Path) -> None:
    blocks = rounded(np.ones((1, 64), np.float32), Type.NVFP4)
    blocks[0, :4] = 127, 255 & 126, 0, 8
    assert np.array_equal(
        _of_one_matrix(tmp_path, blocks, np.ones(1, np.float32)).dequantize(),
        dequantize(blocks, Type.NVFP4),
    )


@pytest.mark.parametrize(
    ("scale", "factor", "problem"),
    [
        (255, 1.0, "scales beyond the largest of NVFP4"),
        (8, -1.0, "negative scales"),
        (8, 0.0, "no scale but 0"),
        (8, np.nan, "scales that are not finite"),
        (8, 1e36, "values which are not finite"),
    ],
)
def test_what_cannot_be_right(scale: int, factor: float, problem: str, tmp_path: Path) -> None:
    blocks = rounded(np.ones((1, 64), np.float32), Type.NVFP4)
    blocks[0, 1] = scale
    with pytest.raises(WeightError, match=problem):
        _of_one_matrix(tmp_path, blocks, np.array([factor], np.float32))


def _of_one_matrix(folder: Path, blocks: NDArray[np.uint8], factor: F32) -> BlockTensor:
    """The matrix ``m`` ``[1, k]`` of a file that has these blocks of NVFP4, and its factor."""
    writer = gguf.GGUFWriter(folder / "matrix.gguf", "llama")
    writer.add_tensor("m.weight", blocks, raw_dtype=Type.NVFP4)
    writer.add_tensor("m.scale", factor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = open_gguf(folder / "matrix.gguf").tensors
    form = BlockMatrix(NVFP4_SCALED.scheme)
    return read_blocks(Packed("m", (1, blocks.shape[1] * 64 // 36), form), found, None)
