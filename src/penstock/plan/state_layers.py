"""What layers keep of a sequence in its state slot: the geometry of each, and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.models.spec import DType, GatedDeltaSpec, LayerSpec, StateSpec

_ELEMENT_BYTES: dict[DType, int] = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class StateLayer:
    """A layer's part of a slot: matrices, a ring of inputs of a convolution, and a log.

    What each holds is said in ``penstock.plan.ops.state``. A matrix is ``[rows, columns]``: sums
    go over ``rows`` (components of a key, or the numbers that a selective scan keeps), and no two
    of the ``columns`` (components of a value, or of a head) ever meet.
    """

    channels: int
    """Channels of the convolution."""
    kernel: int
    """Taps of each channel."""
    heads: int
    """Number of matrices."""
    rows: int
    columns: int
    log_size: int
    """Numbers in a row of the log."""

    def ring_rows(self, log: int) -> int:
        """Rows of the convolution's ring where ``log`` tokens may be taken back."""
        return self.kernel - 1 + log

    def num_bytes(self, dtype: DType, log: int) -> int:
        """Bytes of the layer's part of a slot: float32, but for inputs of convolutions, which are
        kept in ``dtype``."""
        ring = self.ring_rows(log) * self.channels * _ELEMENT_BYTES[dtype]
        return 4 * (self.heads * self.rows * self.columns + log * self.log_size) + ring


def state_layers(layers: Sequence[LayerSpec]) -> tuple[StateLayer, ...]:
    """Return what those of a model's layers keep that keep a state."""
    return tuple(map(state_layer, state_specs(layers)))


def state_specs(layers: Sequence[LayerSpec]) -> tuple[StateSpec, ...]:
    """Return what those of a model's layers are that keep a state, in their order."""
    mixers = (mixer for layer in layers for mixer in layer.mixers)
    return tuple(mixer for mixer in mixers if isinstance(mixer, StateSpec))


def state_layer(spec: StateSpec) -> StateLayer:
    """Return what a layer of this kind keeps."""
    if isinstance(spec, GatedDeltaSpec):
        return StateLayer(
            channels=2 * spec.key_size + spec.value_size,
            kernel=spec.kernel,
            heads=spec.value_heads,
            rows=spec.key_dim,
            columns=spec.value_dim,
            log_size=spec.key_size + spec.value_size + 2 * spec.value_heads,
        )
    return StateLayer(
        channels=spec.conv_size,
        kernel=spec.kernel,
        heads=spec.heads,
        rows=spec.state,
        columns=spec.head_dim,
        log_size=spec.groups * spec.state + spec.inner_size + spec.heads,
    )
