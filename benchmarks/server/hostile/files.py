"""Checkpoints that are broken on purpose."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Break = Callable[[Path], None]


def breakages() -> Iterator[tuple[str, Break]]:
    """Each takes the folder of a whole checkpoint and leaves a broken one."""
    for name in ("config.json", "tokenizer.json", "model.safetensors", "tokenizer_config.json"):
        yield f"{name}: cut in half", _cut(name)
        yield f"{name}: zeros", _filled(name, b"\0" * 4096)
        yield f"{name}: not UTF-8", _filled(name, b'{"a": "\xff\xfe"}')
        yield f"{name}: a pipe", _pipe(name)
        yield f"{name}: a folder", _folder(name)
    yield "config.json: brackets", _filled("config.json", b"[" * 500_000)
    yield "tokenizer.json: brackets", _filled("tokenizer.json", b"[" * 500_000)
    rope = {"rope_type": "linear"}
    for field, value in (
        ("hidden_size", 2**62),
        ("hidden_size", 0),
        ("num_hidden_layers", 10**9),
        ("num_attention_heads", -1),
        ("vocab_size", 2**40),
        ("max_position_embeddings", 2 * 10**9),
        ("rms_norm_eps", "nan"),
        ("rope_theta", 1e-320),
        ("rope_scaling", {**rope, "factor": 1e308}),
        ("rope_scaling", {**rope, "factor": 5e-324}),
        ("rope_scaling", {"rope_type": "yarn", "factor": 4.0, "beta_fast": 1e308}),
        ("model_type", ["llama"]),
        ("head_dim", 3),
    ):
        yield f"config.json: {field} {json.dumps(value)}", _set(field, value)
    yield "model.safetensors: a header of 2^60 bytes", _header(2**60, b"{}")
    yield (
        "model.safetensors: offsets that overlap",
        _tensors(
            {
                "a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
                "b": {"dtype": "F32", "shape": [4], "data_offsets": [8, 24]},
            }
        ),
    )
    yield (
        "model.safetensors: a shape that overflows",
        _tensors({"a": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 0]}}),
    )
    yield (
        "model.safetensors: 300,000 empty tensors",
        _tensors(
            {
                f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
                for i in range(300_000)
            }
        ),
    )
    yield "model.safetensors: not there", lambda folder: (folder / "model.safetensors").unlink()


def broken(folder: Path, to: Path, harm: Break) -> None:
    shutil.copytree(folder, to)
    harm(to)


def _cut(name: str) -> Break:
    def harm(folder: Path) -> None:
        path = folder / name
        os.truncate(path, path.stat().st_size // 2)

    return harm


def _filled(name: str, data: bytes) -> Break:
    def harm(folder: Path) -> None:
        (folder / name).write_bytes(data)

    return harm


def _pipe(name: str) -> Break:
    def harm(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return harm


def _folder(name: str) -> Break:
    def harm(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return harm


def _set(field: str, value: Any) -> Break:
    def harm(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))

    return harm


def _header(size: int, text: bytes) -> Break:
    return _filled("model.safetensors", struct.pack("<Q", size) + text)


def _tensors(header: dict[str, Any]) -> Break:
    text = json.dumps(header).encode()
    return _header(len(text), text + b"\0" * 24)
