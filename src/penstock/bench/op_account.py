"""Accounts for the time of steps: op by op, and what is between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import msgspec

from penstock.bench.machine import Machine
from penstock.bench.meter import Step, StepProfile
from penstock.plan.costs import Arithmetic, op_cost
from penstock.plan.ops import ExpertLinear, HeadLinear, Linear, Op
from penstock.plan.plan import Plan

WAITING: Final = "waiting for other ranks"
"""The title of what several ranks take to meet, beside the copies of what they exchange."""


Bound = Literal["memory", "compute"]
"""Whose ceiling an op cannot pass: the read bandwidth's, or that of arithmetic."""


class OpLine(msgspec.Struct, frozen=True, kw_only=True):
    """Ops of one kind and shape, all of a step together; of a prompt, of all its steps."""

    op: str
    count: int
    seconds: float
    least_s: float
    """What they took in the step, or run, in which they took least: far below ``seconds`` where the
    machine did something else in between."""
    waiting_s: float
    """The part of ``seconds`` that the mean thread waited for the last one, at the barrier behind
    each op."""
    share: float  # of the step
    bytes: int  # of weights, and of keys and values
    operations: int  # of products
    floor_s: float | None
    """The time that the bytes take at the machine's bandwidth, or the operations at its peak, the
    longer of the two; None where the machine was not measured."""
    bound: Bound | None = None
    """The longer of the two, of the op with the longest where they differ; None where there is
    neither, or the machine was not measured."""


