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
    linear,
    linear_of_rows,
    pack_linear,
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
    "is_available",
    "linear",
    "linear_of_rows",
    "pack_linear",
]
