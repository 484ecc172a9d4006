"""The files that each engine reads: the one checkpoint of a shape, and what is made from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from comparison.checkpoint import Checkpoint, prepare_checkpoint
from comparison.environments import Environment, SetupError, run_logged
from comparison.peers import CHECKPOINT, Peer, Precision

EXPORTERS = Path(__file__).resolve().parents[1] / "exporters"


@dataclass(frozen=True)
class Shape:
    """A model's shape under ``work/checkpoints``; ``config_folder`` holds its config.json."""

    name: str
    config_folder: Path
    work: Path
    file: Path | None = None
    """A GGUF file that is compared as it is, by all engines that read such; there is then no
    config.json, and nothing is made."""

    @property
    def folder(self) -> Path:
        return self.work / "checkpoints" / self.name

    def checkpoint(self, seed: int = 0) -> Checkpoint:
        """Written unless it is there with the same config and seed."""
        return prepare_checkpoint(self.config_folder, self.folder / CHECKPOINT, seed)

    def artifact(self, peer: Peer, precision: Precision) -> Path:
        return self.folder / peer.artifacts[precision] if self.file is None else self.file

    def export(
        self, peer: Peer, precisions: Sequence[Precision], say: Callable[[str], None] = print
    ) -> str | None:
        """Make what of ``precisions`` the peer reads and is not there; returns why it failed.

        What an interrupted export left is overwritten: exporters put a file or folder into its
        place last.
        """
        wanted = [
            p for p in precisions if p in peer.exported and not self.artifact(peer, p).exists()
        ]
        if not wanted or peer.exporter is None:
            return None
        environment = Environment(peer, self.work)
        if not environment.python.exists():
            return f"{peer.name} is not installed: run setup"
        out = self.artifact(peer, wanted[0]).parent
        out.mkdir(parents=True, exist_ok=True)
        say(f"{self.name}: {peer.name} {', '.join(wanted)}")
        command = [str(environment.python), str(EXPORTERS / peer.exporter)]
        log = self.work / "logs" / f"export-{peer.name}-{self.name}.txt"
        try:
            run_logged(
                [*command, str(self.folder / CHECKPOINT), str(out), *wanted],
                log,
                environment.variables(),
            )
        except SetupError as error:
            return str(error)
        return None

    def artifact_bytes(self, peer: Peer, precision: Precision) -> int:
        """Size on disk of what the peer reads; 0 where it is not there."""
        path = self.artifact(peer, precision)
        files = path.rglob("*") if path.is_dir() else [path]
        return sum(file.stat().st_size for file in files if file.is_file())
