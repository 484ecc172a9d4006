"""The modules that are trained compute what their published form defines."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from support.checkpoints import tiny_checkpoint
from support.published_heads import eagle1_chain, eagle3_chain
from torch import Tensor
from transformers import LlamaConfig

from penstock.train.draft_heads import Heads, soft_cross_entropy
from penstock.train.eagle1 import Eagle1Heads
from penstock.train.eagle3 import Eagle3Heads
from penstock.train.loop import Report, Schedule, rate_at, train
from penstock.train.medusa import MedusaHeads
from penstock.train.target import Target
from penstock.train.warm_start import warm_start

LAYERS = (1, 2, 4)
STEPS = 4


def tokens(rows: int = 2, length: int = 12) -> Tensor:
    return torch.randint(0, 256, (rows, length))


def randomize(heads: Heads) -> None:
    """Weights that bfloat16 holds exactly, so that a checkpoint says all of what was trained."""
    with torch.no_grad():
        for parameter in heads.parameters():
            spread = 0.2 if parameter.ndim == 1 else 1.2 / parameter.shape[-1] ** 0.5
            noise = spread * torch.randn_like(parameter) + (parameter.ndim == 1)
            parameter.copy_(noise.bfloat16().float())


def floats(heads: Heads) -> Mapping[str, Tensor]:
    return {
        name: t.float() if t.is_floating_point() else t for name, t in heads.published().items()
    }


def eagle3(target: Target, drafted: Tensor | None = None) -> Eagle3Heads:
    return Eagle3Heads(
        target.draft_config(),
        target.embedding,
        target.output,
        target.norm,
        LAYERS,
        torch.arange(len(target.output)) if drafted is None else drafted,
        STEPS,
    )


def test_features_are_the_inputs_of_layers(target: Target) -> None:
    seen: dict[int, Tensor] = {}
    layers = target.model.get_submodule("model.layers")
    hooks = [
        layer.register_forward_pre_hook(lambda _, given, i=i: seen.__setitem__(i, given[0]))
        for i, layer in enumerate(layers)
    ]
    observed = target.observe(tokens(), LAYERS)
    for hook in hooks:
        hook.remove()
    assert torch.equal(observed.taps, torch.cat([seen[i] for i in LAYERS], -1))
    assert torch.allclose(observed.hidden @ target.output.T, observed.logits, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "has"),
    [("phi", "bias"), ("gemma2", "softcap"), ("granite", "scale"), ("cohere", "scale")],
)
def test_eagle1_reads_a_feature_as_its_target_does(family: str, has: str) -> None:
    """It applies the bias, the scale and the cap of the target's logits, as a served head does."""
    target = Target(tiny_checkpoint(family))
    value = getattr(target.readout, has)
    assert isinstance(value, Tensor) or value not in (None, 1.0)
    heads = Eagle1Heads(LlamaConfig(hidden_size=64), target.embedding, target.readout)
    observed = target.observe(tokens())
    torch.testing.assert_close(heads.logits(observed.hidden), observed.logits)
    assert not any("output" in name for name in heads.state_dict())


def test_unrolled_eagle3_is_the_draft_of_every_prefix(target: Target) -> None:
    """Each row of each step has its own ancestors and nobody else's."""
    heads = eagle3(target).eval()
    randomize(heads)
    observed = target.observe(tokens(), LAYERS)
    with torch.no_grad():
        unrolled = [heads.logits(x) for x in heads.unroll(observed, STEPS)]
    for b, ids in enumerate(observed.tokens):
        for j in range(len(ids) - STEPS):
            chain = eagle3_chain(
                floats(heads),
                heads.config(),
                heads.embedding,
                observed.taps[b, : j + 1],
                ids[: j + 1 + STEPS],
            )
            assert len(chain) == j + STEPS
            for step, row in enumerate(chain[-STEPS:]):
                assert torch.allclose(unrolled[step][b, j], row, atol=2e-4), (b, j, step)


def test_unrolled_eagle1_is_the_draft_of_every_prefix(target: Target) -> None:
    heads = Eagle1Heads(target.draft_config(), target.embedding, target.readout, STEPS).eval()
    randomize(heads)
    observed = target.observe(tokens(1))
    with torch.no_grad():
        unrolled = [heads.logits(x) for x in heads.unroll(observed, STEPS)]
    (ids,) = observed.tokens
    for j in range(len(ids) - STEPS):
        chain = eagle1_chain(
            floats(heads),
            heads.config(),
            target.embedding,
            target.output,
            observed.hidden[0, : j + 1],
            ids[: j + 1 + STEPS],
        )
        for step, row in enumerate(chain[-STEPS:]):
            assert torch.allclose(unrolled[step][0, j], row, atol=2e-4), (j, step)


def test_medusa_heads_are_what_their_checkpoint_says(target: Target) -> None:
    heads = MedusaHeads(target.output, num_heads=3, num_layers=2, base_model="base")
    randomize(heads)
    observed = target.observe(tokens())
    named = floats(heads)
    chosen = observed.logits.argmax(-1)
    for h, guesses in enumerate(heads.guess(observed)):
        x = observed.hidden
        for layer in range(2):
            inner = x @ named[f"{h}.{layer}.linear.weight"].T + named[f"{h}.{layer}.linear.bias"]
            x = x + torch.nn.functional.silu(inner)
        logits = x @ named[f"{h}.2.weight"].T
        # Position t tells token t + 2 + h, which row t + 1 + h of the target tells.
        last = observed.tokens.shape[1] - 1 - h
        assert torch.equal(guesses.drafted, logits[:, :last].argmax(-1).flatten())
        assert torch.equal(guesses.chosen, chosen[:, 1 + h :].flatten())


