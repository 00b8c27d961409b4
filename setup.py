"""The optional native extension; everything else stands in pyproject.toml.

Without a C++ compiler the extension is left out and the engines fall back to plain XLA.
"""

import importlib.util
from pathlib import Path

from setuptools import Extension, setup

NATIVE = Path("engines/native")
FLAGS = [
    "-std=c++17",
    "-O3",
    "-g0",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-Wno-psabi",
]


def xla_headers() -> list[str]:
    """The folder of XLA's FFI headers, which jaxlib carries."""
    spec = importlib.util.find_spec("jaxlib")
    return [str(Path(spec.origin).parent / "include")] if spec and spec.origin else []


setup(
    ext_modules=[
        Extension(
            "headrace.engines.native._kernels",
            sources=sorted(str(path) for path in NATIVE.glob("*.cc")),
            depends=sorted(str(path) for kind in ("*.inc", "*.h") for path in NATIVE.glob(kind)),
            include_dirs=xla_headers(),
            extra_compile_args=FLAGS,
            language="c++",
            optional=True,
        )
    ]
)