class StepAccount(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of a step, or of all steps that read a prompt, is spent.

    All of it is of one step, or of one run's prompts: the one that took the median time. So the
    parts add up to ``seconds``; medians of each part would leave out what is slow now and then.
    """

    steps: int
    tokens: int
    seconds: float
    ops: list[OpLine]
    call_s: float
    """The executor's calls, outside their ops: arguments, checks, waking threads, and what stages
    of a pipeline hand on."""
    sampling_s: float
    host_s: float
    """The rest of the engine: scheduling, building steps, output."""

    @property
    def floor_s(self) -> float | None:
        """The sum of the ops' floors; None where there is one that is not known."""
        return _sum(line.floor_s for line in self.ops)


@dataclass(frozen=True)
class Steps:
    """Steps that count as one, such as those that read a prompt."""

    all: Sequence[Step]

    @property
    def profiles(self) -> list[StepProfile]:
        return [s.run.profile for s in self.all if s.run is not None and s.run.profile is not None]

    @property
    def seconds(self) -> float:
        return sum(step.seconds for step in self.all)

    @property
    def sampling(self) -> float:
        return sum(profile.sampling_seconds for profile in self.profiles)

    @property
    def host(self) -> float:
        return sum(step.host_seconds for step in self.all) - self.sampling

    def seconds_of(self, index: int) -> float:
        """Seconds of the plan's op at ``index``, without those in which it waited for ranks."""
        ops = (profile.ops[index] for profile in self.profiles)
        return sum(op.seconds - op.for_ranks for op in ops)

    def for_ranks(self, index: int) -> float:
        """Seconds in which the op at ``index`` waited for other ranks."""
        return sum(profile.ops[index].for_ranks for profile in self.profiles)

    @property
    def call(self) -> float:
        """Seconds of calls outside their ops."""
        calls = sum(step.run.seconds for step in self.all if step.run is not None)
        return calls - sum(op.seconds for profile in self.profiles for op in profile.ops)


@dataclass(frozen=True)
class Part:
    """What of a model was timed: all of it, or a stage of a pipeline."""

    plan: Plan
    """The plan whose ops were timed."""
    machine: Machine
    """What computes it, with its part of the speeds of a machine; of one that was not measured,
    without any."""


class _Timed(NamedTuple):
    """An op among all that were timed."""

    part: Part
    op: Op
    place: int
    """Which one of them it is."""


def account(parts: Sequence[Part], samples: Sequence[Steps]) -> StepAccount:
    """Account for that of the ``samples`` that took the median time, of two the shorter one. What
    was timed are the ops of all ``parts``, in their order."""
    sample = sorted(samples, key=lambda each: each.seconds)[(len(samples) - 1) // 2]
    pairs = [(part, op) for part in parts for op in part.plan.ops]
    alike: dict[str, list[_Timed]] = {}
    for index, (part, op) in enumerate(pairs):
        alike.setdefault(op_title(part.plan, op), []).append(_Timed(part, op, index))
    lines = []
    for ops in alike.values():
        line = _together([_line(timed, sample) for timed in ops])
        least = min(sum(each.seconds_of(timed.place) for timed in ops) for each in samples)
        lines.append(msgspec.structs.replace(line, least_s=least))
    lines += _waits(sample, samples, len(pairs))
    return StepAccount(
        steps=len(sample.all),
        tokens=sum(profile.size.tokens for profile in sample.profiles),
        seconds=sample.seconds,
        ops=sorted(lines, key=lambda line: -line.seconds),
        call_s=sample.call,
        sampling_s=sample.sampling,
        host_s=sample.host,
    )


def _waits(sample: Steps, samples: Sequence[Steps], ops: int) -> list[OpLine]:
    """The line of waiting for other ranks, as of an op of its own; none of one process alone."""
    waited = [seconds for index in range(ops) if (seconds := sample.for_ranks(index))]
    if not waited:
        return []
    line = OpLine(
        op=WAITING,
        count=len(waited),
        seconds=sum(waited),
        least_s=min(sum(map(each.for_ranks, range(ops))) for each in samples),
        waiting_s=0.0,
        share=sum(waited) / sample.seconds,
        bytes=0,
        operations=0,
        floor_s=0.0,
    )
    return [line]


def _line(timed: _Timed, sample: Steps) -> OpLine:
    """The line of an op alone."""
    (part, op, index), profiles = timed, sample.profiles
    plan, machine = part.plan, part.machine
    costs = [op_cost(plan, op, profile.size) for profile in profiles]
    seconds = sample.seconds_of(index)
    moved = sum(cost.num_bytes for cost in costs)
    operations = sum(cost.operations for cost in costs)
    kinds: list[Arithmetic] = [cost.arithmetic for cost in costs if cost.operations]
    floor, bound = _floor(moved, operations, kinds[0] if kinds else "f32", machine)
    return OpLine(
        op=op_title(plan, op),
        count=1,
        seconds=seconds,
        least_s=seconds,
        waiting_s=sum(profile.ops[index].waiting for profile in profiles),
        share=seconds / sample.seconds,
        bytes=moved,
        operations=operations,
        floor_s=floor,
        bound=bound,
    )


def _floor(
    moved: float, operations: float, kind: Arithmetic, machine: Machine
) -> tuple[float | None, Bound | None]:
    """Seconds that nothing can pass, and what bounds them."""
    peaks = {"f32": machine.f32_flops, "bf16": machine.bf16_flops, "int8": machine.int8_ops}
    # Where a variant has no instruction for bytes, those of floats stand in.
    peak = peaks[kind] or machine.f32_flops
    if machine.read_bandwidth_bytes_per_s is None or peak is None:
        return None, None
    memory, compute = moved / machine.read_bandwidth_bytes_per_s, operations / peak
    if not moved and not operations:
        return 0.0, None
    return max(memory, compute), "memory" if memory >= compute else "compute"


def _together(lines: Sequence[OpLine]) -> OpLine:
    return OpLine(
        op=lines[0].op,
        count=len(lines),
        seconds=sum(line.seconds for line in lines),
        least_s=sum(line.least_s for line in lines),
        waiting_s=sum(line.waiting_s for line in lines),
        share=sum(line.share for line in lines),
        bytes=sum(line.bytes for line in lines),
        operations=sum(line.operations for line in lines),
        floor_s=_sum(line.floor_s for line in lines),
        bound=max(lines, key=lambda line: line.floor_s or 0.0).bound,
    )


def _sum(floors: Iterable[float | None]) -> float | None:
    """The sum of ``floors``; None where one of them is not known, as of ops on another machine."""
    total = 0.0
    for each in floors:
        if each is None:
            return None
        total += each
    return total


def op_title(plan: Plan, op: Op) -> str:
    """The op's kind, and of a product which one it is: its weights, shape and format."""
    if isinstance(op, HeadLinear):
        return f"{op.kind} {op.heads} x {op.n}x{op.k} {plan.weight_dtype}"
    if not isinstance(op, Linear | ExpertLinear):
        return op.kind
    names = "+".join(_short(part.weight) for part in op.parts)
    form = str(op.scheme or plan.weight_dtype) + (" weight-only" if op.weight_only else "")
    return f"{op.kind} {names} {sum(part.n for part in op.parts)}x{op.k} {form}"


def _short(weight: str) -> str:
    """The name of a weight without its layer."""
    words = weight.split(".")
    return ".".join(words[2:]) if words[0] == "layers" and len(words) > 2 else weight
