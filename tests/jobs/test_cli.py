"""The command itself: help without heavy imports, one line for bad arguments, exit codes."""

import subprocess
import sys

import pytest

from headrace.jobs import cli
from headrace.jobs.cli import main

HEAVY = "jax", "transformers", "apache_beam", "numpy", "pyarrow", "rich"


@pytest.mark.parametrize("argv", [["--help"], [], ["--version"]])
def test_help_and_version_import_nothing_heavy(argv):
    code = (
        f"import sys; from headrace.jobs.cli import main; code = main({argv}); "
        f"print([name for name in {HEAVY} if name in sys.modules], code, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "[] 0\n"
    assert "headrace" in done.stdout


def test_the_module_can_be_run_like_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "headrace.jobs", "--version"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout.split()[0]) == (0, "headrace")


@pytest.mark.parametrize("command", ["generate", "transcribe", "demo"])
def test_every_command_has_a_help(command, capsys):
    assert main([command, "--help"]) == 0
    assert f"headrace {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["tanscribe"], "unknown command tanscribe: did you mean transcribe? (see headrace --help)"),
        (["--colour"], "unrecognized arguments: --colour"),
        (["generate"], "the following arguments are required: --output, --model"),
        (["generate", "--output", "o", "--model", "m"], "no input was given"),
        (["transcribe", "a", "--output", "o", "--model", "m", "--lang", "en"], "unknown option --lang"),
        (["generate", "a", "--output", "o", "--model", "m", "--max-tokens", "0"], "max_tokens"),
        (
            ["generate", "a", "--output", "o", "--model", "m", "--direct_num_workers=x"],
            "Apache Beam: argument",
        ),
        (["demo", "--model", "m"], "unrecognized arguments: --model m"),
    ],
)
def test_bad_arguments_are_one_line_and_exit_code_2(argv, said, capsys):
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("headrace: ")
    assert said in err
    assert err.count("\n") == 1


def test_an_unforeseen_error_is_shown_in_full_and_gives_exit_code_1(monkeypatch, capsys):
    def broken(arguments):
        raise RuntimeError("no disk at https://h.example/x?sig=secret")

    monkeypatch.setattr(cli, "_run_command", broken)
    assert main([]) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "secret" not in err
    assert err.endswith(
        "headrace: the run broke: RuntimeError: no disk at https://h.example/x?...: "
        "run the same command again to resume\n"
    )
