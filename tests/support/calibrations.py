"""A calibration of the demo model with made-up constants."""

from __future__ import annotations

from penstock.config import EngineConfig
from penstock.engine.loader import plan_engine
from penstock.simulate.calibration import (
    VERSION,
    Calibration,
    Covered,
    ModelKey,
    StepTimes,
    window_shares,
)
from penstock.simulate.front_end import FrontTimes


def demo_calibration() -> Calibration:
    planned = plan_engine(EngineConfig(backend="cpu"))
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
        checked={"ttft.p50": 0.02},
    )
