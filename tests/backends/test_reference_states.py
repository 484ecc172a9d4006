"""States on the reference backend: what is computed, and that no cut, replay or neighbour shows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.naive_decoder import logits_of
from support.state_plans import NET, OTHER_NET, StateWeights, state_spec
from support.state_steps import with_states
from support.tiny_plans import Chunk, step_of, tokens_of

from penstock.backends.reference.executor import ReferenceExecutor
from penstock.interface.executor import Limits
from penstock.interface.step import StepInput
from penstock.models.spec import DType, ModelSpec
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower

LOG, SLOTS, LENGTH = 3, 8, 60
LIMITS = Limits(
    num_blocks=8,
    max_tokens=64,
    max_logit_rows=64,
    max_sequences=4,
    threads=1,
    num_states=SLOTS,
    state_log=LOG,
)
TOKENS = tokens_of(1, LENGTH)
BLOCKS = [5, 2]
SPEC = state_spec(NET, OTHER_NET)


def executor_of(spec: ModelSpec, dtype: DType = "float32", log: int = LOG) -> ReferenceExecutor:
    """An executor whose slots are full of what must not be read."""
    plan = fuse(lower(spec, dtype))
    made = ReferenceExecutor(plan, StateWeights(plan), replace(LIMITS, state_log=log))
    for layer in made._states._layers:
        for array in (layer.state, layer.conv, layer.log):
            array[...] = np.nan
    return made


def whole(
    spec: ModelSpec, dtype: DType = "float32", tokens: NDArray[np.int32] = TOKENS
) -> NDArray[np.float32]:
    """Logits after each token, in one step."""
    rows = range(len(tokens))
    step = with_states(step_of([Chunk(tokens, 0, len(tokens), BLOCKS, rows)]), [3])
    return executor_of(spec, dtype).run(step).logits.copy()


@pytest.mark.parametrize("spec", [SPEC, state_spec(OTHER_NET, NET, attention=False)])
def test_a_plan_computes_what_its_spec_says(spec: ModelSpec) -> None:
    expected = logits_of(spec, StateWeights(lower(spec)).get, TOKENS)
    np.testing.assert_allclose(whole(spec), expected, rtol=0, atol=2e-5 * np.abs(expected).max())
    # The states matter: another first token changes the last logits.
    other = TOKENS.copy()
    other[0] = (other[0] + 1) % 211
    assert np.abs(whole(spec, tokens=other)[-1] - expected[-1]).max() > 1e-3


@dataclass
class Walk:
    """A sequence that is read in steps, of which the last rows may be taken back."""

    executor: ReferenceExecutor
    slot: int = 3
    computed: int = 0
    seen: int = 0
    logits: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    snapshots: dict[int, int] = field(default_factory=dict)
    """Slots by the tokens seen there."""

    def step(self, rows: int, tentative: int, taken: int, wanted: list[int]) -> StepInput:
        """``taken`` of the ``tentative`` last rows are taken back: their tokens are others."""
        start, end = self.computed, self.computed + rows
        tokens = TOKENS.copy()
        tokens[end - taken : end] = (tokens[end - taken : end] + 7) % 211
        stored = end - tentative
        free = [s for s in range(SLOTS) if s != self.slot and s not in self.snapshots.values()]
        new = dict(zip([n for n in wanted if self.seen < n <= stored], free, strict=False))
        step = with_states(
            step_of([Chunk(tokens, start, end, BLOCKS, range(start, end))]),
            [self.slot],
            seen=[self.seen],
            tentative=[tentative],
            snapshots=[(0, n, slot) for n, slot in sorted(new.items())],
        )
        for row, logits in enumerate(self.executor.run(step).logits[: rows - taken], start):
            self.logits[row] = logits.copy()
        self.snapshots |= new
        self.computed, self.seen = end - taken, stored
        return step


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(data=st.data(), dtype=st.sampled_from(["float32", "bfloat16"]))
def test_no_cut_no_replay_and_no_snapshot_shows(data: st.DataObject, dtype: DType) -> None:
    """Bit by bit; and a sequence goes on from a snapshot as from its own state."""
    expected = whole(SPEC, dtype)
    walk = Walk(executor_of(SPEC, dtype))
    while walk.computed < LENGTH:
        rows = data.draw(st.integers(1, min(20, LENGTH - walk.computed)), "rows")
        tentative = data.draw(st.integers(0, min(rows, LOG)), "tentative")
        taken = data.draw(st.integers(0, min(tentative, rows - 1)), "taken")
        wanted = data.draw(st.lists(st.integers(1, LENGTH), max_size=2, unique=True), "snapshots")
        walk.step(rows, tentative, taken, wanted)
    for row, logits in walk.logits.items():
        np.testing.assert_array_equal(logits.view(np.uint32), expected[row].view(np.uint32))
    for tokens, slot in walk.snapshots.items():
        if tokens == LENGTH:
            continue
        chunk = Chunk(TOKENS, tokens, LENGTH, BLOCKS, range(tokens, LENGTH))
        step = with_states(step_of([chunk]), [walk.slot], copies=[(slot, walk.slot)])
        got = walk.executor.run(step).logits
        np.testing.assert_array_equal(got.view(np.uint32), expected[tokens:].view(np.uint32))


def test_neighbours_change_nothing() -> None:
    """Nor does the slot, nor the place in the step."""
    expected = whole(SPEC)
    executor, other = executor_of(SPEC, log=0), tokens_of(2, 20)
    first = step_of([Chunk(other, 0, 9, [1]), Chunk(TOKENS, 0, 30, BLOCKS, range(30))])
    second = step_of(
        [Chunk(TOKENS, 30, 60, BLOCKS, range(30, 60)), Chunk(other, 9, 20, [1], rows=[])]
    )
    logits = [executor.run(with_states(first, [7, 0])).logits[1:].copy()]
    logits.append(executor.run(with_states(second, [0, 7])).logits)
    np.testing.assert_array_equal(np.concatenate(logits), expected)


def test_a_copied_slot_goes_on_as_its_source() -> None:
    expected = whole(SPEC)
    executor = executor_of(SPEC, log=0)
    executor.run(with_states(step_of([Chunk(TOKENS, 0, 30, BLOCKS)]), [4]))
    step = step_of([Chunk(TOKENS, 30, 60, BLOCKS, range(30, 60))])
    logits = executor.run(with_states(step, [1], copies=[(4, 6), (6, 1)])).logits
    np.testing.assert_array_equal(logits, expected[30:])
    logits = executor.run(with_states(step, [4])).logits  # the source is as it was
    np.testing.assert_array_equal(logits, expected[30:])


@pytest.mark.parametrize("kernel", ["recurrent", "chunked"])
def test_the_rule_is_that_of_transformers(kernel: str) -> None:
    torch = pytest.importorskip("torch", reason="transformers needs torch")
    theirs = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    rule = {
        "recurrent": theirs.torch_recurrent_gated_delta_rule,
        "chunked": theirs.torch_chunk_gated_delta_rule,
    }[kernel]
    executor = executor_of(state_spec(NET, attention=False), log=0)
    seen: dict[str, NDArray[np.float32]] = {}
    run = executor._states._gated_delta

    def spy(op: object, step: StepInput) -> None:
        run(op, step)  # type: ignore[arg-type]
        values = executor._values
        seen.update({name: values.buffers[getattr(op, name)] for name in ("qkv", "ba", "out")})
        seen.update({name: values.weights[getattr(op, name)] for name in ("a_log", "dt_bias")})

    (kind,) = [kind for kind in executor._run if kind.__name__ == "GatedDelta"]
    executor._run[kind] = spy
    executor.run(with_states(step_of([Chunk(TOKENS, 0, LENGTH, BLOCKS)]), [0]))
    t = {name: torch.tensor(value)[None] for name, value in seen.items()}
    q, k, v = t["qkv"].split([NET.key_size, NET.key_size, NET.value_size], dim=-1)
    b, a = t["ba"].chunk(2, dim=-1)
    decay = -t["a_log"].exp() * torch.nn.functional.softplus(a + t["dt_bias"])
    out, state = rule(
        q.reshape(1, LENGTH, NET.key_heads, NET.key_dim),
        k.reshape(1, LENGTH, NET.key_heads, NET.key_dim),
        v.reshape(1, LENGTH, NET.value_heads, NET.value_dim),
        g=decay,
        beta=b.sigmoid(),
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    ours = seen["out"].reshape(out.shape)
    np.testing.assert_allclose(ours, out.numpy(), rtol=0, atol=1e-5 * float(out.abs().max()))
    stored = executor._states._layers[0].state[0]
    np.testing.assert_allclose(stored, state[0].numpy(), rtol=0, atol=1e-5)
