"""How far a training is, and the file that a stopped one continues from."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

WARM_UP_STEPS = 40
AVERAGED_SHARE = 0.1


@dataclass(frozen=True)
class Schedule:
    """A learning rate that rises, stays, and falls to nothing at the end.

    Only the fall knows when the end is: a training stopped before it may be given more minutes.
    """

    minutes: float
    decay_minutes: float

    def rate(self, step: int, minutes_used: float) -> float:
        """The factor of the learning rate in step ``step``, counted from 0."""
        left = max(0.0, self.minutes - minutes_used) / self.decay_minutes
        return min(1.0, (step + 1) / WARM_UP_STEPS, left + 0.002)


@dataclass
class Counts:
    """What a training counts.

    ``used`` is processor time in seconds per process, ``short`` and ``long`` the windows taken.
    """

    step: int = 0
    seen: int = 0
    used: float = 0.0
    loss: float = 0.0
    short: int = 0
    long: int = 0


class Average:
    """A mean of the weights over about the last tenth of the steps.

    It stands in for the fall of the learning rate wherever a training is stopped before it.
    """

    def __init__(self, model: nn.Module) -> None:
        self.tensors = {n: p.detach().clone() for n, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        weight = 1 / (1 + AVERAGED_SHARE * step)
        for name, parameter in model.named_parameters():
            self.tensors[name].lerp_(parameter, weight)


def write_state(
    file: Path,
    counts: Counts,
    model: nn.Module,
    average: Average,
    optimizers: tuple[torch.optim.Optimizer, ...],
) -> None:
    """Replace ``file`` by the state of a training, whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(file.name + ".part")
    torch.save(
        {
            "progress": asdict(counts),
            "weights": dict(model.named_parameters()),
            "average": average.tensors,
            "optimizers": [o.state_dict() for o in optimizers],
        },
        part,
    )
    os.replace(part, file)


@torch.no_grad()
def read_state(
    file: Path,
    model: nn.Module,
    average: Average,
    optimizers: tuple[torch.optim.Optimizer, ...],
) -> Counts:
    """Set the model, its average and the optimizers to what is in ``file``; return its counts."""
    state = torch.load(file, weights_only=True)
    weights: dict[str, Tensor] = state["weights"]
    for name, parameter in model.named_parameters():
        parameter.copy_(weights[name])
    average.tensors = state["average"]
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    return Counts(**state["progress"])
