"""The types of tensors in GGUF files."""

from __future__ import annotations

from penstock.gguf.types import TYPES
from penstock.quant.formats import GGUF_FORMATS


def test_files_and_decoders_agree_on_the_sizes_of_blocks() -> None:
    of_files = {each.name: (each.columns, each.block_bytes) for each in TYPES.values()}
    for name, form in GGUF_FORMATS.items():
        assert of_files[name] == (form.scheme.columns, form.scheme.block_bytes), name
