"""Resolves what a user names as a model to a folder on disk."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from penstock.errors import ModelError
from penstock.weights.gguf_file import SUFFIX

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9_][\w.-]*)?")

# What serving needs and nothing that can run code. Only the top folder: makers keep their own
# layouts (original/, onnx/) below it.
_ALLOW: Final = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model", "merges.txt"]
_PICKLED: Final = ["medusa_lm_head.pt", "pytorch_model.bin"]
"""Files that hold pickled draft heads, which are often published in no other form
(``weights/torch_pickle.py``)."""
_IGNORE: Final = ["*/*", "consolidated*.safetensors"]


def resolve_model_folder(model: str, revision: str | None = None, heads: bool = False) -> Path:
    """The folder of ``model``: a folder's path, or a hub id, downloaded unless it is in the cache.

    ``revision`` is a branch, tag or commit of a hub id; ``heads``: what is there are heads that
    draft. Raises ModelError where there is no such
    folder and the hub does not have it, does not grant it, or cannot be reached.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        if revision is not None:
            raise ModelError(
                f"revision {revision!r} was given, but {model} is a folder, which has none; "
                "leave the revision out"
            )
        return path
    if path.exists() or path.suffix == SUFFIX:
        return _file(path, revision)
    if _HUB_ID.fullmatch(model) is None:
        raise ModelError(f"there is no folder {model}, and it is not a hub id (owner/name)")
    return _download(model, revision, _ALLOW + _PICKLED if heads else _ALLOW)


def _file(path: Path, revision: str | None) -> Path:
    if path.suffix != SUFFIX:
        raise ModelError(
            f"{path} is a file; give a GGUF file ({SUFFIX}), or the folder of a Hugging Face "
            "checkpoint"
        )
    if not path.exists():
        raise ModelError(f"there is no file {path}")
    if revision is not None:
        raise ModelError(
            f"revision {revision!r} was given, but {path} is a file, which has none; leave the "
            "revision out"
        )
    return path


def _download(model: str, revision: str | None, allow: list[str]) -> Path:
    # Imported here: it takes longer than the rest of Penstock, and local folders do not need it.
    from huggingface_hub import errors, snapshot_download

    try:
        folder = snapshot_download(
            model, revision=revision, allow_patterns=allow, ignore_patterns=_IGNORE
        )
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
    return Path(folder)
