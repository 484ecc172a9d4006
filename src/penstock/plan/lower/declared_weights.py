"""The weights of a plan that is being built, and the scheme that each matrix has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.interface.plan_weights import PlanWeight
from penstock.interface.sources import RowsOf, Shape, Shifted
from penstock.models.integer_matrix import Integers
from penstock.models.names import BIAS, own_names
from penstock.models.packed_matrix import MatrixFormat
from penstock.models.spec import ModelSpec
from penstock.plan.ops import WeightName
from penstock.quant.scheme import (
    SPARSE,
    BlockScheme,
    CodebookScheme,
    LatticeScheme,
    Quantization,
    QuantScheme,
    TableScheme,
)

LABELS = "score"
"""The matrix with a row for each label of a model that classifies."""


class DeclaredWeights:
    """Weights by name, each declared when an op first reads it.

    A matrix has the scheme that the checkpoint has it in (``ModelSpec.quantized``), where kernels
    multiply that, or else the one that the options ask for (``quantization``).
    """

    def __init__(self, spec: ModelSpec, quantization: Quantization) -> None:
        self._spec = spec
        self._quantization = quantization
        self._shapes: dict[WeightName, Shape] = {}
        self._packed: dict[WeightName, MatrixFormat] = {}
        self._as_floats: set[WeightName] = set()
        self._wide: set[WeightName] = set()

    def declare(self, name: WeightName, shape: Shape, wide: bool) -> None:
        """Declare a weight, which has one shape wherever it is read. ``wide``: in float32."""
        declared = self._shapes.setdefault(name, shape)
        assert declared == shape, f"{name} is {declared} and {shape}"
        if wide:
            self._wide.add(name)

    def rounding(
        self,
        weight: WeightName,
        k: int,
        exact: bool = False,
        stored: bool = True,
        stack: bool = False,
    ) -> tuple[QuantScheme | None, bool]:
        """The scheme of a matrix of ``k`` columns, or of all of a stack, and whether its products
        leave activations as they are.

        It is what the checkpoint has the matrix quantized in, where that is read as ``stored``, or
        else what it is quantized to when it is read, which it is not if ``exact``. ``stack``: it is
        one of experts.
        """
        scheme = None if exact else self._quantization.of(weight)
        form = self._held(self._stored(weight, k if stored else None), stack)
        if not stored and form is not None and isinstance(form.scheme, BlockScheme):
            form = None  # a tensor in blocks, which may be read as floats
        if form is not None:
            scheme = form.scheme or scheme
            self._packed[weight] = form
        match scheme:
            case BlockScheme():
                whole = scheme.whole
            case LatticeScheme() | CodebookScheme():
                whole = False
            case _:
                whole = True
        weight_only = scheme is not None and not (whole and self._quantization.activations)
        return scheme, weight_only

    def _held(self, form: MatrixFormat | None, stack: bool) -> MatrixFormat | None:
        """``form`` with its zeros, where no kernel multiplies without them what is given to the
        product."""
        if not isinstance(form, Integers) or form.held_sparse is None:
            return form
        rounded = self._quantization.activations
        multiplied = rounded if form.held_sparse == SPARSE else not (rounded or stack)
        return form if multiplied else replace(form, held_sparse=None)

    def as_stored(self, weights: Sequence[WeightName], k: int) -> bool:
        """Whether matrices of ``k`` columns that one op multiplies by are read as the checkpoint
        has them: not where that is in blocks of several formats, which are read as floats then."""
        forms = [self._stored(weight, k) for weight in weights]
        schemes = [None if form is None else form.scheme for form in forms]
        kept = BlockScheme | LatticeScheme | CodebookScheme
        return not any(isinstance(each, kept) for each in schemes) or all(
            each == schemes[0] for each in schemes
        )

    def read_as_floats(self, name: WeightName) -> None:
        """Have a matrix read as floats, though the checkpoint may have it quantized."""
        stored = self._stored(name)
        if stored is not None:
            self._packed[name] = stored
            self._as_floats.add(name)

    def table_scheme(self, name: WeightName, columns: int) -> TableScheme | None:
        """The scheme of a table of rows that is looked up in, which may stay as the checkpoint has
        it."""
        stored = self._stored(name, columns)
        if stored is None:
            return None
        self._packed[name] = stored
        return stored.scheme if isinstance(stored.scheme, TableScheme) else None

    def all(self) -> dict[WeightName, PlanWeight]:
        """All weights, with the sources that the model's names give them."""
        names, shapes = self._spec.names, self._shapes
        weights = {name: PlanWeight(source) for name, source in own_names(shapes).items()}
        if names is not None:
            for name in shapes:
                if name in names.target:
                    weights[name] = PlanWeight(names.target[name], checkpoint="target")
                    continue
                if name.removesuffix(BIAS) == LABELS and self._label_tokens:
                    weights[name] = self._of_tokens(name)
                    continue
                source = names.source(name, shapes, self._packed.get(name))
                weights[name] = PlanWeight(source, floats=name in self._as_floats)
        for name in self._wide:
            # Sums stay in float32.
            weights[name] = replace(weights[name], source=Shifted(weights[name].source, 0.0))
        assert all(weight.shape == shapes[name] for name, weight in weights.items())
        return weights

    @property
    def _label_tokens(self) -> tuple[int, ...]:
        return () if self._spec.classifier is None else self._spec.classifier.tokens

    def _of_tokens(self, name: WeightName) -> PlanWeight:
        """The rows of the output matrix, or of its bias, that labels have, always as floats."""
        spec = self._spec
        assert spec.names is not None
        matrix = "embed" if spec.tie_embeddings and not name.endswith(BIAS) else "head"
        rest = self._shapes[name][1:]
        whole = name.replace(LABELS, matrix)
        form = None if name.endswith(BIAS) else self._stored(matrix)
        source = spec.names.source(whole, {**self._shapes, whole: (spec.vocab_size, *rest)}, form)
        rows = tuple((token, token + 1) for token in self._label_tokens)
        return PlanWeight(RowsOf(source, rows), floats=form is not None)

    def _stored(self, name: WeightName, k: int | None = None) -> MatrixFormat | None:
        """How the checkpoint has the matrix ``name``, if quantized; ``k``: its columns, where it
        need not be floats."""
        quantized = self._spec.quantized
        return None if quantized is None else quantized.matrix(name, k)
