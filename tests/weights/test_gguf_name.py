"""What a server calls the model in a GGUF file."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from penstock.weights.gguf_file import open_gguf
from penstock.weights.gguf_spec import gguf_name


def written(path: Path, name: str | None, split: int = 0) -> Path:
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=split)
    if name is not None:
        writer.add_name(name)
    for tensor in "ab":
        writer.add_tensor(tensor, np.zeros(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def name_of(path: Path) -> str:
    return gguf_name(open_gguf(path).metadata, path)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("SmolLM2-135M-Instruct.Q4_1", "SmolLM2-135M-Instruct"),
        ("gemma-3-270m-q4_k_m", "gemma-3-270m"),
        ("Qwen3-30B-A3B-UD-Q4_K_XL", "Qwen3-30B-A3B"),
        ("Mistral-7B.i1-IQ4_XS", "Mistral-7B"),
        ("Meta-Llama-3-8B-Instruct-fp16", "Meta-Llama-3-8B-Instruct"),
        ("phi-4-bf16", "phi-4"),
        ("gpt-oss-20b-mxfp4", "gpt-oss-20b"),
        ("tiny_tq1_0-imat", "tiny"),
        ("Qwen3-Coder", "Qwen3-Coder"),
        ("q4_0", "q4_0"),
    ],
)
def test_a_file_gives_the_name(file: str, name: str, tmp_path: Path) -> None:
    assert name_of(written(tmp_path / f"{file}.gguf", "Something Else Ep2")) == name


@pytest.mark.parametrize("file", ["model", "ggml-model-q4_0", "model-Q8_0", "0123456789abcdef" * 4])
def test_a_file_whose_name_says_nothing(file: str, tmp_path: Path) -> None:
    assert name_of(written(tmp_path / f"{file}.gguf", " SmolLM2 ")) == "SmolLM2"
    assert name_of(written(tmp_path / f"{file}.gguf", None)) == file


def test_files_without_a_suffix(tmp_path: Path) -> None:
    assert name_of(written(tmp_path / "Llama-3.2-1B", None)) == "Llama-3.2-1B"
    assert name_of(written(tmp_path / f"sha256-{'0f' * 32}", "SmolLM2")) == "SmolLM2"


def test_parts_of_one_model(tmp_path: Path) -> None:
    written(tmp_path / "Big-Q8_0.gguf", "Other", split=1)
    assert name_of(tmp_path / "Big-Q8_0-00001-of-00002.gguf") == "Big"
