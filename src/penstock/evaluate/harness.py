"""Tasks of lm-evaluation-harness by the names that it gives them.

``pip install 'penstock[lm-eval]'`` brings the package; it takes the questions of most tasks from
Hugging Face's hub.
"""

from __future__ import annotations

import io
import random
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from penstock.api import LLM
from penstock.errors import ConfigError
from penstock.evaluate.harness_model import HarnessModel, OnRequest

_SEED: Final = 1234
"""The seed of examples before questions and of resampling, as the package's own command has it."""
_RESAMPLED: Final = 1000
"""Times that questions are drawn anew for the error of a measure that is no mean."""
_NO_MEASURE: Final = frozenset({"alias", "name", "sample_len", "sample_count"})


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """How a model does on a task of lm-evaluation-harness, or on a group of them."""

    questions: int
    metric: str
    """The first of the task's measures, such as ``acc``, with its filter where there is one."""
    value: float
    standard_error: float | None
    """None where the task has none."""
    higher_is_better: bool | None
    metrics: dict[str, float]
    """All of its measures, and their errors, by the package's names (``acc,none``)."""


@dataclass(frozen=True)
class Harness:
    """Tasks that have been found, with their questions."""

    names: tuple[str, ...]
    most: int | None
    """Questions of each task at most."""
    _manager: Any

    @property
    def version(self) -> str:
        """The package's."""
        return version("lm_eval")

    @classmethod
    def open(
        cls, names: Sequence[str], folders: Sequence[Path] = (), most: int | None = None
    ) -> Harness:
        """The tasks of these names: the package's, and those that ``folders`` describe.

        Raises ConfigError where the package is not installed, has no such task, or cannot have its
        questions.
        """
        try:
            from lm_eval.tasks import TaskManager
        except ImportError as error:
            raise ConfigError(
                f"--tasks {names[0]} is no file, and tasks by name are lm-evaluation-harness's: "
                "pip install 'penstock[lm-eval]', or name a file of questions"
            ) from error
        own = [str(folder) for folder in folders]
        with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
            manager = TaskManager(include_path=own or None)
        for name in names:
            if name not in manager.task_index:
                raise ConfigError(
                    f"--tasks {name} is neither a file nor a task of lm-evaluation-harness; "
                    "'lm-eval ls tasks' lists them, and --task-folder DIR names a folder of others"
                )
        found = cls(tuple(names), most, manager)
        for name in names:  # here, since quantizing comes first and takes long
            for task in found._loaded([name])["tasks"].values():
                if getattr(task, "UNSAFE_CODE", False):
                    raise ConfigError(
                        f"--tasks {name} runs what a model writes as a program; leave it out"
                    )
        return found

    def scores(self, llm: LLM, tell: OnRequest = lambda done, count: None) -> dict[str, Measured]:
        """How a model does on each task, and on each group; ``tell`` is told of the texts that are
        done. Raises ConfigError where a task asks for what is not known here."""
        from lm_eval.evaluator import evaluate

        random.seed(0)
        np.random.seed(_SEED)
        loaded = self._loaded(self.names)
        for task in loaded["tasks"].values():
            if task.get_config("num_fewshot") is None:
                task.set_config(key="num_fewshot", value=0)
            task.set_fewshot_seed(seed=_SEED)
        model = HarnessModel(llm, tell)
        with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
            result = evaluate(
                model, loaded, limit=self.most, bootstrap_iters=_RESAMPLED, log_samples=False
            )
        shown = [name for name in self.names if name in result["results"]]
        inner = {each for group in loaded["groups"].values() for each in group.child_names}
        shown += [name for name in result["results"] if name not in {*shown, *inner}]
        return {name: _measured(name, result) for name in shown}

    def _loaded(self, names: Sequence[str]) -> Any:
        try:
            with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
                return self._manager.load(list(names))
        except Exception as error:  # whatever the package and those beneath it raise
            why = str(error).strip().partition("\n")[0] or type(error).__name__
            raise ConfigError(
                f"--tasks {names[0]}: its questions cannot be had ({why}); lm-evaluation-harness "
                "takes them from Hugging Face's hub: run this where that is reached, or with a "
                "cache (HF_HOME) that has them, or name a file of questions"
            ) from error


def _measured(name: str, result: Any) -> Measured:
    own = {
        key: float(value)
        for key, value in result["results"][name].items()
        if key not in _NO_MEASURE and isinstance(value, int | float)
    }
    first = next((key for key in own if "_stderr" not in key), None)
    if first is None:
        raise ConfigError(f"--tasks {name} has no measure; leave it out")
    metric, _, chosen = first.partition(",")
    better = result.get("higher_is_better", {}).get(name, {}).get(metric)
    return Measured(
        questions=_questions(name, result),
        metric=metric if chosen in ("", "none") else f"{metric} ({chosen})",
        value=own[first],
        standard_error=own.get(f"{metric}_stderr,{chosen}"),
        higher_is_better=better,
        metrics=own,
    )


def _questions(name: str, result: Any) -> int:
    samples = result["n-samples"]
    if name in samples:
        return int(samples[name]["effective"])
    inner = result.get("group_subtasks", {}).get(name, ())
    return sum(_questions(each, result) for each in inner)
