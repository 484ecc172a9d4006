"""Steps padded to buckets, as graphs replay them, have the bits of steps launched op by op."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from support.tiny_plans import Chunk, dummy_weights, make_spec, step_of, tokens_of  # noqa: E402

from penstock.backends.cuda.bind import bind  # noqa: E402
from penstock.backends.cuda.buckets import Bucket  # noqa: E402
from penstock.backends.cuda.executor import CudaExecutor  # noqa: E402
from penstock.cache.geometry import BLOCK_SIZE, KvDType  # noqa: E402
from penstock.dtypes import QuantizationName  # noqa: E402
from penstock.interface.executor import Limits, Sampling  # noqa: E402
from penstock.interface.sampler import NewSequence  # noqa: E402
from penstock.interface.step import StepInput  # noqa: E402
from penstock.models.spec import DType  # noqa: E402
from penstock.plan.fuse import fuse  # noqa: E402
from penstock.plan.lower import lower  # noqa: E402
from penstock.quant.choice import choose  # noqa: E402
from penstock.sampling.params import SamplingParams  # noqa: E402

LIMITS = Limits(
    num_blocks=40,
    max_tokens=48,
    max_logit_rows=48,
    max_sequences=6,
    threads=1,
    rows_per_sequence=4,
)
A, B, C = tokens_of(1, 45), tokens_of(2, 40), tokens_of(3, 8)
A_BLOCKS, B_BLOCKS = [7, 39], [12, 5]


class Recorded:
    """Stands in for CUDA graphs: a replay runs the same launches over the same tensors again.

    ``idle``: also when they are captured, as on a GPU.
    """

    def __init__(self, idle: bool = False) -> None:
        self._idle = idle
        self.recorded: dict[Bucket, Any] = {}
        self.replayed: list[Bucket] = []

    def capture(self, bucket: Bucket, run: Any, step: Any) -> None:
        if self._idle:
            run(step)
        self.recorded[bucket] = run, step

    def replay(self, bucket: Bucket) -> None:
        run, step = self.recorded[bucket]
        run(step)
        self.replayed.append(bucket)

    def close(self) -> None:
        self.recorded.clear()


@dataclass
class Pair:
    """Two executors of one model: one launches every step op by op, the other replays."""

    plain: CudaExecutor
    graphed: CudaExecutor
    graphs: Recorded

    @classmethod
    def of(
        cls,
        device: Any,
        limits: Limits = LIMITS,
        dtype: DType = "float32",
        kv_dtype: KvDType | None = None,
        quantization: QuantizationName = "none",
        idle: bool = False,
        layers: int = 1,
    ) -> Pair:
        spec = make_spec(window=33, heads=(4, 4), activation="gelu_tanh")
        spec = replace(spec, layers=spec.layers[:layers])
        plan = fuse(
            lower(
                spec,
                dtype,
                kv_dtype=kv_dtype,
                quantization=choose(quantization, None, True, window_columns=32),
            )
        )
        plain, graphed = (
            bind(plan, dummy_weights(spec, 3, dtype), limits, device) for _ in range(2)
        )
        plain._graphs = None
        graphs = Recorded(idle)
        graphed._graphs = graphs  # type: ignore[assignment]
        for bucket in graphed._buckets:
            graphed._capture(bucket, graphs)  # type: ignore[arg-type]
        return cls(plain, graphed, graphs)

    def run(self, step: StepInput) -> None:
        """Both run it: logits, arg max and all that is cached have the same bits."""
        expected, got = self.plain.run(step), self.graphed.run(step)
        np.testing.assert_array_equal(got.logits, expected.logits)
        np.testing.assert_array_equal(got.argmax, expected.argmax)
        self.compare_caches()

    def compare_caches(self) -> None:
        for one, other in zip(self.plain._caches, self.graphed._caches, strict=True):
            for data, same in zip(one.arrays, other.arrays, strict=True):
                assert torch.equal(data, same)

    def close(self) -> None:
        self.plain.close()
        self.graphed.close()


@pytest.fixture
def pair(device: Any) -> Iterator[Pair]:
    made = Pair.of(device)
    yield made
    made.close()


@pytest.mark.slow
def test_small_steps_are_replayed_and_others_launched(device: Any) -> None:
    limits = replace(LIMITS, max_tokens=12, max_logit_rows=12, max_sequences=4, rows_per_sequence=2)
    pair = Pair.of(device, limits, idle=True)
    assert sorted(pair.graphs.recorded) == [(1, 1), (2, 2), (4, 4), (8, 8), (12, 0), (12, 8)]
    for chunks, copies in (
        ([Chunk(A, 0, 8, A_BLOCKS), Chunk(C, 0, 3, [2])], ()),  # prompts, of more tokens than 8
        ([Chunk(A, 8, 9, A_BLOCKS), Chunk(C, 3, 4, [2]), Chunk(B, 0, 1, B_BLOCKS)], ()),
        ([Chunk(A, 9, 10, A_BLOCKS)], ()),
        ([Chunk(A, 10, 11, [20])], [(7, 20)]),
        ([Chunk(C, 4, 5, [2]), Chunk(A, 11, 12, [20])], ()),
        ([Chunk(B, 1, 10, B_BLOCKS, rows=[]), Chunk(C, 5, 6, [2], rows=[])], ()),
        # Drafts: three rows are verified beside two that are read.
        ([Chunk(A, 12, 15, [20], rows=[12, 13, 14]), Chunk(C, 6, 8, [2])], ()),
        ([Chunk(B, 10, 19, B_BLOCKS, rows=range(10, 19))], ()),  # more logits than any graph has
        ([Chunk(B, 19, 20, B_BLOCKS, hidden=[], rows=[])], ()),
    ):
        pair.run(step_of(chunks, copies))
    reported = step_of([Chunk(B, 20, 22, B_BLOCKS, hidden=[20])])
    expected, got = pair.plain.run(reported).hidden, pair.graphed.run(reported).hidden
    np.testing.assert_array_equal(got, expected)
    assert pair.graphs.replayed == [
        *((12, 8), (4, 4), (1, 1), (1, 1), (2, 2), (12, 0), (8, 8), (12, 0)),
    ]
    pair.close()
    assert not pair.graphs.recorded


@dataclass
class Sequence:
    """What a scheduler knows of one."""

    tokens: Any
    blocks: list[int]
    done: int = 0
    drafted: Any = field(default_factory=lambda: np.empty(0, np.int32))


class Company:
    """Sequences that are read in chunks, decode, verify drafts, fork, are preempted and resumed."""

    def __init__(self, seed: int, limits: Limits) -> None:
        self._random = np.random.default_rng(seed)
        self._limits = limits
        self._free = list(self._random.permutation(limits.num_blocks))
        self._sequences: list[Sequence] = []

    def step(self) -> StepInput:
        """The next step, of any mix and size that the limits allow."""
        random, chunks, copies = self._random, [], []
        left, logits = int(random.integers(1, self._limits.max_tokens + 1)), 24
        decoding = random.choice([0.1, 0.5, 1.0])
        if len(self._sequences) < self._limits.max_sequences or random.random() < 0.1:
            self._come_and_go()
        for sequence in list(random.permutation(np.array(self._sequences, object))):
            if not left or (chunks and random.random() < 0.2):
                continue
            missing = len(sequence.tokens) - sequence.done
            drafts, rows = np.empty(0, np.int32), None
            count = min(left, 1 + int(random.exponential(12)), missing - 1)
            if count < 1 or random.random() < decoding:  # decodes, perhaps with drafts
                drafts = tokens_of(int(random.integers(1 << 30)), int(random.integers(0, 4)))
                drafts = drafts[: min(left, logits) - 1]
                count, rows = 1, range(sequence.done, sequence.done + 1 + len(drafts))
            elif random.random() < 0.6:
                rows = ()
            stop = sequence.done + count + len(drafts)
            known = np.concatenate([sequence.tokens[: sequence.done + count], drafts])
            if logits < 1 + len(drafts) or not self._room(sequence, stop, copies):
                continue
            chunks.append(Chunk(known, sequence.done, stop, list(sequence.blocks), rows))
            logits -= 1 if rows is None else len(rows)
            left -= count + len(drafts)
            sequence.done += count
            if sequence.done == len(sequence.tokens):  # some of the drafts are right
                right = int(random.integers(0, len(drafts) + 1))
                sequence.tokens = np.append(
                    np.concatenate([sequence.tokens, drafts[:right]]), np.int32(7)
                )
                sequence.done += right
        return step_of(chunks, copies) if chunks else self.step()

    def _come_and_go(self) -> None:
        random, sequences = self._random, self._sequences
        if sequences and random.random() < 0.3:  # preempted: read again, elsewhere
            sequence = sequences[int(random.integers(len(sequences)))]
            self._free += sequence.blocks
            sequence.blocks, sequence.done = [], 0
        if len(sequences) == self._limits.max_sequences:
            ended = sequences.pop(int(random.integers(len(sequences))))
            self._free += ended.blocks
        if len(sequences) < self._limits.max_sequences:
            tokens = tokens_of(int(random.integers(1 << 30)), int(random.integers(1, 120)))
            sequences.append(Sequence(tokens, []))

    def _room(self, sequence: Sequence, stop: int, copies: list[tuple[int, int]]) -> bool:
        """Blocks up to ``stop``; now and then the one written next is a copy, as after a fork."""
        missing = -(-stop // BLOCK_SIZE) - len(sequence.blocks)
        if missing + 1 > len(self._free):
            return False
        partial = sequence.done % BLOCK_SIZE and sequence.done // BLOCK_SIZE < len(sequence.blocks)
        if partial and self._random.random() < 0.2:
            at = sequence.done // BLOCK_SIZE
            copies.append((int(sequence.blocks[at]), int(self._free.pop(0))))
            self._free.append(sequence.blocks[at])
            sequence.blocks[at] = copies[-1][1]
        sequence.blocks += [int(self._free.pop(0)) for _ in range(max(missing, 0))]
        return True


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")  # of rows of padding, which hold anything
@pytest.mark.parametrize(
    ("dtype", "kv_dtype", "quantization", "seed"),
    [
        ("float32", None, "none", 58),
        ("bfloat16", "int8", "int8", 230),
        ("bfloat16", None, "int4", 278),
    ],
)
def test_any_mix_of_sequences_has_its_bits(
    dtype: DType, kv_dtype: KvDType | None, quantization: QuantizationName, seed: int, device: Any
) -> None:
    layers = 2 if quantization == "none" else 1
    pair = Pair.of(device, LIMITS, dtype, kv_dtype, quantization, layers=layers)
    company = Company(seed, LIMITS)
    for _ in range(12):
        pair.run(company.step())
    assert len(pair.graphs.replayed) == 12
    used = set(pair.graphs.replayed)
    assert sum(bucket.rows < bucket.tokens for bucket in used) >= 4
    pair.close()


def garble(executor: CudaExecutor) -> None:
    """Put what no step may read wherever steps are written: NaN, and indices of nowhere."""
    assert executor._program is not None
    executor._program._arena._bytes.fill_(255)
    executor._buffer._device.fill_(1 << 30)
    for pinned in executor._buffer._pinned._buffers:
        pinned.fill_(1 << 30)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")  # NaNs in rows of padding
def test_nothing_that_was_there_before_is_seen(pair: Pair) -> None:
    """Neither of a larger step of the same bucket, nor of anything else."""
    large = [
        Chunk(A, 0, 20, A_BLOCKS, rows=[]),
        Chunk(B, 0, 9, B_BLOCKS, rows=[6, 7, 8]),
        *(Chunk(C, 0, 1, [20 + i]) for i in range(3)),
    ]
    small = [Chunk(C, 1, 8, [20]), Chunk(A, 20, 30, A_BLOCKS, rows=[]), Chunk(B, 9, 10, B_BLOCKS)]
    pair.run(step_of(large))
    pair.run(step_of(small))
    assert pair.graphs.replayed == [(32, 16), (32, 16)]
    for step in (
        step_of(large),
        step_of(small),
        step_of([Chunk(B, 10, 30, B_BLOCKS, rows=[])]),
        step_of([Chunk(A, 30, 31, [30, 39])], [(7, 30)]),
    ):
        garble(pair.graphed)
        pair.run(step)
    assert pair.graphs.replayed[2:] == [(32, 16), (32, 16), (32, 0), (1, 1)]


@pytest.mark.slow
def test_a_padded_step_may_read_what_the_one_before_samples(pair: Pair) -> None:
    """The later of two overlapping steps is mixed: its tokens are where the device chose them."""
    first = step_of(
        [Chunk(A, 0, 9, A_BLOCKS), Chunk(B, 0, 9, B_BLOCKS, rows=[]), Chunk(C, 0, 5, [2])]
    )
    tokens = C.copy()
    tokens[5] = ~1  # of the second that is sampled
    second = step_of([Chunk(B, 9, 39, B_BLOCKS), Chunk(tokens, 5, 6, [2])])
    said = []
    for executor in (pair.plain, pair.graphed):
        sampler = executor.sampler
        states = [
            sampler.state(NewSequence(SamplingParams(temperature=t, seed=5), 5, [1, 2], 211, [5]))
            for t in (0.0, 1.0)
        ]
        sampling = Sampling([0, 1], states)
        pending = [executor.submit(step, sampling) for step in (first, second)]
        said.append([list(each.wait().sampled.token_ids) for each in pending])
    assert said[0] == said[1]
    assert pair.graphs.replayed == [(32, 16), (32, 16)]
    pair.compare_caches()


def test_padding_writes_nothing(pair: Pair) -> None:
    step = step_of([Chunk(A, 0, 17, A_BLOCKS), Chunk(C, 0, 5, [2])])
    expected = pair.plain.run(step).logits
    executor = pair.graphed
    assert executor._program is not None
    there = executor._write_padded(step, Bucket(48, 24))
    logits, argmax, *_ = executor._program.run(there)
    assert logits.shape == (24, 211)
    np.testing.assert_array_equal(logits[:2].cpu().numpy(), expected)
    np.testing.assert_array_equal(argmax[:2, 0].cpu().numpy(), expected.argmax(axis=1))
    pair.compare_caches()
