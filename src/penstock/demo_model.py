"""The models that ship with Penstock."""

from __future__ import annotations

from pathlib import Path


def demo_model_path() -> Path:
    """The folder of the small code model that ships with Penstock."""
    return Path(__file__).parent / "demo" / "model"


def is_demo_model(path: str | Path) -> bool:
    """Whether a model's path leads to the demo model."""
    return Path(path).resolve() == demo_model_path().resolve()


def draft_model_path() -> Path:
    """The folder of the demo model's smaller sibling: same tokenizer, a ninth of the weights."""
    return Path(__file__).parent / "demo" / "draft"


def medusa_heads_path() -> Path:
    """The folder of Medusa heads for the demo model."""
    return Path(__file__).parent / "demo" / "medusa"


def eagle_head_path() -> Path:
    """The folder of an EAGLE head for the demo model."""
    return Path(__file__).parent / "demo" / "eagle"
