"""A model that reads windows of a text and gives the logits behind each token."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.cache.geometry import BLOCK_SIZE
from penstock.config import EngineConfig
from penstock.engine.loader import EnginePlan, load, plan_engine
from penstock.evaluate.windows import Window
from penstock.interface.executor import Executor, run
from penstock.interface.step import StateTables
from penstock.interface.step_builder import build_step
from penstock.tokenizer.load import load_tokenizer
from penstock.tokenizer.tokenizer import Tokenizer

PIECE: Final = 32
"""Rows of logits that are looked at together, in float64: 67 MB of a vocabulary of 262,144."""


@dataclass(frozen=True)
class TextModel:
    """A loaded model that runs one window at a time."""

    engine_plan: EnginePlan
    tokenizer: Tokenizer
    executor: Executor

    @classmethod
    def open(cls, config: EngineConfig, window: int) -> TextModel:
        """Load what ``config`` asks for, with room for one sequence of ``window`` tokens.

        Raises ConfigError, ModelError or WeightError.
        """
        engine_plan = plan_engine(
            msgspec.structs.replace(config, max_model_len=window, max_num_seqs=1)
        )
        tokenizer = load_tokenizer(engine_plan.config.tokenizer_path)
        return cls(engine_plan, tokenizer, load(engine_plan))

    def encode(self, text: str) -> tuple[list[int], int | None]:
        """The tokens of a text with those that the model expects around it, but no EOS, and the BOS
        that it begins with."""
        tokens = self.tokenizer.encode(text, add_special_tokens=False)
        expected = self.tokenizer.encode("", add_special_tokens=True)
        bos = self.tokenizer.bos_token_id
        if bos is None or expected[:1] != [bos]:
            return tokens, None
        return [bos, *tokens], bos

    def logits(self, window: Window) -> Iterator[NDArray[np.float32]]:
        """The logits that predict ``window.targets``, in pieces ``[rows, vocab_size]`` of ``PIECE``
        rows but for the last, each of which may overwrite the one before."""
        tokens, config = array("i", window.token_ids[:-1]), self.engine_plan.config
        blocks, groups = -(-len(tokens) // BLOCK_SIZE), len(self.engine_plan.plan.kv_groups)
        tables = [array("i", range(g * blocks, (g + 1) * blocks)) for g in range(groups)]
        start, counted = 0, window.first - 1
        while start < len(tokens):
            if start < counted:
                end, rows = min(start + config.max_num_batched_tokens, counted), 0
            else:
                end = min(start + config.max_logit_rows // PIECE * PIECE, len(tokens))
                rows = end - start
            used = -(-end // BLOCK_SIZE)
            step = build_step(
                [tokens[start:end]],
                [start],
                [[t[:used]] for t in tables],
                num_logits=[rows],
                states=_state(start) if self.engine_plan.plan.state_layers else None,
            )
            result = run(self.executor, step)
            for first in range(0, rows, PIECE):
                yield result.logits[first : min(first + PIECE, rows)]
            start = end

    def close(self) -> None:
        self.executor.close()

    def __enter__(self) -> TextModel:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _state(seen: int) -> StateTables:
    """The state of the only sequence, in the first slot."""
    slot, none = np.zeros(1, np.int32), np.zeros(1, np.int32)
    return StateTables(slot, np.array([seen], np.int32), none)
