"""Whatever lies in place of a file of a model is refused in one line and at once."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from support.checkpoints import tiny_checkpoint

from penstock import demo_model_path
from penstock.errors import ModelError, PenstockError, TokenizerError, WeightError
from penstock.regular_file import open_regular, read_regular
from penstock.tokenizer import load_tokenizer
from penstock.weights.model_folder import draft_heads_in, load_model_spec
from penstock.weights.published import open_draft_heads
from penstock.weights.safetensors import INDEX, SafetensorsFile, open_folder
from penstock.weights.torch_file import TorchFile

Place = Callable[[Path], object]

KINDS: dict[str, Place] = {
    "FIFO": os.mkfifo,
    "folder": lambda path: path.mkdir(),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "socket": lambda path: socket.socket(socket.AF_UNIX).bind(str(path)),
}


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose path a socket's address can hold."""
    folder = tmp_path_factory.mktemp("f")
    monkeypatch.chdir(folder)
    return Path()


@pytest.mark.parametrize("kind", KINDS)
def test_kinds(short: Path, kind: str) -> None:
    path = short / "x"
    KINDS[kind](path)
    with pytest.raises(OSError, match=rf"a {kind}, not a regular file|No such device"):
        open_regular(path)


def test_limit(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"12345")
    assert read_regular(path, 5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_regular(path, 4)
    os.truncate(path, 1 << 40)  # of nothing: it takes no room on the disk
    with pytest.raises(OSError, match="more than"):
        read_regular(path)


LOADERS: list[tuple[str, Callable[[Path], object], type[PenstockError]]] = [
    ("config.json", load_model_spec, ModelError),
    ("config.json", draft_heads_in, ModelError),
    ("generation_config.json", load_model_spec, ModelError),
    ("model.safetensors", open_folder, WeightError),
    ("model.safetensors", lambda f: SafetensorsFile(f / "model.safetensors"), WeightError),
    (INDEX, open_folder, WeightError),
    ("pytorch_model.bin", open_draft_heads, WeightError),
    ("pytorch_model.bin", lambda f: TorchFile(f / "pytorch_model.bin"), WeightError),
    ("tokenizer.json", load_tokenizer, TokenizerError),
    ("tokenizer_config.json", load_tokenizer, TokenizerError),
    ("special_tokens_map.json", load_tokenizer, TokenizerError),
    ("chat_template.jinja", load_tokenizer, TokenizerError),
    ("vocab.gguf", lambda f: load_tokenizer(f / "vocab.gguf"), TokenizerError),
]


@pytest.mark.parametrize("kind", ["FIFO", "device", "folder"])
@pytest.mark.parametrize(("name", "load", "error"), LOADERS)
def test_files_of_a_model(
    tmp_path: Path,
    name: str,
    load: Callable[[Path], object],
    error: type[PenstockError],
    kind: str,
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_checkpoint("llama"), folder)
    for file in demo_model_path().glob("tokenizer*.json"):
        shutil.copy(file, folder)
    if name in (INDEX, "pytorch_model.bin"):
        (folder / "model.safetensors").unlink()
    (folder / name).unlink(missing_ok=True)
    KINDS[kind](folder / name)
    with pytest.raises(error) as caught:
        load(folder)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)
