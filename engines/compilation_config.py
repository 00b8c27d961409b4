"""How an engine's programs are compiled; without JAX, as all configs are."""

from dataclasses import dataclass

from headrace.engines.errors import ConfigError
from headrace.engines.serialization import Serializable

AUTO = "auto"


@dataclass(frozen=True, kw_only=True, slots=True)
class CompilationConfig(Serializable):
    """How the engine's programs are compiled."""

    aot: bool = True
    """Compile programs ahead of their use, in parallel, those that are likely first; else at first use."""
    num_compile_workers: int = 2
    """Programs that are compiled at the same time."""
    max_programs: int = 64
    """Compiled programs that are kept; the one used longest ago is dropped for another."""
    strict_shapes: bool = False
    """Fail where a shape comes up that was not foreseen, or a compile after all are compiled."""
    cache_dir: str | None = AUTO
    """Where compiled programs are kept from run to run: a directory, auto (in the cache's root), none."""
    xla_options: tuple[str, ...] = ()
    """Options of the XLA compiler, name=value each."""

    def __post_init__(self) -> None:
        for name in ("num_compile_workers", "max_programs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, wanted at least 1")
        for option in self.xla_options:
            if not option.partition("=")[0] or "=" not in option:
                raise ConfigError(f"xla_options has {option!r}, wanted name=value")


def compiler_options(config: CompilationConfig) -> dict[str, str | bool]:
    """The XLA options as JAX takes them: true and false as such, everything else as text.

    e.g. `xla_cpu_enable_fast_math=false` -> {"xla_cpu_enable_fast_math": False}
    """
    pairs = (option.partition("=")[::2] for option in config.xla_options)
    return {name: {"true": True, "false": False}.get(value.lower(), value) for name, value in pairs}
