"""What is to be done to quantize a checkpoint, and whether it can be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from penstock.errors import ConfigError, ModelError
from penstock.interface.source_walks import tensors
from penstock.models.bitsandbytes import BLOCK
from penstock.models.compressed_tensors import METHOD as COMPRESSED_TENSORS
from penstock.models.sparse24 import OF
from penstock.quant.scheme import GROUP_SIZES
from penstock.quantize.embeddings import Embeddings
from penstock.quantize.forms.bitsandbytes import Bnb4
from penstock.quantize.forms.form import Coded
from penstock.quantize.forms.integers import Integers
from penstock.quantize.forms.mixed import MixedIntegers
from penstock.quantize.forms.small_floats import Nvfp4
from penstock.quantize.forms.sparse import SparseFloats
from penstock.quantize.layers import Layers, Target, layers_of
from penstock.quantize.matrices import transposed
from penstock.quantize.methods import Methods
from penstock.quantize.pruning import Magnitude, SparseGpt
from penstock.quantize.samples import Samples
from penstock.quantize.source import SourceModel
from penstock.quantize.tensor_file import NewTensor


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
        tokens = 1 if samples is None else samples.length
        layers = layers_of(source.spec, source.shapes, spec, tokens)
        if like is not None:
            layers = like.restricted({each.module: each.stored for each in layers.targets})
        self.layers: Layers = layers
        for target in self.layers.targets:
            self._check_shapes(target)
        self._check_groups()
        for target in self.layers.targets:
            self._check(target)
        self.config: dict[str, Any] = dict(source.config)
        """``config.json`` of the result."""
        if embeddings is not None or not self.in_floats:
            section = method.form.config(method.by_index, self._floats(left))
            if embeddings is not None:
                section = embeddings.config(None if self.in_floats else section)
                embeddings.check(source.quantized(section))
            self.config["quantization_config"] = section

    def _check_shapes(self, target: Target) -> None:
        for tensor in tensors(target.source):
            shape = self.source.shapes.get(tensor.name)
            if shape is None:
                raise ModelError(
                    f"the checkpoint has no {tensor.name}, which would be quantized; take "
                    "config.json and weights from one checkpoint"
                )
            if shape != tensor.shape:
                raise ModelError(
                    f"{tensor.name} has shape {list(shape)}, and config.json asks for "
                    f"{list(tensor.shape)}; take both from one checkpoint"
                )

    def _check(self, target: Target) -> None:
        k = target.shape[1]
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
                f"--method {self.method.name} does not know what {target.module} multiplies; take "
                "--method rtn"
            )

    def _check_groups(self) -> None:
        size = self.method.form.group_size
        columns: dict[int, str] = {}
        for target in self.layers.targets:
            columns.setdefault(target.shape[1], target.module)
        for k, module in columns.items():
            if size is not None and k % size:
                fitting = [n for n in GROUP_SIZES if all(each % n == 0 for each in columns)]
                taken = [*(f"--group-size {each}" for each in fitting), "--group-size row"]
                if not isinstance(self.method.form, Integers | MixedIntegers):
                    taken = ["another --method"]
                raise ConfigError(
                    f"{module} has {k} columns, which are no whole groups of {size}; take "
                    f"{' or '.join(taken)}"
                )

    def _floats(self, left: Sequence[str]) -> list[str]:
        """The modules with matrices that stay as they are, for readers that would expect all to be
        quantized."""
        targets = {name for target in self.layers.targets for name in target.tensors}
        if self.embeddings is not None:
            targets.update(self.embeddings.tensors)
        found = dict.fromkeys(module for module in left if f"{module}.weight" not in targets)
        for name, shape in self.source.shapes.items():
            module = name.removesuffix(".weight")
            if name != module and name not in targets and len(shape) == 2:
                found[module] = None
        return list(found)

    @property
    def notes(self) -> tuple[str, ...]:
        """What users should know of who reads the result, a line each."""
        found: list[str] = []
        if isinstance(self.method.form, Bnb4) and any(
            target.shape[1] % 16 == 0 and target.shape[1] % BLOCK for target in self.layers.targets
        ):
            found.append(
                f"a matrix has rows that are no whole number of {BLOCK} columns, of which "
                "bitsandbytes (0.50) computes other values on CPUs with AVX-512, also of those "
                "that it has made itself; it reads them right elsewhere"
            )
        method = self.config.get("quantization_config", {}).get("quant_method")
        if method != COMPRESSED_TENSORS:
            return tuple(found)
        if any(any(transposed(target.source)) for target in self.layers.targets):
            found.append(
                "the original has matrices transposed, of which other engines do not find what "
                "compressed-tensors stores: transformers computes with random ones in their place; "
                "give it --format gptq"
            )
        if self.method.by_index:
            found.append(
                "compressed-tensors reads no order of columns since its version 0.20; take "
                "--act-order static for it, or --format gptq"
            )
        of_experts = any(".experts." in target.module for target in self.layers.targets)
        if of_experts and isinstance(self.method.form, Nvfp4):
            found.append(
                "transformers (5.23) leaves the factors of experts' NVFP4 matrices out, and "
                "computes other values without a word; give it another format, or what "
                "compressed-tensors itself decodes"
            )
        return tuple(found)

    @property
    def in_floats(self) -> bool:
        """Whether what is written is a checkpoint in floats, like any other."""
        return isinstance(self.method.form, SparseFloats) and not self.method.form.compressed

    def stored(self, target: Target, made: Coded) -> list[NewTensor]:
        """The tensors of a matrix that has been rounded."""
        arrays: Mapping[str, NDArray[Any]] = made.arrays()
        if self.in_floats and any(transposed(target.source)):
            arrays = {end: array.T for end, array in arrays.items()}
        module = self.source.stored_module(target.module, target.source)
        return [NewTensor.of(f"{module}.{end}", array) for end, array in arrays.items()]
