"""The models inside the package are what the package says of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock import demo_model_path, draft_model_path
from penstock.plan.lower import lower
from penstock.tokenizer import load_tokenizer
from penstock.weights.checkpoint import open_weights
from penstock.weights.model_folder import load_model_spec

FOLDERS = [demo_model_path(), draft_model_path()]


@pytest.mark.parametrize("folder", FOLDERS, ids=["demo", "draft"])
def test_checkpoint_card_and_tokenizer_agree(folder: Path) -> None:
    spec = load_model_spec(folder)
    plan = lower(spec)
    weights = open_weights(folder, spec, plan.weights)
    assert set(weights.names()) == set(plan.weights)
    record = json.loads((folder / "training.json").read_text())
    # A mean of weights stands in for the fall of the learning rate at a training's end.
    assert record["complete"] or len(record["mean_of"]) > 1
    assert record["parameters"] == plan.num_parameters
    card = (folder / "README.md").read_text()
    assert f"{record['held_out_bits_per_byte']:.3f} bits per byte" in card
    tokenizer = load_tokenizer(folder)
    assert tokenizer.vocab_size == spec.vocab_size
    assert tokenizer.eos_token_ids == spec.eos_token_ids
    text = "def f(x):\n\treturn {'é': x}  # \N{SNOWMAN}\r\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_draft_speaks_the_demo_models_tokens_and_is_small() -> None:
    demo, draft = (lower(load_model_spec(folder)) for folder in FOLDERS)
    assert draft.num_parameters * 8 <= demo.num_parameters
    vocabularies = [(folder / "tokenizer.json").read_bytes() for folder in FOLDERS]
    assert vocabularies[0] == vocabularies[1]
    size = sum((folder / "model.safetensors").stat().st_size for folder in FOLDERS)
    assert size <= 24 << 20
