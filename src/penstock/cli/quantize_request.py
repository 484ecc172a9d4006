"""What ``penstock quantize`` is asked for, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from penstock.quantize.budget import Budget
    from penstock.quantize.gptq import Order


@dataclass(frozen=True, kw_only=True)
class MethodRequest:
    """A method and its options; None: not given, so that the default holds.

    One that :func:`~penstock.cli.quantize_options.check` has seen has options of its own method
    alone.
    """

    method: str
    bits: int | Literal["auto"] | None = None
    budget: Budget | None = None
    allowed_bits: tuple[int, ...] | None = None
    group_size: int | None = None
    """Columns; 0: a row."""
    asymmetric: bool | None = None
    format: str | None = None
    sparsity: str | None = None
    outliers: float | None = None
    sensitivity: Literal["inputs", "gradients"] | None = None
    act_order: Order | None = None
    damping: float | None = None
    scales: Literal["tensor", "channel", "block"] | None = None
    double_quantization: bool | None = None
    calibration: Path | None = None
    """The text that the model reads."""
    samples: int | None = None
    sample_length: int | None = None
    """Tokens of a sample."""
    seed: int | None = None
    embedding_bits: Literal[8] | None = None
    """Bits of the embedding and the output matrix; None: they stay as they are."""
    fine_tune: int | None = None
    """Steps of training after rounding."""
    fine_tune_codes: bool | None = None


@dataclass(frozen=True)
class ComparisonRequest:
    """Several methods that are judged by one text."""

    variants: Mapping[str, MethodRequest]
    """The methods, by the words that ask for them."""
    texts: tuple[Path, ...]
    max_windows: int
    calibration: Path | None
    tasks: tuple[Path, ...] = ()
    """Files of questions with several answers."""
    named_tasks: tuple[str, ...] = ()
    """Tasks of lm-evaluation-harness."""
    task_folders: tuple[Path, ...] = ()
    """Folders that describe more of these."""
    max_questions: int | None = None
    """Questions of each task that are asked; None: all."""


@dataclass(frozen=True)
class Request:
    """One run of the command."""

    model: str
    """A folder, or a hub id."""
    revision: str | None
    out: Path
    restart: bool
    threads: int
    asked: MethodRequest | ComparisonRequest
