"""What a decode step costs outside the executor, by phase, in microseconds of processor time.

    python benchmarks/host_side.py [MODEL] [--requests 1 16 64 256] [--sampling top-p] [--numpy]

The engine is the real one, with an executor that returns at once. All requests decode, each one
token a step. Phases, in their order: schedule, build (the StepInput), sample, update (append,
stops, blocks, updates), encode (frames for the socket), and, in the other process, front
(decoding the frames, text, outputs). Processor time of the calling thread, so that other work on
the machine adds little; the best of several windows of 64 steps, which is two blocks' length.
Native sampling runs on that one thread too, where an engine would share its rows among all.
"""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from time import thread_time_ns
from typing import Any

import numpy as np
from sample_rows import native_sampler

from penstock.config import EngineConfig
from penstock.engine import step_runner
from penstock.engine.core import EngineCore
from penstock.engine.ipc.wire import FromEngine, Updates, encode_updates
from penstock.engine.loader import plan_engine
from penstock.frontend.output_processor import OutputProcessor
from penstock.interface.host_executor import HostExecutor
from penstock.interface.messages import EngineRequest, SequenceUpdate
from penstock.interface.sampler import Sampler
from penstock.interface.step import StepInput, StepResult
from penstock.processes.frames import FrameReader
from penstock.sampling.params import SamplingParams
from penstock.sampling.reference import NumpySampler
from penstock.tokenizer import load_tokenizer

WINDOW = 64  # steps
MOST_REQUESTS = 4096  # whose logits are 64 MB for the demo model's vocabulary
PHASES = ("schedule", "build", "sample", "update", "encode", "front")
SAMPLING = {
    "greedy": SamplingParams(temperature=0.0),
    "plain": SamplingParams(),
    "top-p": SamplingParams(temperature=0.8, top_p=0.95),
    "top-k": SamplingParams(temperature=0.8, top_k=50, top_p=0.95),
    "min-p": SamplingParams(min_p=0.05),
    "penalties": SamplingParams(repetition_penalty=1.1, frequency_penalty=0.2),
    "logprobs": SamplingParams(temperature=0.0, logprobs=5),
}


class NullExecutor(HostExecutor):
    """Returns the same logits after every step: normal ones, of the spread that models show."""

    packed = None
    tunable = None

    def __init__(self, num_blocks: int, rows: int, vocab_size: int, sampler: Sampler[Any]) -> None:
        self.num_blocks = num_blocks
        self._own = sampler
        rng = np.random.default_rng(0)
        self._logits = rng.standard_normal((rows, vocab_size), np.float32) * np.float32(3)
        self._logits[np.arange(rows), rng.integers(0, vocab_size, rows)] = 20.0
        self._argmax = self._logits.argmax(axis=1).astype(np.int32)

    def run(self, step: StepInput) -> StepResult:
        rows = len(step.logit_rows)
        return StepResult(self._logits[:rows], self._argmax[:rows])

    @cached_property
    def sampler(self) -> Sampler[Any]:
        return self._own

    def close(self) -> None:
        pass


@dataclass
class PhaseClock:
    """Processor time of this thread by phase, in nanoseconds."""

    spent: dict[str, int] = field(default_factory=dict)

    def timed(self, phase: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **named: Any) -> Any:
            start = thread_time_ns()
            result = call(*args, **named)
            self.spent[phase] = self.spent.get(phase, 0) + thread_time_ns() - start
            return result

        return wrapper


