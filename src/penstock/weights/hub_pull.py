"""Downloads of the hub that go on where an earlier one broke off, also that of another process.

The hub's client goes on within one download, and throws away what there is of a file when that
fails for good. So what is large is fetched here, into a file beside those of its cache, and put
into that once it is whole; the client does the rest.
"""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import re
import urllib.request
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import urlsplit

from penstock.errors import ModelError
from penstock.gguf.names import SUFFIX
from penstock.weights.gguf_choice import named
from penstock.weights.hub import explained, resolve_model_folder
from penstock.weights.hub_size import is_wanted

PARTIAL: Final = ".penstock.incomplete"
"""What the name of a file ends with that is not whole yet."""
_LARGE: Final = (".safetensors", SUFFIX, ".bin")
_TRIES: Final = 5
"""Attempts in a row that bring nothing, before a download is given up."""
_TIMEOUT_S: Final = 60.0
_PIECE: Final = 1 << 20
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


def pull(model: str, revision: str | None = None) -> Path:
    """Download a hub id, or a GGUF file of one (``owner/name:Q4_K_M``), and return where it is.

    Weights of which there is a part go on behind that. Raises ModelError, and what there is stays.
    """
    if not Path(model).expanduser().exists():
        hub_id, _, quantization = model.partition(":")
        with explained(hub_id, revision):
            _fetch_large(hub_id, quantization, revision)
    return resolve_model_folder(model, revision)


def _fetch_large(hub_id: str, quantization: str, revision: str | None) -> None:
    from huggingface_hub import model_info

    info = model_info(hub_id, revision=revision)
    names = [each.rfilename for each in info.siblings or []]
    wanted = named(names, quantization, hub_id) if quantization else filter(is_wanted, names)
    for name in wanted:
        if name.endswith(_LARGE) and info.sha is not None:
            _fetch(hub_id, name, info.sha)


def _fetch(hub_id: str, name: str, commit: str) -> None:
    """Have a file of a commit in the cache."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.file_download import repo_folder_name

    about = get_hf_file_metadata(hf_hub_url(hub_id, name, revision=commit))
    if about.etag is None or about.size is None:
        return  # the client knows what to do
    folder = repo_folder_name(repo_id=hub_id, repo_type="model")
    blob = Path(constants.HF_HUB_CACHE, folder, "blobs", about.etag)
    if blob.exists():
        return
    blob.parent.mkdir(parents=True, exist_ok=True)
    partial = blob.with_name(blob.name + PARTIAL)
    with partial.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ModelError(f"{hub_id} is being downloaded by another process") from None
        _append(file, about.location, about.size, f"{name} of {hub_id}")
        if _SHA256.fullmatch(about.etag) and _digest(partial) != about.etag:
            partial.unlink()
            raise ModelError(
                f"{name} of {hub_id} came otherwise than the hub has it, and was thrown away; pull "
                "it again"
            )
        partial.rename(blob)


def _append(file: IO[bytes], url: str, size: int, what: str) -> None:
    """Fetch what ``file`` has not yet."""
    failures, error = 0, ""
    while (have := file.seek(0, 2)) != size:
        if have > size:  # of something else
            file.truncate(0)
            continue
        try:
            with _opened(url, have) as answer:
                if answer.status != http.client.PARTIAL_CONTENT:
                    file.truncate(0)
                while piece := answer.read1(_PIECE):
                    file.write(piece)
        except (OSError, http.client.HTTPException) as failure:
            error = str(getattr(failure, "reason", failure)) or type(failure).__name__
        file.flush()
        failures = 0 if file.seek(0, 2) > have else failures + 1
        if failures == _TRIES:
            raise ModelError(
                f"the download of {what} broke off after {have:,} of {size:,} bytes"
                f"{error and f' ({error})'}; pull it again to go on"
            )


def _opened(url: str, begin: int) -> Any:
    """The answer that has the file from there on. The key of the hub is sent to the hub alone."""
    from huggingface_hub import constants, get_token

    headers: dict[str, str] = {"Range": f"bytes={begin}-"} if begin else {}
    opener = urllib.request.build_opener()
    if urlsplit(url).netloc == urlsplit(constants.ENDPOINT).netloc:
        token = get_token()
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        opener = urllib.request.build_opener(_NoRedirect)
    return opener.open(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT_S)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
