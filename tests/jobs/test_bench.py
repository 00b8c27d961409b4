"""`headrace bench` on this machine and on a tiny model."""

import re

import pytest

from headrace.engines.roofline import Phase
from headrace.jobs.bench import main, phase_text
from headrace.jobs.errors import UsageError


def test_the_machine_is_measured_without_a_model(capsys):
    assert main(["--seconds", "0.01"]) == 0
    shown = capsys.readouterr().out
    for line in ("products, float32", "products, bfloat16", "products, int8", "copy"):
        (number,) = re.findall(rf"{line} +([0-9.]+) G", shown)
        assert float(number) > 0


@pytest.mark.slow
def test_prefill_and_decode_of_a_model_are_told_apart(tiny_llm, capsys):
    shape = ["--rows", "8", "--prompt-tokens", "32", "--max-tokens", "16", "--slots", "8"]
    assert main(["--model", tiny_llm, "--seconds", "0.01", "--dtype", "float32", *shape]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"prefill +[0-9.]+ tokens/s", shown)
    assert re.search(r"decode +[0-9.]+ tokens/s", shown)


def test_shares_of_the_limits_are_shown():
    phase = Phase("decode", "tokens", 100, flops=5e9, num_bytes=1e9, seconds=2.0)
    shown = phase_text(phase, peak=1e10, bandwidth=1e9)
    assert "50.0 tokens/s" in shown
    assert "25.0 % of the peak" in shown
    assert "50.0 % of the bandwidth" in shown
    assert "75.0 % outside the products" in shown


def test_counts_below_one_are_refused():
    with pytest.raises(UsageError, match="--rows is 0"):
        main(["--model", "x", "--rows", "0"])
