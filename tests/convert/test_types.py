"""The types of files by their names."""

from __future__ import annotations

import pytest

from penstock.cli.convert import TYPES
from penstock.convert.types import FILE_TYPES, file_type
from penstock.errors import ConfigError


def test_names() -> None:
    assert file_type("q4_k_m") is file_type("Q4-K-M") is FILE_TYPES["Q4_K_M"]
    assert file_type("q4_k") is FILE_TYPES["Q4_K_M"]  # as llama-quantize has it
    assert file_type("Q5_K") is FILE_TYPES["Q5_K_M"]
    assert file_type("Q3_K") is FILE_TYPES["Q3_K_M"]
    with pytest.raises(ConfigError, match=r"'iq3_m' is not written; .*Q4_K_M.*Q2_K"):
        file_type("iq3_m")


def test_the_help_names_all() -> None:
    assert ", ".join(FILE_TYPES).lower() == TYPES
