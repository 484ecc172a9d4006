"""Training a quantized model to predict what the model in floats predicts.

The loss is the divergence (Kullback and Leibler) of the quantized model's distributions from those
of the model as it is, over the tokens of windows of a text: distillation, as QuIP# and EfficientQAT
(arXiv 2407.11062) train what rounding has left continuous, end to end.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.func import functional_call
from transformers import AutoModelForCausalLM

from penstock.errors import ConfigError, ModelError, first_line
from penstock.hardware import detect
from penstock.interface.adjustable import Adjustable, Adjusted
from penstock.train.adjustable_weights import weight_of

_BETAS: Final = (0.9, 0.95)
_WARM: Final = 0.05
"""The part of steps in which learning rates rise; they fall from then on, as a cosine."""
_BFLOAT16_UNITS: Final = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""What processors call that they multiply bfloat16. Without, torch is seven times as fast with
float32 (Zen with AVX2, 7 and 49 GFLOP/s on a core)."""
_SAVED_S: Final = 60.0
"""Seconds of training after which its state is written; a large state is written less often:"""
_SAVING: Final = 20
"""at most so small a part of the time goes into that."""


Windows = Sequence[Sequence[int]]
"""Token ids of windows of a text."""


def fine_tune(
    folder: Path,
    weights: Mapping[str, Adjustable],
    fixed: Mapping[str, NDArray[np.float32]],
    steps: int,
    windows: Callable[[int], Windows],
    held_out: Windows,
    threads: int,
    state: Path,
    tell: Callable[[int, str], None],
) -> Adjusted:
    """Train ``weights``, by their names in the checkpoint in floats that is in ``folder``.

    ``fixed`` are other weights of the quantized model that are not those of the one in floats.
    ``windows`` has what each step reads, by its number from 0, and ``held_out`` is what decides.
    Steps that were done before are taken from the file ``state``, and the results are the same
    bytes as without an interruption, on the same machine and number of threads. ``tell`` is told
    the steps that are done, and what happens. transformers runs the model in float32, with products
    in bfloat16 while it is trained, on processors that multiply it, else in float32: memory holds
    it, its matrices in the type of products, the quantized ones in floats, and three times what is
    trained. Raises ConfigError and ModelError.
    """
    with _threads(threads):
        text = _Text(steps, windows, held_out)
        return _Training(folder, weights, fixed, text, tell).run(state)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class _Text:
    """What is read: in each step, and to decide."""

    steps: int
    windows: Callable[[int], Windows]
    held_out: Windows


