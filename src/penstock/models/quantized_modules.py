"""Checkpoints whose configuration says, by the names of modules, which matrices are quantized."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from penstock.errors import ModelError
from penstock.models.in_blocks import in_blocks
from penstock.models.modules import Modules
from penstock.models.names import NameMap
from penstock.models.packed_matrix import MatrixFormat
from penstock.quant.formats import BLOCK_FORMATS
from penstock.quant.scheme import READ_WHOLE, BlockScheme, QuantScheme

_HEAD: Final = "head"
_TABLE: Final = "embed"
_NEVER: Final = (".router", ".share")
"""What names end with of matrices that choose experts and weigh them: tools leave them out."""


@dataclass(frozen=True)
class Rule:
    """The format of the matrices of some modules."""

    modules: Modules
    form: MatrixFormat | None
    """None: in floats."""
    level: int = 0
    """Rules of one level other than 0 must agree where several have a module."""


@dataclass(frozen=True)
class QuantizedModules:
    """Which matrices of layers, and whether the head's, are quantized, and how: as the first of
    ``rules`` says whose modules include the matrix's own, or else in floats."""

    method: str
    """The method's name, for messages."""
    rules: tuple[Rule, ...]
    names: NameMap
    """The names of modules."""
    head: bool = False
    """Whether the output matrix may be quantized."""
    idle: str = r"(?!)"
    """Regular expression of tensors that stand beside quantized matrices and are not read."""
    notes: tuple[str, ...] = ()
    """What a user should know of the checkpoint."""
    marks: str = ""
    """What names of tensors of quantized matrices end with, if checkpoints in floats have the same
    configuration: without such tensors, nothing is quantized. Empty: none have."""
    table: MatrixFormat | None = None
    """The format of the embedding, and of an output matrix that is tied to it; None: in floats."""
    in_blocks: frozenset[str] = frozenset()
    """The formats of blocks in which matrices of small floats are read; others become floats."""

    def __str__(self) -> str:
        forms = (f"{f} read as floats" if f.scheme is None else str(f) for f in self._forms)
        table = () if self.table is None else (f"the embedding in {self.table}",)
        return ", ".join((self.method, *dict.fromkeys(forms), *table))

    @property
    def _forms(self) -> tuple[MatrixFormat, ...]:
        """Those of matrices of layers: where an embedding or an output matrix has another, options
        say nothing of that."""
        outer = Modules(frozenset(filter(None, map(self.names.module, (_TABLE, _HEAD)))))
        forms = (rule.form for rule in self.rules if not rule.modules.within(outer))
        return tuple(in_blocks(form, self.in_blocks) for form in forms if form is not None)

    @property
    def schemes(self) -> tuple[QuantScheme, ...]:
        schemes = (form.scheme for form in self._forms)
        return tuple(dict.fromkeys(scheme for scheme in schemes if scheme is not None))

    @property
    def as_floats(self) -> tuple[str, ...]:
        table = () if self.table is None else (in_blocks(self.table, self.in_blocks),)
        forms = (*self._forms, *table)
        return tuple(dict.fromkeys(str(form) for form in forms if form.scheme is None))

    @property
    def in_whole_blocks(self) -> bool:
        """Whether a backend may read some matrices in blocks that it multiplies as integers."""
        forms = (rule.form for rule in self.rules if rule.form is not None)
        found = (in_blocks(form, BLOCK_FORMATS).scheme for form in forms)
        return any(isinstance(each, BlockScheme) and each.whole for each in found)

    @property
    def any_order(self) -> bool:
        return any(rule.form is not None and rule.form.any_order for rule in self.rules)

    def limited(self, formats: Collection[str], rounded: bool) -> QuantizedModules:
        """As :class:`~penstock.models.quantized.QuantizedFormat` has it."""
        return replace(self, in_blocks=frozenset() if rounded else frozenset(formats))

    def matrix(self, name: str, columns: int | None = None) -> MatrixFormat | None:
        """How the matrix ``name`` is stored."""
        form = self._form(name)
        if form is None or columns is None:
            return form
        formats = self.in_blocks
        if self.names.is_joined(name):
            formats -= READ_WHOLE
        return in_blocks(form, formats, columns)

    def _form(self, name: str) -> MatrixFormat | None:
        if name == _TABLE:
            return self.table
        if name != _HEAD and (not name.startswith("layers.") or name.endswith(_NEVER)):
            return None
        if name == _HEAD and not self.head:
            return None
        module = self.names.module(name)
        if module is None:
            return None
        rules = [rule for rule in self.rules if module in rule.modules]
        if not rules:
            return None
        first = rules[0]
        for other in rules[1:]:
            if first.level and other.level == first.level and other.form != first.form:
                raise ModelError(
                    f"quantization_config has {module} in {first.form or 'floats'} and in "
                    f"{other.form or 'floats'}: of targets of one kind, a module must be in one "
                    "group alone"
                )
        return first.form

    def is_idle(self, tensor: str) -> bool:
        """Whether a tensor of the checkpoint is one that no matrix is read from."""
        return re.fullmatch(self.idle, tensor) is not None
