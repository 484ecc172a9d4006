"""One engine, loaded once, and all that is measured with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

import msgspec

from gpu import utilization
from gpu.replay import Replay, chunk_step, decode_step, prefill_step
from gpu.results import (
    ChunkStep,
    Decode,
    Engine,
    Host,
    Mixed,
    Place,
    Prefill,
    Ready,
    StepTimes,
)
from gpu.stepping import decode_window, run_all
from gpu.timing import Timer
from gpu.workload import Size, mixed_lengths
from penstock.backends.cuda.executor import CudaExecutor
from penstock.bench.meter import linear_flops, weight_bytes_per_step
from penstock.bench.workload import fixed_lengths, random_requests
from penstock.config import EngineConfig
from penstock.engine.core import EngineCore
from penstock.engine.loader import EnginePlan, load, plan_engine
from penstock.errors import ConfigError, PenstockError, first_line
from penstock.interface.messages import EngineRequest
from penstock.plan.ops import Rows

_WARM_UP_PROMPT = 16


@dataclass
class Bench:
    """An engine that is idle between measurements."""

    engine_plan: EnginePlan
    executor: CudaExecutor
    core: EngineCore
    timer: Timer
    size: Size
    made: int = 0

    @classmethod
    def open(cls, config: EngineConfig, timer: Timer, size: Size) -> Bench:
        engine_plan = plan_engine(config)
        executor = load(engine_plan, keeping="never")
        if not isinstance(executor, CudaExecutor):
            raise ConfigError(f"the engine chose {engine_plan.config.backend}, not the GPU")
        return cls(engine_plan, executor, EngineCore(engine_plan, executor), timer, size)

    def requests(self, count: int, prompt: int, output: int) -> list[EngineRequest]:
        """Requests that no prompt before them helps."""
        self.made += 1
        lengths = fixed_lengths(count, prompt, output)
        vocabulary = self.engine_plan.spec.vocab_size
        return random_requests(lengths, vocabulary, self.made, f"bench{self.made}")

    @property
    def replay(self) -> Replay:
        return Replay(self.executor, self.engine_plan.plan, self.timer)

    def first_token(self) -> None:
        run_all(self.core, self.requests(1, _WARM_UP_PROMPT, 1))

    def decode(self, batch: int) -> Decode:
        size, config = self.size, self.engine_plan.config
        output = size.decode_steps + self._steps_to_read(batch, size.decode_context)
        windows = [
            decode_window(self.core, self.requests(batch, size.decode_context, output))
            for _ in range(size.repeats + 1)
        ][1:]
        fastest = min(windows, key=lambda window: window.mean_s)
        # On average: those that were read first are as far ahead as the last are behind.
        context = size.decode_context + output // 2
        step = decode_step(batch, context, self.executor.num_blocks)
        return Decode(
            batch=batch,
            context=size.decode_context,
            step_s=fastest.mean_s,
            step_s_median=sorted(w.median_s for w in windows)[len(windows) // 2],
            weight_bytes=weight_bytes_per_step(self.engine_plan.plan, batch),
            kv_bytes=utilization.kv_bytes(
                self.engine_plan.spec, config.kv_cache_dtype, [context] * batch
            ),
            device_s=self.replay.decode_seconds(step, size.replays, size.repeats),
        )

    def prefill(self) -> Prefill:
        size, plan = self.size, self.engine_plan.plan
        run_all(self.core, self.requests(1, size.prefill, 1))
        seconds = sorted(
            run_all(self.core, self.requests(1, size.prefill, 1))[0] for _ in range(size.repeats)
        )
        return Prefill(
            tokens=size.prefill,
            seconds=seconds[0],
            seconds_median=seconds[len(seconds) // 2],
            linear_flops=linear_flops(plan, Rows.TOKENS) * size.prefill
            + linear_flops(plan, Rows.LOGITS),
            attention_flops=utilization.attention_flops(self.engine_plan.spec, size.prefill),
        )

    def host(self) -> Host:
        size = self.size
        output = size.decode_steps + self._steps_to_read(size.host_batch, size.host_context)
        windows = [
            decode_window(self.core, self.requests(size.host_batch, size.host_context, output))
            for _ in range(size.repeats + 1)
        ]
        fastest = min(windows[1:], key=lambda window: window.mean_s)
        context = size.host_context + output // 2
        step = decode_step(size.host_batch, context, self.executor.num_blocks)
        return Host(
            batch=size.host_batch,
            step_s=fastest.mean_s,
            device_s=self.replay.decode_seconds(step, size.replays, size.repeats),
            processor_s=fastest.processor_s,
        )

    def places(self) -> list[Place]:
        """The fastest visit to each position, visited in turn."""
        size, config = self.size, self.engine_plan.config
        best: dict[int, float] = {}
        for repeat in range(size.repeats + 1):
            for position in size.positions:
                requests = self.requests(1, position, size.position_steps + 1)
                seconds = decode_window(self.core, requests).median_s
                if repeat:
                    best[position] = min(seconds, best.get(position, seconds))
        return [
            Place(
                position=position,
                itl_s=seconds,
                kv_bytes=utilization.kv_bytes(
                    self.engine_plan.spec,
                    config.kv_cache_dtype,
                    [position + size.position_steps // 2],
                ),
            )
            for position, seconds in best.items()
        ]

    def ops(self, batches: Collection[int]) -> list[StepTimes]:
        """Decode steps of these batches, and the last step of the prefill."""
        size, blocks = self.size, self.executor.num_blocks
        named = {
            f"decode, batch {batch}, context {size.decode_context}": decode_step(
                batch, size.decode_context, blocks
            )
            for batch in batches
        }
        tokens = min(self.engine_plan.config.max_num_batched_tokens, size.prefill)
        name = f"prefill, the last {tokens} tokens of {size.prefill}"
        named[name] = prefill_step(tokens, size.prefill, blocks)
        return [self.replay.op_times(n, step, size.repeats) for n, step in named.items()]

    def chunk(self) -> ChunkStep:
        size = self.size
        context = max(size.decode_context, size.chunk)
        step = chunk_step(size.chunk, size.chunk_decodes, context, self.executor.num_blocks)
        return self.replay.chunk_step(size.chunk, step, size.replays, size.repeats)

    def mixed(self) -> Mixed:
        lengths = mixed_lengths(self.size)
        vocabulary = self.engine_plan.spec.vocab_size
        run_all(self.core, random_requests(lengths[:8], vocabulary, 98, "warm"))
        requests = random_requests(lengths, vocabulary, 99, "mixed")
        seconds, tokens = run_all(self.core, requests)
        config = self.engine_plan.config
        return Mixed(
            requests=len(lengths),
            prompt_tokens=sum(n.prompt for n in lengths),
            output_tokens=tokens,
            seconds=seconds,
            settings={
                "max_num_seqs": str(config.max_num_seqs),
                "max_num_batched_tokens": str(config.max_num_batched_tokens),
            },
        )

    def close(self) -> None:
        self.core.close()

    def _steps_to_read(self, batch: int, prompt: int) -> int:
        """Steps in which the first of a batch already decode while others are read, at most."""
        budget = self.engine_plan.config.max_num_batched_tokens - batch
        return -(-batch * prompt // max(budget, 1)) + 2


def measure(
    config: EngineConfig,
    measures: Collection[str],
    batches: Collection[int],
    timer: Timer,
    size: Size,
    started: float,
    now: Callable[[], float] = time.time,
    report: Callable[[Engine], None] = lambda engine: None,
) -> Engine:
    """Load an engine and take ``measures``: of ``batches`` decode and ops; prefill, host, chunk,
    itl and mixed.

    ``started``: when the process was, by ``now``. A measurement that fails is left out and named
    with its reason. ``report`` gets what there is after each. Raises what loading raises.
    """
    bench = Bench.open(config, timer, size)
    loaded = now()
    bench.first_token()
    ready = Ready(loaded_s=loaded - started, first_token_s=now() - started)
    parts: dict[str, object] = {}
    problems: dict[str, str] = {}
    wanted: dict[str, tuple[str, Callable[[], object]]] = {
        "decode": ("decode", lambda: [bench.decode(batch) for batch in batches]),
        "ops": ("steps", lambda: bench.ops(batches)),
        "prefill": ("prefill", bench.prefill),
        "host": ("host", bench.host),
        "chunk": ("chunk", bench.chunk),
        "itl": ("places", bench.places),
        "mixed": ("mixed", bench.mixed),
    }

    def engine(left: Collection[str]) -> Engine:
        late = dict.fromkeys(left, "not measured: the time was over")
        found = {"ready": ready, "settings": settings(bench.engine_plan), **parts}
        return msgspec.convert(
            msgspec.to_builtins(found | {"problems": problems | late}),
            Engine,
        )

    left = [name for name in wanted if name in measures]
    report(engine(left))
    for name, (field, take) in wanted.items():
        if name not in measures:
            continue
        try:
            parts[field] = take()
        except (PenstockError, ValueError, RuntimeError) as error:
            problems[name] = first_line(error)
        left.remove(name)
        report(engine(left))
    bench.close()
    return engine(())


def settings(engine_plan: EnginePlan) -> dict[str, str]:
    """What a reader must know of an engine to repeat its figures."""
    config = engine_plan.config
    names = (
        *("dtype", "quantization", "quantization_group", "deterministic", "kv_cache_dtype"),
        *("num_blocks", "max_num_seqs", "max_num_batched_tokens", "max_model_len"),
    )
    return {name: str(getattr(config, name)) for name in names}