def test_a_limited_vocabulary_is_reported_in_the_targets_ids(target: Target) -> None:
    drafted = torch.tensor([3, 7, 100, 101, 102, 250])
    heads = eagle3(target, drafted).eval()
    tensors = heads.published()
    own = torch.arange(len(drafted))
    assert torch.equal(own + tensors["d2t"], drafted)
    assert torch.equal(tensors["t2d"].nonzero().flatten(), drafted)
    assert tensors["lm_head.weight"].shape == (len(drafted), 64)
    assert torch.equal(tensors["lm_head.weight"], target.output[drafted].bfloat16())
    with torch.no_grad():
        for guesses in heads.guess(target.observe(tokens(), LAYERS)):
            assert torch.isin(guesses.drafted, drafted).all()
    assert torch.isfinite(heads.loss(target.observe(tokens(), LAYERS)))


def test_soft_cross_entropy_is_torchs() -> None:
    logits = torch.randn(3, 100, 50, requires_grad=True)
    wanted = torch.randn(3, 100, 50).softmax(-1)
    counted = torch.rand(3, 100) < 0.6
    for chosen in (None, counted):
        rows = -(wanted * logits.log_softmax(-1)).sum(-1)
        plain = rows.mean() if chosen is None else rows[chosen].mean()
        (expected,) = torch.autograd.grad(2.0 * plain, logits)
        loss = soft_cross_entropy(logits, wanted, chosen)
        (gradient,) = torch.autograd.grad(2.0 * loss, logits)
        assert torch.allclose(loss, plain, rtol=1e-5)
        assert torch.allclose(gradient, expected, atol=1e-7)
    nothing = soft_cross_entropy(logits, wanted, torch.zeros(3, 100, dtype=torch.bool))
    assert nothing.item() == 0.0


@pytest.mark.parametrize("kind", ["medusa", "eagle1"])
def test_a_linear_start_finds_a_linear_rule(target: Target, kind: str) -> None:
    """What the fit was given pairs of, heads reproduce before any step."""
    heads: Heads = (
        MedusaHeads(target.output, 2, 1, "base")
        if kind == "medusa"
        else Eagle1Heads(target.draft_config(), target.embedding, target.readout)
    )
    windows = [tokens(8, 32) for _ in range(4)]
    heads.eval()
    before = [heads.loss(target.observe(w)).item() for w in windows]
    warm_start(heads, target, windows)
    after = [heads.loss(target.observe(w)).item() for w in windows]
    assert all(b < 0.9 * a for a, b in zip(before, after, strict=True)), (before, after)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("kind", ["medusa", "eagle1", "eagle3"])
def test_steps_lower_the_loss(target: Target, kind: str) -> None:
    """The loss falls on windows seen again and again, towards the entropy of what the target
    says."""
    if kind == "medusa":
        heads: Heads = MedusaHeads(target.output, 2, 1, "base")
    elif kind == "eagle1":
        heads = Eagle1Heads(target.draft_config(), target.embedding, target.readout)
    else:
        heads = eagle3(target)
    windows = tokens(4, 32)
    observed = target.observe(windows, heads.layers)
    with torch.no_grad():
        before = heads.loss(observed).item()
    reports: list[Report] = []
    last = train(
        heads,
        target,
        itertools.repeat(windows),
        lambda final: [windows],
        Schedule(minutes=60.0, learning_rate=8e-3, most_steps=40),
        reports.append,
    )
    with torch.no_grad():
        after = heads.loss(observed).item()
    assert reports == [last]
    assert (last.step, last.tokens, last.complete) == (40, 40 * 128, True)
    wanted = observed.logits.softmax(-1)
    entropy = soft_cross_entropy(observed.logits, wanted).item()
    floor = 0.0 if kind == "eagle1" else entropy * sum(0.8**i for i in range(len(last.agreement)))
    assert after - floor < 0.7 * (before - floor), (before, after, floor)
    assert last.agreement[0] > 0.3  # of 301 tokens


def test_the_schedule_follows_the_clock(target: Target) -> None:
    """Ten seconds a step: the run ends with its minutes, and looks on the way."""
    heads = MedusaHeads(target.output, 1, 1, "base")
    windows = tokens(1, 16)
    clock = itertools.count(0, 5)
    finals: list[bool] = []
    reports: list[Report] = []

    def held_out(final: bool) -> list[Tensor]:
        finals.append(final)
        return [windows]

    train(
        heads,
        target,
        itertools.repeat(windows),
        held_out,
        Schedule(minutes=1.0, learning_rate=1e-3, look_every=0.5),
        reports.append,
        now=lambda: float(next(clock)),
    )
    assert [report.step for report in reports] == [6, 12]
    assert [report.minutes for report in reports] == [0.5, 1.0]
    assert finals == [report.complete for report in reports] == [False, True]
    assert rate_at(0.0) < 0.02 < rate_at(0.3) == 1.0
    assert rate_at(1.0) < 0.01


def test_a_target_of_sixteen_bits_has_the_same_heads(folder: Path) -> None:
    """As on a GPU, where the target keeps its checkpoint's type."""
    target = Target(folder)
    target.model.bfloat16()
    for heads in (
        MedusaHeads(target.output, 2, 1, "base"),
        Eagle1Heads(target.draft_config(), target.embedding, target.readout),
        eagle3(target),
    ):
        windows = tokens(2, 32)
        warm_start(heads, target, [windows])
        report = train(
            heads,
            target,
            itertools.repeat(windows),
            lambda final, windows=windows: [windows],
            Schedule(minutes=60.0, learning_rate=1e-3, most_steps=2),
            lambda report: None,
        )
        assert report.complete
        assert torch.isfinite(heads.loss(target.observe(windows, heads.layers)))
