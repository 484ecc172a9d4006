"""The models of the hub that lie on this machine: its cache, which its other clients share."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import ModelError
from penstock.weights.hub_pull import PARTIAL

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo, HFCacheInfo


@dataclass(frozen=True)
class StoredModel:
    """One model of the hub, with all its revisions that were downloaded."""

    name: str
    """Its hub id."""
    revisions: tuple[str, ...]
    """What they were asked for as, ``main`` first; a commit where it has no such name any more."""
    num_bytes: int
    used_at: float
    """When a file of it was read last, in Unix time."""
    whole: bool
    """Whether no download of it broke off: ``penstock pull`` goes on with one that did."""

    @property
    def idle_s(self) -> float:
        return max(0.0, time.time() - self.used_at)


def stored_models() -> list[StoredModel]:
    """What the cache holds, by name. Raises OSError."""
    cache = _scanned()
    repos = [] if cache is None else [each for each in cache.repos if each.repo_type == "model"]
    found = {each.repo_id: _stored(each) for each in repos}
    for name, parts in _begun().items():
        if name not in found:
            size = sum(part.stat().st_size for part in parts)
            used = max(part.stat().st_mtime for part in parts)
            found[name] = StoredModel(name, (), size, used, whole=False)
    return sorted(found.values(), key=lambda model: model.name)


def remove_stored(name: str) -> int:
    """Delete a model with all its revisions; returns the bytes that this frees. Raises ModelError
    where there is none of that name, and OSError."""
    cache, begun = _scanned(), _begun().get(name, [])
    commits = [
        revision.commit_hash
        for repo in (() if cache is None else cache.repos)
        if repo.repo_type == "model" and repo.repo_id == name
        for revision in repo.revisions
    ]
    if not commits and not begun:
        raise ModelError(
            f"there is no model {name!r} in the local store; 'penstock list' shows what there is"
        )
    freed = sum(part.stat().st_size for part in begun)
    if commits and cache is not None:
        strategy = cache.delete_revisions(*commits)
        strategy.execute()
        freed += strategy.expected_freed_size
    for part in begun:
        shutil.rmtree(part.parent.parent, ignore_errors=True)
    return freed


def _scanned() -> HFCacheInfo | None:
    """What the hub's client knows of the cache; None where there is none yet."""
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        return scan_cache_dir()
    except CacheNotFound:
        return None


def _stored(repo: CachedRepoInfo) -> StoredModel:
    names = sorted(repo.refs, key=lambda name: (name != "main", name))
    loose = sorted(each.commit_hash for each in repo.revisions if not each.refs)
    return StoredModel(
        name=repo.repo_id,
        revisions=(*names, *loose),
        num_bytes=repo.size_on_disk,
        used_at=repo.last_accessed,
        whole=not any(repo.repo_path.glob(f"blobs/*{PARTIAL}")),
    )


def _begun() -> dict[str, list[Path]]:
    """The files of each model that are not whole."""
    from huggingface_hub import constants

    found: dict[str, list[Path]] = {}
    for path in Path(constants.HF_HUB_CACHE).glob(f"models--*/blobs/*{PARTIAL}"):
        folder = path.parent.parent.name
        found.setdefault("/".join(folder.split("--")[1:]), []).append(path)
    return found
