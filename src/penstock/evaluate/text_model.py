"""A model that reads windows of a text and gives the logits behind each token."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.cache.block_table import BlockTable
from penstock.cache.geometry import BLOCK_SIZE
from penstock.cache.kv_cache import BlockCopy, KvCache
from penstock.config import EngineConfig
from penstock.engine.loader import EnginePlan, load, plan_engine, state_limits
from penstock.errors import ConfigError, PositionsError
from penstock.evaluate.windows import Window
from penstock.interface.executor import Executor, run
from penstock.interface.step_builder import build_step, state_tables
from penstock.tokenizer.load import load_tokenizer
from penstock.tokenizer.tokenizer import Tokenizer

PIECE: Final = 32
"""Rows of logits that are given at once."""


@dataclass(frozen=True)
class TextModel:
    """A loaded model that runs one window at a time."""

    engine_plan: EnginePlan
    tokenizer: Tokenizer
    executor: Executor

    @classmethod
    def open(cls, config: EngineConfig, window: int) -> TextModel:
        """Load what ``config`` asks for, with room for one sequence of ``window`` tokens.

        Raises ConfigError, ModelError, TokenizerError or WeightError.
        """
        options = msgspec.structs.replace(config, max_model_len=window, max_num_seqs=1)
        try:
            engine_plan = plan_engine(options)
        except PositionsError:
            raise ConfigError(
                f"a window of {window} tokens exceeds the model's positions, as its configuration "
                "says how many it has; lower --window"
            ) from None
        tokenizer = load_tokenizer(engine_plan.config.tokenizer_path)
        tokenizer.check_model(engine_plan.spec.vocab_size)
        return cls(engine_plan, tokenizer, load(engine_plan))

    def encode(self, text: str) -> tuple[list[int], int | None]:
        """As :func:`encode_text`."""
        return encode_text(self.tokenizer, text)

    def logits(self, window: Window) -> Iterator[NDArray[np.float32]]:
        """The logits that predict ``window.targets``, in pieces ``[rows, vocab_size]`` of ``PIECE``
        rows but for the last, each of which may overwrite the one before."""
        waiting = np.empty((0, self.engine_plan.spec.vocab_size), np.float32)
        for logits in self._steps(array("i", window.token_ids[:-1]), window.first - 1):
            rows = np.concatenate([waiting, logits]) if len(waiting) else logits
            whole = len(rows) // PIECE * PIECE
            for first in range(0, whole, PIECE):
                yield rows[first : first + PIECE]
            waiting = rows[whole:].copy()
        if len(waiting):
            yield waiting

    def _steps(self, tokens: array[int], first: int) -> Iterator[NDArray[np.float32]]:
        """Run ``tokens`` from an empty context, as many in a step as there is memory for; yield the
        logits behind those from ``first`` on, step by step."""
        config, plan = self.engine_plan.config, self.engine_plan.plan
        windows = plan.kv_groups.windows
        cache = KvCache(
            config.num_blocks,
            BLOCK_SIZE,
            windows=windows or (None,),
            enable_prefix_caching=False,
            states=state_limits(self.engine_plan),
        )
        table, copies, start = BlockTable(), list[BlockCopy](), 0
        cache.begin(table, None, 1, len(tokens))
        while start < len(tokens):
            most = start + cache.num_fitting(table, start)
            if start < first:
                end, rows = min(start + config.max_num_batched_tokens, first, most), 0
            else:
                end = min(start + config.max_logit_rows, len(tokens), most)
                rows = end - start
            cache.extend(table, start, end, copies)
            states = None
            if table.state is not None:
                states = state_tables([table.state.slot], [start], [0], (), ())
            tables = [[blocks] for blocks in table.blocks] if windows else []
            step = build_step(
                [tokens[start:end]], [start], tables, num_logits=[rows], states=states
            )
            result = run(self.executor, step)
            if rows:
                yield result.logits[:rows]
            cache.commit(table, tokens, end)
            start = end

    def close(self) -> None:
        self.executor.close()

    def __enter__(self) -> TextModel:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def encode_text(tokenizer: Tokenizer, text: str) -> tuple[list[int], int | None]:
    """The tokens of a text with those that a model expects around it, but no EOS, and the BOS that
    it begins with. Names of special tokens are text like any other."""
    tokens = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
    bos = bos_before(tokenizer)
    return (tokens if bos is None else [bos, *tokens]), bos


def bos_before(tokenizer: Tokenizer) -> int | None:
    """The BOS that a model expects before a text; None if it expects none."""
    bos = tokenizer.bos_token_id
    expected = tokenizer.encode("", add_special_tokens=True)
    return bos if bos is not None and expected[:1] == [bos] else None
