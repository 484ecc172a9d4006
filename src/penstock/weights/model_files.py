"""What a start has read of a model's files before it reads weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penstock.gguf.names import is_gguf
from penstock.models.names import Published
from penstock.weights.gguf_file import GgufModel, open_gguf
from penstock.weights.published import open_draft_heads
from penstock.weights.safetensors import open_folder
from penstock.weights.tensor_file import Found


@dataclass(frozen=True)
class ModelFiles:
    """A checkpoint's folder, or a GGUF file with all that its header says.

    A start opens it once, and hands it to everybody who wants to know something of the model: its
    specification and name, its vocabulary, where its tensors are and what identifies them. Of a
    folder nothing is read beforehand, since each of these is in a file of its own.
    """

    path: Path
    gguf: GgufModel | None = None
    """The GGUF file, or the files of one that is split; None of a folder."""

    @classmethod
    def open(cls, path: Path) -> ModelFiles:
        """Raises WeightError, naming the file and the fix, for a GGUF file that is corrupt."""
        return cls(path, open_gguf(path) if is_gguf(path) else None)

    @classmethod
    def of(cls, model: Path | ModelFiles) -> ModelFiles:
        """What was opened, or opened now."""
        return model if isinstance(model, ModelFiles) else cls.open(model)

    def tensors(self, published: Published) -> Found:
        """Every tensor of a checkpoint of this kind. Raises WeightError."""
        if self.gguf is not None:
            return self.gguf.tensors
        return open_draft_heads(self.path) if published == "heads" else open_folder(self.path)
