"""The embedding and the output matrix in 8 bits, beside matrices of layers in any form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigError, ModelError
from penstock.interface.source_walks import chosen
from penstock.interface.sources import Stored
from penstock.models import compressed_tensors as compressed
from penstock.models import quip, sparse24
from penstock.models.spec import ModelSpec
from penstock.quantize.forms import compressed_tensors
from penstock.quantize.forms.integers import Integers
from penstock.quantize.grid import F32, IntegerGrid, IntegerMatrix, require_finite
from penstock.quantize.source import SourceModel
from penstock.quantize.tensor_file import NewTensor
from penstock.weights.tensor_file import NUMPY_DTYPES

BITS: Final = 8
_CHUNK: Final = 1 << 22
"""Number of weights that are rounded at a time: a table may have a billion."""


class Embeddings:
    """The embedding and, where it is not tied to that, the output matrix of a checkpoint, each
    weight to become the nearest of 255 points of its row, or of 256.

    They are stored as compressed-tensors packs integers, whatever matrices of layers become.
    """

    def __init__(self, source: SourceModel) -> None:
        """Raises ModelError for a model whose tensors of these are no plain matrices."""
        spec = source.spec
        names = ("embed",) if spec.tie_embeddings else ("embed", "head")
        self._source = source
        self.modules: tuple[str, ...] = tuple(_module(source, name) for name in names)
        grid = IntegerGrid(BITS, None, True, compressed_tensors.scale_dtype(spec.dtype))
        self._form = Integers(grid, compressed_tensors)
        self.tensors: frozenset[str] = frozenset(f"{module}.weight" for module in self.modules)
        """The tensors that are replaced."""
        self.dropped: frozenset[str] = frozenset(_tied_copy(source))
        """Those that are left out: a tied output matrix that the checkpoint has once more."""

    def config(self, section: Mapping[str, object] | None) -> dict[str, object]:
        """``quantization_config``, of which ``section`` tells of the matrices of layers; None: they
        stay in floats. Raises ConfigError for formats that have no room for these."""
        group = compressed_tensors.group(self._form.grid, self.modules)
        if section is None:
            return compressed_tensors.config_of({"group_0": group}, ())
        method = section.get("quant_method")
        if method == quip.METHOD:
            return {**section, quip.TABLE_BITS: BITS}
        groups = section.get("config_groups")
        sparsity = section.get("sparsity_config")
        sparse = isinstance(sparsity, Mapping) and sparsity["format"] == sparse24.FORMAT
        if method != compressed.METHOD or sparse or not isinstance(groups, Mapping):
            raise ConfigError(
                "--embedding-bits is of quip, and of compressed-tensors' formats but "
                f"{sparse24.FORMAT}: {sparse24.FORMAT if sparse else method} has no room for "
                "embeddings; leave it out, or take another --format"
            )
        own, usual = compressed_tensors.PACKED, section["format"]
        several = {**groups, f"group_{len(groups)}": group}
        if usual == own:
            return {**section, "config_groups": several}
        of_each = {name: {"format": usual, **each} for name, each in groups.items()}
        of_each[f"group_{len(groups)}"] = {"format": own, **group}
        return {**section, "format": compressed.MIXED, "config_groups": of_each}

    def check(self, spec: ModelSpec) -> None:
        """Raise ModelError unless ``spec``, read of what :meth:`config` made, has them so."""
        assert spec.quantized is not None
        for name, module in zip(("embed", "head"), self.modules, strict=False):
            form = spec.quantized.matrix(name, spec.hidden_size)
            if form is None or form.scheme is None:
                raise ModelError(f"no reader of this format would find {module} in {BITS} bits")

    def num_bytes(self) -> int:
        """Bytes of all of them, as they are stored."""
        scale = NUMPY_DTYPES[self._form.grid.scale_dtype].itemsize
        shapes = (self._source.shapes[name] for name in self.tensors)
        return sum(n * (4 * -(-k // 4) + scale) + 16 for n, k in shapes)

    def written(self, name: str) -> Iterator[NewTensor]:
        """The tensors in the place of one. Raises WeightError where it has values that are not
        finite."""
        stem = self._source.stored_name(name).removesuffix(".weight")
        for end, array in self._form.coded(self._rounded(name), name).arrays().items():
            yield NewTensor.of(f"{stem}.{end}", array)

    def values(self, name: str) -> F32:
        """What readers find in the place of a tensor. Raises as :meth:`written`."""
        return self._rounded(name).dequantize()

    def _rounded(self, name: str) -> IntegerMatrix:
        values = self._source.values(name)
        n, k = values.shape
        grid = self._form.grid
        codes = np.empty((n, k), np.uint8)
        scales = np.empty((n, 1), np.float32)
        zeros: NDArray[np.int32] = np.full((n, 1), grid.middle, np.int32)
        rows = max(1, _CHUNK // k)
        for first in range(0, n, rows):
            some = slice(first, first + rows)
            require_finite(values[some], name)
            grouped = grid.grouped(values[some])
            made = grid.matrix(grouped, *grid.fit(grouped))
            codes[some], scales[some] = made.codes, made.scales
        return IntegerMatrix(grid, codes, scales, zeros)


def _module(source: SourceModel, name: str) -> str:
    """The module of a matrix. Raises ModelError where its tensor is not the matrix as it is."""
    spec, names = source.spec, source.spec.names
    shape = (spec.vocab_size, spec.hidden_size)
    if names is not None and names.module(name) is not None:
        module = names.module(name)
        shapes = dict(source.shapes)
        found = chosen(names.source(name, {name: shape}), shapes)
        if isinstance(found, Stored) and found.name == f"{module}.weight" and found.name in shapes:
            return str(module)
    raise ModelError(
        f"the checkpoints of {spec.architecture} have no {name} that could be stored in {BITS} "
        "bits; leave --embedding-bits out"
    )


def _tied_copy(source: SourceModel) -> Iterator[str]:
    names = source.spec.names
    if source.spec.tie_embeddings and names is not None:
        copy = f"{names.module('head')}.weight"
        if copy in source.tensors:
            yield copy
