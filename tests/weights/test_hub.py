"""Model names to folders; the hub is replaced, for tests do not use the network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
import pytest
from huggingface_hub import ModelInfo, errors

from penstock.errors import ModelError
from penstock.weights.hub import resolve_model_folder


def hub_raises(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def download(*_: Any, **__: Any) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)


def response(status: int) -> httpx.Response:
    return httpx.Response(status, request=httpx.Request("GET", "https://huggingface.co/x"))


def test_local_folder(tmp_path: Path) -> None:
    assert resolve_model_folder(str(tmp_path)) == tmp_path
    with pytest.raises(ModelError, match="leave the revision out"):
        resolve_model_folder(str(tmp_path), "main")


def test_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.touch()
    with pytest.raises(ModelError, match="is a file"):
        resolve_model_folder(str(path))
    path = tmp_path / "model.gguf"
    with pytest.raises(ModelError, match="there is no file"):
        resolve_model_folder(str(path))
    path.touch()
    assert resolve_model_folder(str(path)) == path
    assert resolve_model_folder(str(tmp_path)) == path
    with pytest.raises(ModelError, match="leave the revision out"):
        resolve_model_folder(str(path), "main")


@pytest.mark.parametrize("name", ["sha256-0123", "MODEL.GGUF", "model.bin"])
def test_a_gguf_file_by_another_name(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(b"GGUF and more")
    assert resolve_model_folder(str(path)) == path
    path.write_bytes(b"GGU")
    with pytest.raises(ModelError, match="no GGUF file"):
        resolve_model_folder(str(path))


def test_a_quantization_behind_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub_raises(monkeypatch, AssertionError("the hub was asked"))
    monkeypatch.setattr(huggingface_hub, "model_info", huggingface_hub.snapshot_download)
    monkeypatch.chdir(tmp_path)
    folder = Path("models")
    folder.mkdir()
    names = ["a-Q4_K_M.gguf", "a-Q8_0-00001-of-00002.gguf", "a-Q8_0-00002-of-00002.gguf"]
    for name in names:
        (folder / name).touch()
    for where in ("models", str(tmp_path / "models")):
        assert resolve_model_folder(f"{where}:q4_k_m") == Path(where) / names[0]
        assert resolve_model_folder(f"{where}:Q8_0") == Path(where) / names[1]
    with pytest.raises(ModelError, match=r"models has no GGUF file in Q2_K, but a-Q4_K_M\.gguf"):
        resolve_model_folder("models:Q2_K")
    with pytest.raises(ModelError, match="leave the revision out"):
        resolve_model_folder("models:Q8_0", "v1")
    with pytest.raises(ModelError, match="no quantization goes with"):
        resolve_model_folder(f"models/{names[0]}:Q8_0")


def test_a_quantization_behind_a_hub_id(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, Any] = {}

    files = ["a-Q4_K_M.gguf", "a-Q8_0-00001-of-00002.gguf", "a-Q8_0-00002-of-00002.gguf"]

    def known(repo: str, **options: Any) -> ModelInfo:
        return ModelInfo(id=repo, siblings=[{"rfilename": name} for name in files])

    def download(repo: str, **options: Any) -> str:
        asked.update(options, repo=repo)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "model_info", known)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    path = tmp_path / "a-Q8_0-00001-of-00002.gguf"
    assert resolve_model_folder("owner/name:Q8_0", "v1") == path
    assert (asked["repo"], asked["revision"]) == ("owner/name", "v1")
    assert asked["allow_patterns"] == files[1:]
    with pytest.raises(ModelError, match=r"no GGUF file in Q2_K, but a-Q4_K_M\.gguf"):
        resolve_model_folder("owner/name:Q2_K")
    for wrong in ("owner/name:", "owner/name:a/b", "owner/name:Q4_K_M:x"):
        with pytest.raises(ModelError, match="not a hub id"):
            resolve_model_folder(wrong)


def test_a_quantization_that_was_downloaded_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def unreachable(repo: str, **options: Any) -> ModelInfo:
        raise httpx.ConnectError("dns")

    def cached(repo: str, **options: Any) -> str:
        assert options["local_files_only"]
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "model_info", unreachable)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", cached)
    (tmp_path / "a-Q4_K_M.gguf").touch()
    assert resolve_model_folder("owner/name:Q4_K_M") == tmp_path / "a-Q4_K_M.gguf"
    hub_raises(monkeypatch, errors.LocalEntryNotFoundError("none"))
    with pytest.raises(ModelError, match="ConnectError: dns"):
        resolve_model_folder("owner/name:Q4_K_M")


@pytest.mark.parametrize("name", ["./missing", "/missing/folder", "a/b/c", "../up", "a b"])
def test_neither_folder_nor_id(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    hub_raises(monkeypatch, AssertionError("the hub was asked"))
    with pytest.raises(ModelError, match="no folder"):
        resolve_model_folder(name)


def test_download(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, Any] = {}

    def download(repo: str, **options: Any) -> str:
        asked.update(options, repo=repo)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve_model_folder("Qwen/Qwen3-0.6B", "v1") == tmp_path
    assert (asked["repo"], asked["revision"]) == ("Qwen/Qwen3-0.6B", "v1")
    files = [
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "config.json",
        "tokenizer.json",
        "chat_template.jinja",
        "pytorch_model.bin",
        "model.pkl",
        "code.py",
        "consolidated.safetensors",
        "original/params.json",
    ]
    kept = huggingface_hub.utils.filter_repo_objects(
        files, allow_patterns=asked["allow_patterns"], ignore_patterns=asked["ignore_patterns"]
    )
    assert list(kept) == files[:5]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (errors.GatedRepoError("no", response=response(403)), "accept its terms"),
        (errors.RevisionNotFoundError("no", response=response(404)), "no revision 'v1'"),
        (errors.RepositoryNotFoundError("no", response=response(404)), "no such model"),
        (errors.HfHubHTTPError("boom", response=response(500)), "could not be reached: boom"),
        (errors.LocalEntryNotFoundError("offline\nlong"), "could not be reached: offline;"),
        (errors.OfflineModeIsEnabled("offline"), "could not be reached"),
        (OSError("disk full"), "could not be reached: disk full"),
        (httpx.ConnectError("dns"), "ConnectError: dns"),
    ],
)
def test_hub_errors(monkeypatch: pytest.MonkeyPatch, error: Exception, message: str) -> None:
    hub_raises(monkeypatch, error)
    with pytest.raises(ModelError, match=message):
        resolve_model_folder("owner/name", "v1")
