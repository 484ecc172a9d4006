"""Checks, before any weight is read, whether heads can draft for a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from penstock.errors import ConfigError, WeightError
from penstock.models.draft_heads import STRETCHABLE, DraftHeadsSpec
from penstock.models.draft_heads_config import DraftHeadsKind
from penstock.models.spec import ModelSpec
from penstock.speculative_config import Eagle, Medusa
from penstock.weights.model_folder import draft_heads_in, load_draft_heads_spec

_WORDS: dict[DraftHeadsKind, str] = {"medusa": "Medusa heads", "eagle": "an EAGLE head"}


def draft_heads_spec(
    asked: Medusa | Eagle, folder: Path, target: ModelSpec, dummy: bool
) -> DraftHeadsSpec:
    """Return the spec of the heads in ``folder``, if they can draft for ``target``.

    With ``dummy``, weight files are not read. Raises ConfigError with the reason if they cannot,
    and whatever reading the folder raises.
    """
    kind: DraftHeadsKind = "medusa" if isinstance(asked, Medusa) else "eagle"
    found = draft_heads_in(folder, dummy)
    # Without weights to tell them apart, a Llama of one layer may be an EAGLE head.
    if found != kind and not (found is None and kind == "eagle" and dummy):
        held = "an ordinary model" if found is None else _WORDS[found]
        raise ConfigError(
            f"{folder} holds {held}, not {_WORDS[kind]}; draft with "
            f"{found or 'draft'}:model={folder}, or give the folder of the heads"
        )
    spec = load_draft_heads_spec(folder, kind, target, dummy)
    if spec.vocab_size != target.vocab_size:
        raise ConfigError(
            f"the heads in {folder.name} are for a vocabulary of {spec.vocab_size} tokens and the "
            f"model has one of {target.vocab_size}; take heads that were trained for it"
        )
    hidden = spec.target_hidden_size
    if hidden != target.hidden_size:
        raise ConfigError(
            f"the heads in {folder.name} read hidden states of size {hidden} and the model's have "
            f"size {target.hidden_size}; take heads that were trained for it"
        )
    return spec


def refuse_draft_heads(folder: Path, dummy: bool) -> None:
    """Raise ConfigError if ``folder`` holds heads instead of an ordinary model."""
    try:
        found = draft_heads_in(folder, dummy)
    except WeightError:  # loading the model will say so
        return
    if found is not None:
        raise ConfigError(
            f"{folder} holds {_WORDS[found]}, not a model; draft with {found}:model={folder}"
        )


def stretched(spec: ModelSpec, positions: int, folder: Path) -> tuple[ModelSpec, tuple[str, ...]]:
    """Return the heads with at least ``positions`` positions, and notes for the user.

    There is a note if they were trained for fewer. Only rotary embeddings depend on positions.
    Raises ConfigError if their angles depend on the maximum.
    """
    if spec.max_positions >= positions:
        return spec, ()
    rope = spec.layers[0].attention.rope
    if rope is not None and rope.kind not in STRETCHABLE:
        raise ConfigError(
            f"the head {folder.name} has {spec.max_positions} positions, by rope scaling of kind "
            f"{rope.kind}, and requests may come to {positions} tokens; set max_model_len to at "
            f"most {spec.max_positions}, or take a head with more"
        )
    note = (
        f"the head {folder.name} was trained for {spec.max_positions} positions and requests may "
        f"come to {positions} tokens: fewer of its drafts may be accepted behind them"
    )
    return replace(spec, max_positions=positions), (note,)
