"""What of a step comes to the host, and when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from support.tiny_plans import Chunk, dummy_weights, make_spec, step_of, tokens_of  # noqa: E402

from penstock.backends.cuda import result  # noqa: E402
from penstock.backends.cuda.bind import bind  # noqa: E402
from penstock.backends.cuda.executor import CudaExecutor  # noqa: E402
from penstock.errors import EngineDeadError  # noqa: E402
from penstock.interface.executor import Limits, Sampling  # noqa: E402
from penstock.interface.mask import StepMasks  # noqa: E402
from penstock.interface.sampler import NewSequence, Sampler  # noqa: E402
from penstock.interface.step import StepInput  # noqa: E402
from penstock.plan.fuse import fuse  # noqa: E402
from penstock.plan.lower import lower  # noqa: E402
from penstock.sampling.params import SamplingParams  # noqa: E402
from penstock.sampling.reference import NumpySampler  # noqa: E402

LIMITS = Limits(num_blocks=8, max_tokens=16, max_logit_rows=16, max_sequences=4, threads=1)
A = tokens_of(1, 12)
VOCAB = 211


@pytest.fixture(scope="module")
def executor(device: Any) -> CudaExecutor:
    spec = make_spec()
    plan = fuse(lower(spec, "float32"))
    return bind(plan, dummy_weights(spec, 3, "float32"), LIMITS, device)


def sampled(sampler: Sampler[Any], of: Any, params: list[SamplingParams]) -> Any:
    states = [
        sampler.state(NewSequence(each, 7 + i, [1, 2], VOCAB)) for i, each in enumerate(params)
    ]
    for state in states:
        state.append(5)
    return sampler.sample(of, list(range(len(params))), states)


def test_a_greedy_row_needs_no_logits(
    executor: CudaExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    got = executor.run(step_of([Chunk(A, 0, 4, [1], rows=[1, 2, 3])]))

    def refuse(rows: object) -> Any:
        raise AssertionError("nobody asked for them")

    with monkeypatch.context() as patched:
        patched.setattr(result, "_on_host", refuse)
        outcome = sampled(executor.sampler, got, [SamplingParams(temperature=0)] * 3)
    assert outcome.token_ids == got.argmax.tolist() == got.logits.argmax(axis=1).tolist()
    assert (outcome.errors, outcome.not_plain) == ({}, [])
    np.testing.assert_array_equal(got.peaks(np.arange(3, dtype=np.int32)), got.logits.max(axis=1))


def test_rows_are_sampled_where_they_are_as_the_definition_says(executor: CudaExecutor) -> None:
    got = executor.run(step_of([Chunk(A, 0, 6, [1], rows=range(6))]))
    params = [
        SamplingParams(temperature=0),
        SamplingParams(temperature=0.9, top_p=0.8, seed=1, logprobs=3),
        SamplingParams(temperature=0, logprobs=2),
        SamplingParams(temperature=1.0, top_k=5, presence_penalty=1.0),
        SamplingParams(temperature=0, repetition_penalty=1.7),
        SamplingParams(temperature=1.2, min_p=0.1),
    ]  # more than a launch of the sampler takes
    outcome = sampled(executor.sampler, got, params)
    assert outcome == sampled(NumpySampler(), got, params)
    assert outcome.not_plain == [1, 2, 3, 4, 5]


def test_rows_that_are_not_finite_fail_alone(executor: CudaExecutor) -> None:
    got = executor.run(step_of([Chunk(A, 0, 4, [1], rows=range(4))]))
    logits = got.logits.copy()
    logits[1, 7], logits[2, 9], logits[3] = np.nan, np.inf, -np.inf
    on_device = torch.from_numpy(logits).to(executor.device)
    winners = np.stack([logits.argmax(axis=1).astype(np.int32)] * 2, axis=1)
    winners[:, 1] = logits[np.arange(4), winners[:, 0]].view(np.int32)
    found = torch.from_numpy(winners).to(executor.device)
    results = got.on_device._replace(logits=on_device, argmax=found[:, :1].contiguous())
    bad = result.DeviceResult(results, found, 4, 0)
    for params in (SamplingParams(temperature=0), SamplingParams(temperature=1.0)):
        outcome = sampled(executor.sampler, bad, [params] * 4)
        assert sorted(outcome.errors) == [1, 2, 3]
        assert outcome.errors == sampled(NumpySampler(), bad, [params] * 4).errors


class _Late(NamedTuple):
    taken: StepMasks

    def take(self) -> StepMasks:
        return self.taken


def test_a_late_mask_is_refused_before_anything_runs(executor: CudaExecutor) -> None:
    """The device draws when its step is queued; what the host must do is said, and steps go on."""
    assert not executor.capabilities.late_masks
    step = step_of([Chunk(A, 0, 4, [1], rows=[3])])
    before = executor.run(step).argmax.tolist()
    state = executor.sampler.state(NewSequence(SamplingParams(temperature=0), 7, [1, 2], VOCAB))
    late = _Late(StepMasks([None], frozenset([0])))
    with pytest.raises(ValueError, match=r"samples \[0\] are late.* draw on the host"):
        executor.submit(step, Sampling([0], [state], late))
    there = _Late(StepMasks([None], frozenset()))
    drawn = executor.submit(step, Sampling([0], [state], there)).wait()
    assert drawn.sampled.token_ids == before


def test_hidden_states_and_features_are_picked_from_their_rows(executor: CudaExecutor) -> None:
    step = step_of([Chunk(A, 0, 6, [1], rows=[5], hidden=[0, 1])])
    hidden = executor.run(step).hidden.copy()
    outcome = executor.submit(step, Sampling(features=True)).wait()
    np.testing.assert_array_equal(outcome.hidden, hidden[1:])
    np.testing.assert_array_equal(outcome.features, hidden)


def test_the_next_step_ends_a_result(executor: CudaExecutor) -> None:
    step = step_of([Chunk(A, 0, 4, [1], rows=[3], hidden=[0, 1])])
    first, second = executor.run(step), executor.run(step)
    kept = second.logits
    executor.run(step_of([Chunk(A, 4, 5, [1])]))
    assert first.argmax.tolist() == second.argmax.tolist() == kept.argmax(axis=1).tolist()
    assert second.logits is kept
    for read in (lambda: first.logits, lambda: second.hidden):
        with pytest.raises(RuntimeError, match="a later step has overwritten"):
            read()


def test_a_gpu_that_fails_late_ends_the_engine(
    executor: CudaExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **options: object) -> Any:
        raise torch.AcceleratorError("CUDA error: unspecified launch failure\nCompile with ...")

    got = executor.run(step_of([Chunk(A, 0, 4, [1])]))
    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "to", fail)
        with pytest.raises(EngineDeadError, match="unspecified launch failure; the engine"):
            _ = got.logits
    monkeypatch.setattr(executor.sampler, "launch", fail)
    with pytest.raises(EngineDeadError, match="unspecified launch failure; the engine"):
        sampled(executor.sampler, got, [SamplingParams(temperature=1.0)])


@pytest.mark.slow
def test_steps_follow_each_other_by_their_likeliest_tokens(executor: CudaExecutor) -> None:
    def steps(tokens: np.ndarray) -> Iterator[StepInput]:
        """Steps of two sequences, of which the second ends sooner."""
        yield step_of([Chunk(A, 0, 4, [1]), Chunk(A, 0, 2, [2])])
        for at in range(2):
            chunks = [Chunk(A, 4 + at, 5 + at, [1]), Chunk(A, 2 + at, 3 + at, [2])]
            step = step_of(chunks[: 2 - at])
            yield replace(step, token_ids=tokens[at, : 2 - at].astype(np.int32))

    pending = [executor.submit(step) for step in steps(np.array([[-1, -2], [-1, -2]]))]
    found = [result.argmax for each in pending if (result := each.wait().result) is not None]
    plain = steps(np.array([found[0], found[1]]))
    for step, argmax in zip(plain, found, strict=True):
        assert executor.run(step).argmax.tolist() == argmax.tolist()
    beyond = replace(step_of([Chunk(A, 6, 7, [1])]), token_ids=np.array([-2], np.int32))
    with pytest.raises(ValueError, match="token id -2 is outside -1 to 210"):
        executor.submit(beyond)


def test_a_step_without_logits_is_waited_for_all_the_same(executor: CudaExecutor) -> None:
    got = executor.run(step_of([Chunk(A, 0, 4, [1], rows=[], hidden=[2])]))
    assert got.argmax.shape == (0,)
    assert got.logits.shape == (0, VOCAB)
    assert got.hidden.shape == (1, 72)
