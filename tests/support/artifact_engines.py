"""Engines that are started twice, for the tests of artifacts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from penstock.artifact.session import Keeping
from penstock.config import EngineConfig
from penstock.engine.loader import load, plan_engine
from penstock.interface.executor import run
from penstock.interface.step import KvTables, StepInput
from support.kv_tables import in_groups


@dataclass
class Start:
    """One start: its phases, what it said, and the bits of its logits."""

    phases: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    logits: bytes = b""

    @property
    def restored(self) -> bool:
        return "restore weights" in self.phases


def start(model: Path, root: Path | None, keeping: Keeping = "always", **options: Any) -> Start:
    """Load, run one prompt, close."""
    chosen: dict[str, Any] = {"load_format": "dummy", "threads": 2, "max_num_seqs": 4}
    chosen |= {"artifact_dir": str(root)} if root is not None else {}
    config = EngineConfig(model=str(model), **(chosen | options))
    done = Start()
    engine_plan = plan_engine(config)
    executor = load(
        engine_plan,
        done.phases.append,
        lambda level, text: done.notes.append(text),
        keeping=keeping,
    )
    step = in_groups(prompt([3, 1, 4, 1, 5, 9, 2, 6]), len(engine_plan.plan.kv_groups), 1)
    done.logits = run(executor, step).logits.tobytes()
    executor.close()
    return done


def prompt(tokens: list[int]) -> StepInput:
    """A step that computes ``tokens`` from position 0 on, with logits for each."""

    def ints(values: object) -> np.ndarray:
        return np.array(values, np.int32)

    n = len(tokens)
    return StepInput(
        token_ids=ints(tokens),
        positions=ints(range(n)),
        groups=(KvTables(ints(range(n)), ints([0, 1]), ints([0])),),
        query_starts=ints([0, n]),
        context_lens=ints([n]),
        logit_rows=ints(range(n)),
        block_copies=np.zeros((0, 2), np.int32),
    )
