"""CPU kernels in C++, where the wheel was built with a compiler; plain XLA takes their place elsewhere."""

from headrace.engines.native.greedy_head import can_run_greedy_head, greedy_head
from headrace.engines.native.kernels import (
    CROSS_ATTENTION,
    ENCODER_ATTENTION,
    GREEDY_HEAD,
    LINEAR,
    PACK_FRAMES,
    PAGED_ATTENTION,
    SELF_ATTENTION,
    is_available,
)
from headrace.engines.native.linear import (
    BEST_LEVEL,
    SUMS,
    Epilogue,
    Norm,
    PackedLinear,
    RowsOf,
    interleave_gate,
    linear,
    linear_of_rows,
    pack_linear,
    pack_weight,
    packed_bias,
    packed_shape,
)

__all__ = [
    "BEST_LEVEL",
    "CROSS_ATTENTION",
    "ENCODER_ATTENTION",
    "GREEDY_HEAD",
    "LINEAR",
    "PACK_FRAMES",
    "PAGED_ATTENTION",
    "SELF_ATTENTION",
    "SUMS",
    "Epilogue",
    "Norm",
    "PackedLinear",
    "RowsOf",
    "can_run_greedy_head",
    "greedy_head",
    "interleave_gate",
    "is_available",
    "linear",
    "linear_of_rows",
    "pack_linear",
    "pack_weight",
    "packed_bias",
    "packed_shape",
]