class _Training:
    """The model, and what is trained in it."""

    def __init__(
        self,
        folder: Path,
        weights: Mapping[str, Adjustable],
        fixed: Mapping[str, NDArray[np.float32]],
        text: _Text,
        tell: Callable[[int, str], None],
    ) -> None:
        self._text, self._tell = text, tell
        self._model = _loaded(folder)
        known = {name: tuple(each.shape) for name, each in self._model.named_parameters()}
        for name, each in [*weights.items(), *fixed.items()]:
            shape = each.shape
            if known.get(name) != shape:
                own = f"as {list(known[name])}" if name in known else "not at all"
                raise ConfigError(
                    f"the checkpoint has {name} as {list(shape)}, and transformers' model has it "
                    f"{own}, so it cannot be trained; leave --fine-tune out"
                )
        self._weights = {name: weight_of(initial) for name, initial in weights.items()}
        self._fixed = {name: torch.from_numpy(values.copy()) for name, values in fixed.items()}
        known_weights = dict(self._model.named_parameters())
        units = bool(_BFLOAT16_UNITS & detect().isa)
        self._products = torch.bfloat16 if units else torch.float32
        self._exact = {name: self._for_products(known_weights[name]) for name in weights}
        """The weights of the model in floats, in the types in which steps multiply by them."""
        rated = [each for weight in self._weights.values() for each in weight.rated()]
        self._rates = [each.rate for each in rated]
        groups = [{"params": [each.parameter], "lr": each.rate} for each in rated]
        self._optimizer = torch.optim.Adam(groups, betas=_BETAS)

    def run(self, state: Path) -> Adjusted:
        before, done = self._resumed(state)
        if before is None:
            self._tell(0, "reading held-out text")
            before = self._held_out()
            self._save(state, 0, before)
        steps = self._text.steps
        saved, took, smooth = time.monotonic(), 0.0, None
        for step in range(done, steps):
            loss = self._step(step)
            smooth = loss if smooth is None else 0.9 * smooth + 0.1 * loss
            self._tell(step + 1, f"{smooth:.4f} nats a token")
            began = time.monotonic()
            if step + 1 == steps or began - saved > max(_SAVED_S, _SAVING * took):
                self._save(state, step + 1, before)
                saved = time.monotonic()
                took = saved - began
        self._tell(steps, "reading held-out text")
        after = self._held_out()
        made = {name: weight.made() for name, weight in self._weights.items()}
        return Adjusted(made, before, after)

    def _step(self, step: int) -> float:
        factor = rate_at(step, self._text.steps)
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
        windows = self._text.windows(step)
        values = self._values()
        total = 0.0
        # Weights are made once for all windows: their gradients are summed, and passed on at last.
        leaves = {
            name: self._for_products(value).requires_grad_() for name, value in values.items()
        }
        for window in windows:
            with torch.autocast("cpu", torch.bfloat16, self._products == torch.bfloat16):
                loss = self._divergence(self._exact, leaves, window) / len(windows)
            loss.backward()
            total += float(loss.detach())
        if not math.isfinite(total):
            raise ModelError(
                f"the loss is not finite in step {step + 1} of --fine-tune: the model overflows "
                "on this text; leave --fine-tune out, or take more bits"
            )
        names = [name for name in values if leaves[name].grad is not None]
        grads = [leaves[name].grad for name in names]
        summed = [None if grad is None else grad.float() for grad in grads]
        torch.autograd.backward([values[name] for name in names], summed)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return total

    def _for_products(self, weight: Tensor) -> Tensor:
        """A weight as steps read it: matrices in the type of products, once for all windows."""
        detached = weight.detach()
        return detached.to(self._products) if detached.ndim == 2 else detached

    def _values(self) -> dict[str, Tensor]:
        return {name: weight() for name, weight in self._weights.items()}

    def _divergence(
        self, exact: Mapping[str, Tensor], values: Mapping[str, Tensor], window: Sequence[int]
    ) -> Tensor:
        """The mean divergence over the tokens of a window of the model with the weights ``values``
        from the one with ``exact``."""
        given = {"input_ids": torch.tensor([window])}
        with torch.no_grad():
            wanted = functional_call(self._model, dict(exact), (), given).logits[0]
            wanted = torch.log_softmax(wanted.float(), dim=-1)
        quantized = {**self._fixed, **values}
        made = functional_call(self._model, quantized, (), given).logits[0]
        own = torch.log_softmax(made.float(), dim=-1)
        return (wanted.exp() * (wanted - own)).sum(dim=-1).mean()

    @torch.no_grad()
    def _held_out(self) -> float:
        values = self._values()
        found = [float(self._divergence({}, values, each)) for each in self._text.held_out]
        return sum(found) / len(found)

    def _resumed(self, path: Path) -> tuple[float | None, int]:
        """The divergence on the held-out text before training, and the steps that were done."""
        if not path.exists():
            return None, 0
        tensors = load_file(path)
        for number, (parameter, state) in enumerate(self._moments()):
            parameter.data.copy_(tensors[f"{number}"])
            for key in ("exp_avg", "exp_avg_sq"):
                state[key].copy_(tensors[f"{number}.{key}"])
            state["step"].copy_(tensors["step"])
        return float(tensors["before"]), int(tensors["step"])

    def _save(self, path: Path, step: int, before: float) -> None:
        tensors: dict[str, Tensor] = {
            "step": torch.tensor(float(step)),
            "before": torch.tensor(before, dtype=torch.float64),
        }
        for number, (parameter, state) in enumerate(self._moments()):
            tensors[f"{number}"] = parameter.detach()
            tensors |= {f"{number}.{key}": state[key] for key in ("exp_avg", "exp_avg_sq")}
        partial = path.with_name(f"{path.name}.partial")
        save_file(tensors, partial)
        with open(partial, "rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)

    def _moments(self) -> Iterator[tuple[torch.nn.Parameter, dict[str, Any]]]:
        """Each parameter, and its moments, which are made where there are none yet."""
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                state = self._optimizer.state[parameter]
                if not state:
                    state["step"] = torch.tensor(0.0)
                    state["exp_avg"] = torch.zeros_like(parameter)
                    state["exp_avg_sq"] = torch.zeros_like(parameter)
                yield parameter, state


def rate_at(step: int, steps: int) -> float:
    """The part of its learning rate that a parameter has in a step, from 0: it rises at first, and
    falls to a hundredth at last."""
    warm = max(1, round(_WARM * steps))
    if step < warm:
        return (step + 1) / warm
    done = (step - warm) / max(1, steps - warm)
    return 0.01 + 0.99 * (0.5 + 0.5 * math.cos(math.pi * done))


def _loaded(folder: Path) -> Any:
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ModelError(
            f"transformers cannot load {folder}: {first_line(error)}; leave --fine-tune out"
        ) from error
    model.eval()
    model.requires_grad_(False)
    model.config.use_cache = False
    return model
