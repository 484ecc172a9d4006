"""Resolves what a user names as a model to a folder, or a GGUF file, on disk."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from penstock.errors import ModelError
from penstock.gguf.names import SUFFIX, is_gguf
from penstock.weights.gguf_choice import in_folder, named

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9_][\w.-]*)?")

# What serving needs and nothing that can run code. Only the top folder: makers keep their own
# layouts (original/, onnx/) below it.
HUB_FILES: Final = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model", "merges.txt"]
_PICKLED: Final = ["medusa_lm_head.pt", "pytorch_model.bin"]
"""Files that hold pickled draft heads, which are often published in no other form
(``weights/torch_pickle.py``)."""
_TOKENIZER_FILES: Final = [name for name in HUB_FILES if name != "*.safetensors"]
HUB_IGNORED: Final = ["*/*", "consolidated*.safetensors"]


def resolve_model_folder(model: str, revision: str | None = None, heads: bool = False) -> Path:
    """The folder of ``model``, or its GGUF file: a path, or a hub id, downloaded unless it is in
    the cache.

    A hub id, or a folder, with a quantization behind it (``owner/name:Q4_K_M``) is the GGUF file of
    that name. A folder whose model is one GGUF file is that file. ``revision`` is a branch, tag or
    commit of a hub id; ``heads``: what is there are heads that draft. Raises ModelError where there
    is no such path and the hub does not have it, does not grant it, or cannot be reached.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        if revision is not None:
            raise ModelError(
                f"revision {revision!r} was given, but {model} is a folder, which has none; "
                "leave the revision out"
            )
        return path if heads else in_folder(path) or path
    if path.exists() or path.suffix == SUFFIX:
        return _file(path, revision)
    where, _, quantization = model.rpartition(":")
    if where and Path(where).expanduser().exists():
        return _local_gguf(Path(where).expanduser(), quantization, revision)
    hub_id, _, quantization = model.partition(":")
    if _HUB_ID.fullmatch(hub_id) is None or (":" in model and not _NAME.fullmatch(quantization)):
        raise ModelError(f"there is no folder {model}, and it is not a hub id (owner/name)")
    if quantization:
        return _download_gguf(hub_id, quantization, revision)
    return _download(model, revision, HUB_FILES + _PICKLED if heads else HUB_FILES)


def resolve_tokenizer(source: str) -> Path:
    """The folder or GGUF file of a tokenizer: a path, or a hub id, of which no weights are
    downloaded. Raises ModelError."""
    path = Path(source).expanduser()
    if path.exists() or _HUB_ID.fullmatch(source) is None:
        return resolve_model_folder(source)
    return _download(source, None, _TOKENIZER_FILES)


def resolve_config(model: str) -> Path:
    """The folder of a model's configuration, or its GGUF file; of a hub id the configuration alone
    is downloaded. Raises ModelError as :func:`resolve_model_folder` does."""
    path = Path(model).expanduser()
    if path.exists() or path.suffix == SUFFIX or ":" in model or not _HUB_ID.fullmatch(model):
        return resolve_model_folder(model)
    return _download(model, None, ["config.json", "generation_config.json"])


def _file(path: Path, revision: str | None) -> Path:
    if not path.exists():
        raise ModelError(f"there is no file {path}")
    if not is_gguf(path):
        raise ModelError(
            f"{path} is a file, and no GGUF file; give one, or the folder of a Hugging Face "
            "checkpoint"
        )
    if revision is not None:
        raise ModelError(
            f"revision {revision!r} was given, but {path} is a file, which has none; leave the "
            "revision out"
        )
    return path


def _local_gguf(path: Path, quantization: str, revision: str | None) -> Path:
    """The file of a folder in this quantization."""
    if not path.is_dir():
        raise ModelError(f"{path} is a file, which no quantization goes with; leave it out")
    if revision is not None:
        raise ModelError(
            f"revision {revision!r} was given, but {path} is a folder, which has none; leave the "
            "revision out"
        )
    return path / named((each.name for each in path.glob(f"*{SUFFIX}")), quantization, str(path))[0]


def _download(model: str, revision: str | None, allow: list[str]) -> Path:
    # Imported here: it takes longer than the rest of Penstock, and local folders do not need it.
    from huggingface_hub import snapshot_download

    with explained(model, revision):
        return Path(
            snapshot_download(
                model, revision=revision, allow_patterns=allow, ignore_patterns=HUB_IGNORED
            )
        )


def _download_gguf(model: str, quantization: str, revision: str | None) -> Path:
    """The file of a repository in this quantization, all parts beside it."""
    from huggingface_hub import errors, model_info, snapshot_download

    with explained(model, revision):
        try:
            # Listing a tree is tried for half a minute where there is no connection; this, once.
            known = model_info(model, revision=revision).siblings or []
            files = [each.rfilename for each in known]
        except (
            errors.GatedRepoError,
            errors.RepositoryNotFoundError,
            errors.RevisionNotFoundError,
        ):
            raise
        except Exception:
            # Without a connection, what is in the cache will do, if it is there.
            try:
                cached = Path(snapshot_download(model, revision=revision, local_files_only=True))
            except errors.LocalEntryNotFoundError:
                cached = None
            if cached is None:
                raise
            files = [str(each.relative_to(cached)) for each in cached.rglob(f"*{SUFFIX}")]
            names = named(files, quantization, model)
            return cached / names[0]
    names = named(files, quantization, model)
    with explained(model, revision):
        folder = Path(
            snapshot_download(
                model, revision=revision, allow_patterns=list(map(glob.escape, names))
            )
        )
    return folder / names[0]


@contextmanager
def explained(model: str, revision: str | None) -> Iterator[None]:
    """Raise ModelError, with the cause and the fix, for whatever the hub's client raises."""
    from huggingface_hub import errors

    try:
        yield
    except ModelError:
        raise
    except errors.GatedRepoError as e:
        raise ModelError(
            f"the hub asks for consent before it gives out {model}; accept its terms at "
            f"https://huggingface.co/{model} and log in with `hf auth login`"
        ) from e
    except errors.RevisionNotFoundError as e:
        raise ModelError(f"hub model {model} has no revision {revision!r}") from e
    except errors.RepositoryNotFoundError as e:
        raise ModelError(
            f"there is no folder {model}, and the hub has no such model, or only for those who "
            "log in (`hf auth login`)"
        ) from e
    except (errors.HfHubHTTPError, errors.HFValidationError, OSError) as e:
        reason = str(e).splitlines()[0] if str(e) else type(e).__name__
        raise ModelError(
            f"there is no folder {model}, and the hub could not be reached: {reason}; check the "
            "path, or download the model where there is a connection"
        ) from e
    except Exception as e:
        # The transport under huggingface_hub (requests, httpx, xet) leaks its own exceptions.
        raise ModelError(
            f"there is no folder {model}, and downloading it from the hub failed: "
            f"{type(e).__name__}: {e}"
        ) from e
