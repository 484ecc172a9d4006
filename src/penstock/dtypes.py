"""What options, models and kernels call types of values and ways to quantize."""

from __future__ import annotations

from typing import Literal

DType = Literal["float32", "bfloat16", "float16"]
"""Type of weights, and of what is computed with them."""

QuantizationName = Literal["none", "int8", "int4"]

DTypeOption = Literal["auto", "float32", "bfloat16", "float16"]
"""What ``dtype`` may be asked for."""

KvCacheDTypeOption = Literal[
    "auto", "int4", "k8v4", "int8", "fp8", "fp8_e4m3", "float32", "bfloat16", "float16"
]
"""What ``kv_cache_dtype`` may be."""

WindowColumns = Literal[16, 32]
"""Columns of a matrix that share a window of its rows' grid."""
