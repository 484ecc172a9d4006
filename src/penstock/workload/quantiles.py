"""The middle and the ends of a quantity."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt


class Quantiles(msgspec.Struct, frozen=True, kw_only=True):
    """Mean and quantiles of one quantity, in its unit; between two samples they are linear."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, samples: npt.NDArray[np.float64] | npt.NDArray[np.int64]) -> Quantiles | None:
        """Those of the samples that are numbers; None if none is."""
        values = np.asarray(samples, np.float64)
        values = values[~np.isnan(values)]
        if not len(values):
            return None
        p50, p90, p99 = np.percentile(values, [50, 90, 99]).tolist()
        return cls(mean=float(values.mean()), p50=p50, p90=p90, p99=p99, max=float(values.max()))
