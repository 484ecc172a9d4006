"""What is to be done to quantize a checkpoint, and whether it can be."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import ConfigError, ModelError
from penstock.models.sparse24 import OF
from penstock.quant.scheme import GROUP_SIZES
from penstock.quantize.embeddings import Embeddings
from penstock.quantize.forms.sparse import SparseFloats
from penstock.quantize.layers import Layers, Target, layers_of
from penstock.quantize.methods import Methods
from penstock.quantize.pruning import Magnitude, SparseGpt
from penstock.quantize.samples import Samples
from penstock.quantize.source import SourceModel


class Quantization:
    """A checkpoint, and the method by which its matrices become a form.

    All that can be refused is refused when it is made, before a weight is read.
    """

    def __init__(
        self,
        source: SourceModel,
        method: Methods,
        samples: Samples | None = None,
        like: Layers | None = None,
        embeddings: Embeddings | None = None,
    ) -> None:
        """``samples`` are what the model reads, where the method asks for that. ``like`` are the
        layers of a Quantization of all matrices, where some stay as they are. ``embeddings`` are
        rounded, too, and else stay as they are. Raises ConfigError and ModelError."""
        if method.calibrated and samples is None:
            raise ConfigError(f"--method {method.name} needs a text: --calibration FILE")
        self.source, self.method, self.samples = source, method, samples
        self.embeddings = embeddings
        names = source.spec.names
        head = None if names is None else names.module("head")
        left = [] if head is None else [head]
        spec = source.quantized(method.form.config(method.by_index, left))
        layers = layers_of(source.spec, spec, 1 if samples is None else samples.length)
        if like is not None:
            layers = like.restricted({each.module: each.stored for each in layers.targets})
        self.layers: Layers = layers
        for target in self.layers.targets:
            self._check(target)
        self.config = dict(source.config)
        """``config.json`` of the result."""
        plain = isinstance(method.form, SparseFloats) and not method.form.compressed
        if embeddings is not None or not plain:
            section = method.form.config(method.by_index, self._floats(left))
            if embeddings is not None:
                section = embeddings.config(None if plain else section)
                embeddings.check(source.quantized(section))
            self.config["quantization_config"] = section

    def _check(self, target: Target) -> None:
        if target.name not in self.source.tensors:
            raise ModelError(
                f"the checkpoint has no {target.name}, which would be quantized: its matrices are "
                "stored together in a way that is not quantized yet"
            )
        if self.source.shape(target.name) != target.shape:
            raise ModelError(
                f"{target.name} has shape {list(self.source.shape(target.name))}, and config.json "
                f"asks for {list(target.shape)}; take both from one checkpoint"
            )
        k = target.shape[1]
        size = self.method.form.group_size
        if size is not None and k % size:
            fitting = [f"--group-size {each}" for each in GROUP_SIZES if k % each == 0]
            raise ConfigError(
                f"{target.module} has {k} columns, which are no whole groups of {size}; take "
                f"{' or '.join([*fitting, '--group-size row'])}"
            )
        if isinstance(self.method, Magnitude | SparseGpt) and k % OF:
            raise ConfigError(
                f"{target.module} has {k} columns, which are no whole groups of {OF}; 2:4 sparsity "
                "is not for this model: take another --method"
            )
        try:
            target.stored.tensors(target.module, target.shape)
        except ModelError as error:
            problem = str(error).partition(";")[0]
            raise ConfigError(f"{problem}; take another --format, --bits or --method") from error
        if self.method.calibrated and target.input is None:
            raise ConfigError(
                f"--method {self.method.name} does not know what {target.module} multiplies: rows "
                "that a router chooses are not measured; take --method rtn"
            )

    def _floats(self, left: Sequence[str]) -> list[str]:
        """The modules with matrices that stay as they are, for readers that would expect all to be
        quantized."""
        targets = {target.module for target in self.layers.targets}
        if self.embeddings is not None:
            targets.update(self.embeddings.modules)
        found = dict.fromkeys(name for name in left if name not in targets)
        for name in self.source.tensors:
            module = name.removesuffix(".weight")
            if name != module and module not in targets and len(self.source.shape(name)) == 2:
                found[module] = None
        return list(found)
