"""Factors of a configuration: what parts of a model are multiplied by."""

from __future__ import annotations

from penstock.models.limits import MAX_FACTOR
from penstock.models.reader import ConfigReader


def read_factor(config: ConfigReader, name: str, default: float = 1.0) -> float:
    return config.number(name, default, high=MAX_FACTOR)


def read_factors(config: ConfigReader, name: str, count: int) -> tuple[float, ...]:
    """So many factors; each is 1 where the field is absent."""
    if config.raw(name) is None:
        return (1.0,) * count
    factors = config.numbers(name, low=0.0, high=MAX_FACTOR)
    if len(factors) != count:
        raise config.error(name, f"must have {count} numbers")
    return factors


def read_input_factor(config: ConfigReader, name: str, biases: str) -> float:
    """What the input of some products is multiplied by, to be applied to what they make.

    Raises ModelError where the field ``biases`` says that they have any, which are not multiplied,
    and the factor is not 1.
    """
    factor = read_factor(config, name)
    if factor != 1.0 and config.boolean(biases, False):
        raise config.error(name, f"must be 1 where {biases} is true: biases are not multiplied")
    return factor
