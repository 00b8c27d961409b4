"""Where no runner is named the pipeline gets one; failures of workers become one line."""

import pytest
from apache_beam.options.pipeline_options import DirectOptions, StandardOptions

from headrace.pipelines.pipeline import pipeline_options, reason


@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        ([], ("FnApiRunner", "in_memory", 1)),
        (["--direct_num_workers=3"], ("FnApiRunner", "multi_threading", 3)),
        (["--direct_running_mode", "in_memory"], ("FnApiRunner", "in_memory", 1)),
        (["--direct_running_mode=multi_processing"], ("FnApiRunner", "multi_processing", 2)),
        (["--runner=PrismRunner"], ("PrismRunner", "in_memory", 1)),
    ],
)
def test_the_runner_is_pinned_only_where_none_is_named(args: list[str], wanted: tuple[str, str, int]):
    options = pipeline_options(args)
    direct = options.view_as(DirectOptions)
    runner = options.view_as(StandardOptions).runner
    assert (runner, direct.direct_running_mode, direct.direct_num_workers) == wanted


def test_the_reason_of_a_failure_is_its_last_line():
    text = (
        "Traceback (most recent call last):\n  File x\nValueError: first\n\n"
        "RuntimeError: headrace.engines.errors.EngineError: the engine failed: boom "
        "[while running 'RunChunk-ptransform-3']\n\n"
    )
    assert reason(RuntimeError(text)) == "EngineError: the engine failed: boom"
    long = "jaxtyping.TypeCheckError: wrong value\n  Actual value: 3\n [while running 'RunChunk']"
    assert reason(RuntimeError(long)) == "TypeCheckError: wrong value"
    assert reason(OSError("disk full [while running 'RunChunk']")) == "OSError: disk full"
    assert reason(RuntimeError("disk full")) == "disk full"
    assert reason(RuntimeError()) == "RuntimeError"
