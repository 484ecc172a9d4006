"""A calibration of the demo model with made-up constants."""

from __future__ import annotations

from penstock.config import EngineConfig
from penstock.engine.loader import plan_engine
from penstock.simulate.agreement import Agreement
from penstock.simulate.calibration import VERSION, Calibration
from penstock.simulate.front_end import FrontTimes
from penstock.simulate.model_key import Covered, ModelKey
from penstock.simulate.self_check import SelfCheck
from penstock.simulate.step_times import StepTimes, window_shares

GOOD = SelfCheck(
    rounds=5,
    left_out=0,
    others=0.01,
    drift=0.04,
    medians=Agreement(mean=0.03, signed=0.01, worst=0.08, where="ttft.p50 of all places"),
    tails=Agreement(mean=0.1, signed=-0.02, worst=0.3, where="itl.p99 of all places"),
    repeats=Agreement(mean=0.02, signed=0.0, worst=0.05, where="ttft.p50 of all places"),
)
"""What a calibration says of itself that nothing disturbed."""


def demo_calibration(model: str = "") -> Calibration:
    """That of another model has the same constants."""
    planned = plan_engine(EngineConfig(model=model, backend="cpu"))
    return Calibration(
        version=VERSION,
        made="2026-01-01T00:00:00+00:00",
        model="the demo model",
        key=ModelKey.of(planned.plan, planned.spec.architecture, "cpu", planned.config.threads),
        steps=StepTimes(
            tokens=(1, 64, 512),
            rows=(1e-3, 2e-3, 9e-3),
            sequence=1e-5,
            sample=1e-5,
            chunk=1e-4,
            read=1e-8,
            pair=1e-8,
            behind=1e-6,
            windows=window_shares(planned.plan),
            error=0.01,
        ),
        front=FrontTimes(request=1e-3, prompt_token=1e-6, answer=1e-3, chunk=2e-5),
        template=11,
        covered=Covered(rows=256, sequences=8, context=1024),
        machine={},
        checked=GOOD,
    )
