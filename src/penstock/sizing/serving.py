"""What a load sees of an engine: the steady state of in-flight batching.

As many requests as ``concurrency`` are always open: one that ends is replaced at once. A step
decodes a token of each running sequence, and what is left of its budget of tokens reads prompts. A
request of ``osl`` tokens takes part in ``osl`` steps, so that of D running sequences ``D / osl``
end in a step, and as many prompts must be read in it, on average: some steps read a chunk of a
prompt, the others only decode. Their mean is the time between tokens. A prompt waits for those
before it, for half of its reading time times ``rho / (1 - rho)`` (a queue with one server and equal
work), where ``rho`` is the part of the budget that prompts fill; then it is read, chunk by chunk.
D follows from all this: those that decode and those that wait are ``concurrency`` together.

All times are means. A tail is longer: twice a mean step passes where one falls among prompts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from penstock.plan.costs import StepSize
from penstock.sizing.step_time import StepTime

_ROUNDS = 12
_GRAIN = 1.03
"""Sizes of steps above 16 sequences are of a grid with this ratio, so that few are computed."""


@dataclass(frozen=True)
class Speculation:
    """Drafts: tokens of each, the chance that one is accepted if those before it are, and what a
    drafted token costs as a part of a plain step."""

    tokens: int = 0
    accept: float = 0.0
    cost: float = 0.0

    @property
    def length(self) -> float:
        """Mean tokens that a sequence gets of a step: ``(1 - a^(k + 1)) / (1 - a)``."""
        if self.accept == 1.0:
            return self.tokens + 1.0
        return float((1 - self.accept ** (self.tokens + 1)) / (1 - self.accept))


@dataclass(frozen=True)
class Workload:
    """Requests that are all alike."""

    isl: int
    """Tokens of a prompt."""
    osl: int
    """Tokens of an output."""
    speculation: Speculation = Speculation()

    @property
    def tokens(self) -> int:
        """Tokens of a request at its end."""
        return self.isl + self.osl


@dataclass(frozen=True)
class Slo:
    """Service-level objectives, in seconds; None: any."""

    ttft: float | None = None
    tpot: float | None = None
    latency: float | None = None
    """The limit of a whole request."""

    def excess(self, estimate: Estimate) -> float:
        """How many times the worst of the objectives is missed: at most 1 meets all of them."""
        pairs = (
            (self.ttft, estimate.ttft),
            (self.tpot, estimate.tpot),
            (self.latency, estimate.latency),
        )
        return max((value / most for most, value in pairs if most is not None), default=0.0)


@dataclass(frozen=True)
class Estimate:
    """What one replica gives a load, in seconds and tokens a second; means."""

    concurrency: int
    ttft: float
    tpot: float
    latency: float
    """The time until the last token."""
    requests_per_s: float
    input_tps: float
    output_tps: float
    decoding: float
    """Sequences that a step decodes."""
    prefill_share: float
    """The part of the time that is spent on prompts."""
    decode: StepSize
    """A step that only decodes."""
    prefill: StepSize
    """A step that only reads a prompt."""


@dataclass
class Load:
    """A workload and the steps that serve it, each of which is one object."""

    workload: Workload
    budget: int
    """Tokens of a step at most."""
    _sizes: dict[tuple[int, int], StepSize] = field(default_factory=dict)

    def step(self, decoding: int, prefill: int) -> StepSize:
        """A step that decodes so many sequences, half-way through their outputs, and reads so many
        tokens of prompts, half-way through one of them or several whole."""
        key = decoding, prefill
        if key not in self._sizes:
            self._sizes[key] = self._step(decoding, prefill)
        return self._sizes[key]

    def _step(self, decoding: int, prefill: int) -> StepSize:
        w = self.workload
        rows = 1 + w.speculation.tokens
        context = w.isl + w.osl // 2
        lens = [context] * decoding
        positions = [np.arange(context - rows, context, dtype=np.int32)] * decoding
        left = prefill
        while left > 0:
            count = min(left, w.isl)
            first = (w.isl - count) // 2
            positions.append(np.arange(first, first + count, dtype=np.int32))
            lens.append(first + count)
            left -= count
        ends = -(-prefill // w.isl) if prefill >= w.isl else 0
        logits = decoding * rows + ends
        joined = np.concatenate(positions) if positions else np.zeros(0, np.int32)
        return StepSize(len(joined), logits, logits, np.array(lens, np.int32), joined)


def estimate(
    time: StepTime, load: Load, concurrency: int, places: int, stages: int = 1
) -> Estimate:
    """The steady state of a replica that has ``concurrency`` open requests, of which ``places`` fit
    into its memory; the others wait.

    With ``stages`` a step holds that part of the sequences, and so many steps are in flight at
    once; chunks of a prompt follow each other. ``places`` is at least 1.
    """
    w, held = load.workload, min(concurrency, places)
    running = held / stages
    low, high = 0.0, running
    others = (held - 1) / held
    state = _state(time, load, running, others, stages)
    if state.needed > running:
        for _ in range(_ROUNDS):
            middle = (low + high) / 2
            state = _state(time, load, middle, others, stages)
            low, high = (middle, high) if state.needed <= running else (low, middle)
        state = _state(time, load, low or high, others, stages)
    rate = state.decoding * stages / (w.osl / w.speculation.length) / state.step
    queued = (concurrency - held) / rate
    ttft = state.ttft + queued
    tpot = state.step / w.speculation.length
    return Estimate(
        concurrency=concurrency,
        ttft=ttft,
        tpot=tpot,
        latency=ttft + (w.osl - 1) * tpot,
        requests_per_s=rate,
        input_tps=rate * w.isl,
        output_tps=rate * w.osl,
        decoding=state.decoding * stages,
        prefill_share=min(state.prefill_share + (1 - others) * state.ttft * rate, 1.0),
        decode=load.step(_grid(state.decoding), 0),
        prefill=load.step(0, min(w.isl, load.budget)),
    )


@dataclass(frozen=True)
class _State:
    """The steady state if so many sequences decode."""

    decoding: float
    step: float
    ttft: float
    needed: float
    """Sequences that decode, wait and are read together, which that needs."""
    prefill_share: float


def _state(time: StepTime, load: Load, decoding: float, others: float, stages: int) -> _State:
    """``others`` is the part of the running sequences that one of them meets: its own prompt does
    not come between its own tokens."""
    w, spec = load.workload, load.workload.speculation
    count = _grid(decoding)
    steps = w.osl / spec.length
    room = load.budget - count * (1 + spec.tokens)
    plain = time.seconds(load.step(count, 0)) * (1 + spec.tokens * spec.cost)
    wanted = decoding / steps * w.isl * others  # prompt tokens a step
    if room < 1 or wanted >= room:
        return _State(decoding, plain, math.inf, math.inf, 1.0)
    chunk = _grid(max(wanted, min(room, w.isl)))
    chunk = min(chunk, room)
    mixed = time.seconds(load.step(count, chunk)) * (1 + spec.tokens * spec.cost)
    share = min(wanted / chunk, 1.0)
    mean = share * mixed + (1 - share) * plain
    chunks = -(-w.isl // chunk)
    rho = wanted / room
    reading = (1 + (chunks - 1) / stages) * mixed
    ttft = reading * (1 + rho / (2 * (1 - rho))) + others * mean / 2
    needed = decoding + decoding / steps / mean * ttft
    return _State(decoding, mean, ttft, needed, share * (mixed - plain) / mean)


def _grid(value: float) -> int:
    """``value`` on a grid: whole numbers up to 16, then ratios of :data:`_GRAIN`."""
    if value <= 16:
        return max(round(value), 1)
    return round(_GRAIN ** round(math.log(value, _GRAIN)))
