"""Integers of several numbers of bits in one checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.quantize.forms.compressed_tensors import mixed_config
from penstock.quantize.grid import IntegerGrid


@dataclass(frozen=True)
class MixedIntegers:
    """Grids with groups of one size, and the modules whose matrices have each."""

    grids: Mapping[int, IntegerGrid]
    """The grid of each number of bits."""
    modules: Mapping[str, int]
    """The bits of each module; others stay as they are."""

    @property
    def group_size(self) -> int | None:
        return next(iter(self.grids.values())).group_size

    def config(self, by_index: bool, floats: Sequence[str]) -> dict[str, object]:
        """As :meth:`~penstock.quantize.forms.form.Forms.config` has it."""
        used = sorted(set(self.modules.values()))
        groups = [
            (self.grids[bits], [name for name, own in self.modules.items() if own == bits])
            for bits in used
        ]
        return mixed_config(groups, by_index, floats)
