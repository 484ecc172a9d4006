"""A checkpoint's weights under canonical names, checked against the model before any is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.config import LoadFormat
from penstock.dtypes import DTypeOption
from penstock.errors import WeightError
from penstock.interface.plan_weights import Balance, PlanWeight
from penstock.interface.source_walks import chosen, packed, tensors
from penstock.interface.sources import Packed, RowsOf, Source, Stored
from penstock.interface.weights import WeightSource, WeightValue
from penstock.models.names import BIAS, NameMap
from penstock.models.spec import DType, ModelSpec
from penstock.quant import StoredTensor
from penstock.weights.cast import dequantized
from penstock.weights.disagreement import (
    missing,
    missing_of_heads,
    missing_of_target,
    quantized_names,
    refuse_dense,
    unexpected,
)
from penstock.weights.dummy import DummyWeights
from penstock.weights.model_files import ModelFiles
from penstock.weights.smoothing import F32, F64, smoothed, smoothing_factors
from penstock.weights.source_checks import check
from penstock.weights.sources import as_named, has_rows_apart, read, read_member
from penstock.weights.tensor_file import Found

_COMPARE_BYTES: Final = 1 << 24  # at a time, so that comparing two matrices needs no copy of them


def open_weights(
    model: Path | ModelFiles,
    spec: ModelSpec,
    weights: Mapping[str, PlanWeight],
    dtype: DTypeOption = "auto",
    load_format: LoadFormat = "auto",
    seed: int = 0,
    target: Path | None = None,
    measured: Mapping[str, F64] | None = None,
) -> WeightSource:
    """The ``weights`` of a plan of ``spec``, in ``dtype`` (auto: as the checkpoint's configuration
    says).

    Every check that needs no weight data is done here: files, headers, names, shapes, dtypes.
    With ``load_format="dummy"`` the model's weight files are not looked at, and ``seed`` decides
    the values. ``target``: the checkpoint of the model that heads draft for, where they share
    weights with it. ``measured``: the squared norms of the columns of inputs, which
    ``Balance.input`` names. Raises WeightError.
    """
    wanted: DType = spec.dtype if dtype == "auto" else dtype
    if load_format == "dummy":
        return DummyWeights(weights, seed, wanted)
    return CheckpointWeights(model, spec, weights, wanted, target, measured)


class CheckpointWeights:
    """A WeightSource over the tensors of a folder's files, and of the target's where heads that
    draft share weights with it.

    :meth:`get` reads one weight at a time, so the memory in use beside the files' pages is one
    weight's; where nothing is converted or put together it is a view.
    """

    def __init__(
        self,
        model: Path | ModelFiles,
        spec: ModelSpec,
        weights: Mapping[str, PlanWeight],
        dtype: DType,
        target: Path | None = None,
        measured: Mapping[str, F64] | None = None,
    ) -> None:
        self._dtype = dtype
        self._measured = measured or {}
        self._weights = weights
        self._known_factors: dict[tuple[Source, ...], F32] = {}
        self._sources: dict[str, tuple[Source, Found]] = {}
        names = spec.names
        files = ModelFiles.of(model)
        folder = files.path
        found = as_named(files.tensors(spec.published), names)
        unused = dict(found)
        shapes = {stored: tensor.shape for stored, (_, tensor) in found.items()}
        self._found, self._shapes = found, shapes
        form = spec.quantized
        indexed, lacks = False, None
        self._as_floats = {n for n, w in weights.items() if w.floats or w.checkpoint == "target"}
        self._shared = {n: w.source for n, w in weights.items() if w.checkpoint == "target"}
        if self._shared:
            self._share(target, None if names is None else names.target_names)
        for name, weight in weights.items():
            if name in self._shared:
                continue
            source = chosen(weight.source, shapes)
            for matrix in packed(source):
                refuse_dense(folder, name, matrix, found)
            for tensor in tensors(source):
                if tensor.name not in found:
                    if spec.published == "heads":
                        raise missing_of_heads(folder, tensor.name)
                    raise missing(folder, name, source, tensor.name, found, form)
                unused.pop(tensor.name, None)
            for matrix in packed(source):
                for stored in _nil_bias(matrix, found):
                    unused.pop(stored, None)
                for stored in matrix.format.optional(matrix.name):
                    if unused.pop(stored, None) is not None:
                        indexed = True
                    elif stored not in found:
                        lacks = lacks or (name, stored)
            check(source, found)
            self._sources[name] = source, found
        if lacks is not None and form is not None and (indexed or form.any_order):
            # No matrix may do without what others have, or which define the order of columns.
            name, stored = lacks
            raise missing(folder, name, self._sources[name][0], stored, found, form)
        if spec.tie_embeddings and names is not None:
            head = {"head": weights["embed"].shape}
            for tensor in tensors(names.source("head", head)):
                if unused.pop(tensor.name, None) is not None:
                    self._check_tied_head(tensor, found)
                if form is not None:
                    _refuse_quantized(tensor, unused, found)
        extra = sorted(n for n in unused if names is None or not names.is_idle(n))
        if form is not None:
            extra = [n for n in extra if not form.is_idle(n)]
        if extra:
            raise unexpected(extra, found[extra[0]][0], spec.architecture)

    def names(self) -> Iterable[str]:
        return self._sources.keys()

    def tensor_of(self, name: str) -> str:
        """The tensor, or the first of several, of which a weight is made: for messages."""
        source, found = self._sources[name]
        return next((found[each.name][1].name for each in tensors(source)), name)

    def num_rows(self, name: str) -> int:
        return self._weights[name].shape[0]

    def get(self, name: str) -> WeightValue:
        """The weight, read-only, in the dtype this source was opened with; one that the checkpoint
        has quantized, as it is, but as floats if it is the target's or its op reads floats. What is
        balanced is float32."""
        value = read(*self._sources[name], self._dtype)
        balances = self._weights[name].balances
        if isinstance(value, StoredTensor):
            if name not in self._as_floats and not balances:
                return value
            value = dequantized(value, self._dtype, name).reshape(self._weights[name].shape)
        share = self._weights[name].share
        for balance in balances:
            factors = self._factors(balance)
            if share is not None and balance.side == "input":  # one for each row of all
                factors = share.of(factors)
            value = smoothed(value, balance, factors)
            value.flags.writeable = False
        return value

    def member(self, name: str, index: int) -> WeightValue:
        """A matrix of a stack, likewise."""
        source, found = self._sources[name]
        return read_member(source, index, found, self._dtype)

    def has_rows_apart(self, name: str) -> bool:
        return not self._weights[name].balances and has_rows_apart(self._sources[name][0])

    def rows(self, name: str, first: int, end: int) -> WeightValue:
        """Rows ``first`` to ``end`` of a matrix, as :meth:`get` has them."""
        source, found = self._sources[name]
        value = read(RowsOf(source, ((first, end),)), found, self._dtype)
        if isinstance(value, StoredTensor) and name in self._as_floats:
            return dequantized(value, self._dtype, name)
        return value

    def _factors(self, balance: Balance) -> F32:
        """The factors of columns, which all weights that they are given to share."""
        if balance.matrices not in self._known_factors:
            matrices = map(self._floats, balance.matrices)
            measured = None if balance.input is None else self._measured[balance.input]
            self._known_factors[balance.matrices] = smoothing_factors(matrices, measured)
        return self._known_factors[balance.matrices]

    def _floats(self, source: Source) -> NDArray[Any]:
        value = read(chosen(source, self._shapes), self._found, self._dtype)
        if isinstance(value, StoredTensor):
            return dequantized(value, self._dtype, "a matrix whose columns are balanced")
        return value

    def _share(self, target: Path | None, names: NameMap | None) -> None:
        """Take the weights that are shared from the checkpoint ``target``, whose tensors ``names``
        names."""
        if target is None:
            raise ValueError("heads that share weights with their target need its checkpoint")
        found = as_named(ModelFiles.open(target).tensors("model"), names)
        shapes = {stored: tensor.shape for stored, (_, tensor) in found.items()}
        for name, shared in self._shared.items():
            source = chosen(shared, shapes)
            for tensor in tensors(source):
                if tensor.name not in found:
                    raise missing_of_target(target, name, tensor.name)
            check(source, found)
            self._sources[name] = source, found

    def _check_tied_head(self, stored: Stored, found: Found) -> None:
        """Some files store a tied head again: it is the embedding, or config.json is wrong."""
        head_file, head = found[stored.name]
        (embed_source,) = tensors(self._sources["embed"][0])
        file, embed = found[embed_source.name]
        same = (head.dtype, head.shape) == (embed.dtype, embed.shape)
        if not same or not _equal_bytes(head_file.view(head.name), file.view(embed.name)):
            raise WeightError(
                f"{head_file.path} holds {head.name!r} that differs from {embed.name!r}, but "
                "config.json says they are one; set tie_word_embeddings to false"
            )


def _refuse_quantized(head: Stored, unused: Found, found: Found) -> None:
    """Raise WeightError if a quantized matrix is stored in place of the tied ``head``."""
    stem = head.name.removesuffix(".weight") + "."
    its = next((name for name in quantized_names(unused) if name.startswith(stem)), None)
    if its is not None:
        raise WeightError(
            f"{found[its][0].path} holds {its!r}, but config.json says that the output matrix is "
            "the embedding; set tie_word_embeddings to false, and lm_head to true in "
            "quantization_config"
        )


def _nil_bias(matrix: Packed, found: Found) -> tuple[str, ...]:
    """The bias that some tools store with every quantized matrix, if it is there and zero. Where
    the model has a bias, that is what is read."""
    name = matrix.name + BIAS
    if name not in found:
        return ()
    file, tensor = found[name]
    nil = tensor.element is not None and not file.view(tensor.name).any()
    return (name,) if nil else ()


def _equal_bytes(a: NDArray[Any], b: NDArray[Any]) -> bool:
    left, right = a.reshape(-1).view(np.uint8), b.reshape(-1).view(np.uint8)
    return all(
        np.array_equal(left[i : i + _COMPARE_BYTES], right[i : i + _COMPARE_BYTES])
        for i in range(0, left.size, _COMPARE_BYTES)
    )
