"""CPU kernels in C++, where the wheel was built with a compiler; plain XLA takes their place elsewhere."""

from headrace.engines.native.kernels import PAGED_ATTENTION, is_available

__all__ = ["PAGED_ATTENTION", "is_available"]