class HostBench:
    """One engine with ``count`` requests that decode, and the front end of a server."""

    def __init__(
        self, model: str, count: int, params: SamplingParams, prompt: int, native: bool
    ) -> None:
        config = EngineConfig(
            model=model,
            load_format="dummy",
            backend="reference",
            max_num_seqs=count,
            max_num_batched_tokens=count + 512,  # prompts come to an end however many decode
            max_model_len=2048,
            kv_cache_bytes=1 << 33,
        )
        engine_plan = plan_engine(config)
        vocab = engine_plan.spec.vocab_size
        blocks = count * 2048 // 32 + 1
        sampler = native_sampler(vocab) if native else NumpySampler()
        self.core = EngineCore(engine_plan, NullExecutor(blocks, count, vocab, sampler))
        path = Path(engine_plan.config.tokenizer_path)
        known = path.is_file() or (path / "tokenizer.json").exists()
        self._front = OutputProcessor(load_tokenizer(str(path)) if known else None)
        self._reader: FrameReader[Any] = FrameReader(FromEngine)
        self._clock = PhaseClock()
        rng = np.random.default_rng(1)
        for i in range(count):
            tokens = rng.integers(3, vocab, prompt + i % 32).tolist()
            chosen = SamplingParams(
                **{name: getattr(params, name) for name in params.__struct_fields__}
                | {"ignore_eos": True, "max_tokens": min(1900, 2048 - len(tokens)), "seed": i}
            )
            name = f"{i}"
            self._front.add_request(name, None, tokens, chosen)
            self.core.add_request(
                EngineRequest(request_id=name, prompt_token_ids=tokens, params=chosen)
            )
        decoding: set[str] = set()
        while len(decoding) < count:  # not one prompt is left
            decoding.update(update.request_id for update in self._step())
        self._time_phases()

    def window(self) -> dict[str, float]:
        """Microseconds a step of each phase, mean over WINDOW steps."""
        self._clock.spent = {}
        for _ in range(WINDOW):
            self._step()
        spent = {name: ns / WINDOW / 1e3 for name, ns in self._clock.spent.items()}
        whole = spent.pop("step")
        spent["update"] = whole - sum(spent.get(p, 0.0) for p in ("schedule", "build", "sample"))
        return {phase: spent[phase] for phase in PHASES}

    def _step(self) -> list[SequenceUpdate]:
        updates = self._core_step()
        for frame in self._encode(updates):
            self._receive(frame)
        return updates

    def _core_step(self) -> list[SequenceUpdate]:
        return self.core.step()

    def _encode(self, updates: list[SequenceUpdate]) -> list[bytes]:
        frames, _ = encode_updates(updates)
        return frames

    def _receive(self, frame: bytes) -> None:
        for message in self._reader.feed(frame):
            assert isinstance(message, Updates)
            self._front.process(message.updates)

    def _time_phases(self) -> None:
        clock, core = self._clock, self.core
        for owner, name, phase in (
            (core._scheduler, "schedule", "schedule"),
            (step_runner, "build_step_input", "build"),
            (core._executor.sampler, "sample", "sample"),
            (self, "_core_step", "step"),
            (self, "_encode", "encode"),
            (self, "_receive", "front"),
        ):
            setattr(owner, name, clock.timed(phase, getattr(owner, name)))


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_REQUESTS:
        raise argparse.ArgumentTypeError(
            f"not a number of requests from 1 to {MOST_REQUESTS}: {text!r} (MODEL comes first)"
        )
    return int(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="")
    parser.add_argument("--requests", type=_count, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--sampling", choices=SAMPLING, default="greedy")
    parser.add_argument("--prompt", type=int, default=100, help="tokens of the shortest prompt")
    parser.add_argument("--numpy", action="store_true", help="sample by NumPy's definition")
    parser.add_argument("--repeats", type=int, default=8, help="windows; the best counts")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    runner: Any = step_runner  # whose name is replaced for a while
    build = runner.build_step_input
    results = {}
    print(f"{'requests':>8}  " + "  ".join(f"{p:>9}" for p in PHASES) + f"  {'engine':>9}  us")
    for count in args.requests:
        bench = HostBench(args.model, count, SAMPLING[args.sampling], args.prompt, not args.numpy)
        gc.collect()
        gc.freeze()  # as the engine's process does
        windows = [bench.window() for _ in range(args.repeats)]
        runner.build_step_input = build
        gc.unfreeze()
        del bench
        gc.collect()
        best = {phase: min(w[phase] for w in windows) for phase in PHASES}
        best["engine"] = min(sum(w[p] for p in PHASES[:-1]) for w in windows)
        results[count] = best
        print(f"{count:>8}  " + "  ".join(f"{value:9.1f}" for value in best.values()), flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
