"""Compiled programs by bucket: made once, ahead or at first use, bounded, and strict where that is wanted."""

import jax
import numpy as np
import pytest

from headrace.engines import ConfigError, EngineError
from headrace.engines.compilation_config import CompilationConfig, compiler_options
from headrace.engines.programs import ProgramKey, Programs

SIZES = (8, 32, 128)
PLAN = [ProgramKey("add", size) for size in SIZES]


def arguments(size: int, dtype: str = "int32") -> dict[str, np.ndarray]:
    return {"first": np.zeros(size, dtype), "second": np.ones(size, np.int32)}


def make_programs(**options) -> Programs:
    function = jax.jit(lambda first, second: first + second.astype(first.dtype))
    return Programs(
        CompilationConfig(**options),
        PLAN,
        lambda key, given: function.lower(**given),
        lambda key: arguments(key.size),
    )


def test_a_program_is_compiled_at_its_first_use_and_once():
    programs = make_programs(aot=False)
    for _ in range(2):
        program = programs.get(PLAN[0], arguments(8))
        assert program(**arguments(8)).tolist() == [1] * 8
    assert (programs.num_compiles, programs.num_late_compiles) == (1, 0)


def test_programs_are_compiled_ahead_and_a_later_compile_is_counted(caplog):
    programs = make_programs()
    assert not programs.is_ready(PLAN[1])
    assert programs.precompile([PLAN[1]]) == [PLAN[1]]
    assert programs.is_ready(PLAN[1])
    assert programs.precompile() == [PLAN[0], PLAN[2]]
    assert programs.precompile() == []
    assert programs.is_warm
    for key in PLAN:
        programs.get(key, arguments(key.size))
    assert (programs.num_compiles, programs.num_late_compiles) == (3, 0)
    programs.get(PLAN[0], arguments(8, "float32"))
    assert programs.num_late_compiles == 1
    assert "after warm-up" in caplog.text
    programs.close()


def test_strict_shapes_name_what_is_another():
    programs = make_programs(strict_shapes=True)
    programs.get(PLAN[0], arguments(8))
    with pytest.raises(EngineError, match=r"argument first of add of 8 is float32\[8\].*int32\[8\]"):
        programs.get(PLAN[0], arguments(8, "float32"))
    with pytest.raises(EngineError, match=r"add of 9 was not foreseen.*8, 32, 128"):
        programs.get(ProgramKey("add", 9), arguments(9))
    with pytest.raises(EngineError, match=r"argument third of add of 32 is .*foreseen for none"):
        programs.get(PLAN[1], {**arguments(32), "third": np.zeros(1, np.int32)})


def test_more_programs_than_may_be_are_dropped_and_counted():
    programs = make_programs(max_programs=2)
    for size in (8, 32, 8, 128, 32):
        programs.get(ProgramKey("add", size), arguments(size))
    assert programs.num_compiles == 4  # 128 took the place of 32
    assert programs.num_evictions == 2
    programs.close()


def test_a_compile_that_fails_is_the_error_of_whoever_waits_for_it():
    def refuse(key, given):
        raise ValueError("cannot be lowered")

    programs = Programs(CompilationConfig(), PLAN, refuse, lambda key: arguments(key.size))
    with pytest.raises(ValueError, match="cannot be lowered"):
        programs.precompile([PLAN[0]])
    programs.close()


def test_xla_options_are_passed_on():
    config = CompilationConfig(xla_options=("xla_cpu_enable_fast_math=false", "xla_dump_to=a=b"))
    assert compiler_options(config) == {"xla_cpu_enable_fast_math": False, "xla_dump_to": "a=b"}
    with pytest.raises(ConfigError, match="name=value"):
        CompilationConfig(xla_options=("fast",))
    programs = make_programs(xla_options=("xla_no_such_option=1",))
    with pytest.raises(Exception, match="xla_no_such_option"):
        programs.get(PLAN[0], arguments(8))
