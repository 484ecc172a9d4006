"""Whatever a key of a GGUF file says, the file is a model, or is refused by a clear error."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import tiny_checkpoint
from support.families import FAMILIES
from support.gguf_form_table import FORMS
from support.gguf_forms import write_form
from support.gguf_models import SAID, write_gguf

from penstock.errors import PenstockError
from penstock.gguf.metadata import GgufValue
from penstock.plan.lower import lower
from penstock.weights.gguf_file import GgufModel, open_gguf
from penstock.weights.gguf_spec import load_gguf_spec

HOSTILE: list[Any] = [
    *(0, 1, 3, -1, 10**7, 2**32 - 1, "x", True, math.nan, math.inf, 0.0, -2.5),
    *([1, 2], ["a"], [0.0] * 3, [1] * 4096, None),
]


def refuse_or_read(model: GgufModel) -> None:
    keys = [key for key in model.metadata if not key.startswith(("general.", "tokenizer."))]
    assert keys
    for key in keys:
        for value in HOSTILE:
            metadata: dict[str, GgufValue] = {**model.metadata, key: value}
            if value is None:
                del metadata[key]
            refused = refusal(replace(model, metadata=metadata), f"{key} = {str(value)[:40]}")
            if refused is not None:
                assert str(model.path) in refused, (key, value)
                assert "take config.json" not in refused, (key, value)


def refusal(model: GgufModel, what: str) -> str | None:
    """The error of what cannot be read; None for what can."""
    try:
        lower(load_gguf_spec(model), "float32")
    except PenstockError as error:
        return str(error)
    except Exception as error:
        raise AssertionError(f"{what}: {error!r}") from error
    return None


@pytest.mark.parametrize("family", ["llama", "phi3"])
def test_keys(family: str, tmp_path: Path) -> None:
    folder = tiny_checkpoint(family, **SAID.get(family, {}))
    refuse_or_read(open_gguf(write_gguf(folder, tmp_path / "model.gguf")))


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(set(FORMS) - {"falcon"}))
def test_keys_of_other_forms(family: str, tmp_path: Path) -> None:
    folder = tiny_checkpoint(family, **next(iter(FAMILIES[family].cases.values())))
    refuse_or_read(open_gguf(write_form(folder, tmp_path / "model.gguf", FORMS[family])))
