"""Finds the product that reads the same matrix as a lookup."""

from __future__ import annotations

from penstock.plan.ops import Embed, Linear
from penstock.plan.plan import Plan


def tied_product(plan: Plan, op: Embed) -> Linear | None:
    """The product with the table as the lookup has it, in the same scheme; None if there is
    none."""
    products = (each for each in plan.ops if isinstance(each, Linear) and each.scheme == op.scheme)
    return next((p for p in products if [part.weight for part in p.parts] == [op.weight]), None)
