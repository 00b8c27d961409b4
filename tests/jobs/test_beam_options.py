"""Beam's options pass through, and what neither side knows is refused with the nearest name."""

import subprocess
import sys

import pytest

from headrace.jobs.beam_options import add_beam_options, beam_parser, check_beam_args, options_in
from headrace.jobs.errors import UsageError
from headrace.jobs.options import Parser, add_options, option_names
from headrace.pipelines import GenerateConfig, TranscribeConfig


def parse(*argv: str):
    parser = Parser(prog="job", allow_abbrev=False)
    add_options(parser, GenerateConfig)
    add_beam_options(parser, argv)
    return parser.parse_intermixed_args(list(argv))


def test_options_of_beam_are_passed_through_and_take_their_values_with_them():
    parsed = parse(
        "a.txt",
        "--direct_num_workers",
        "2",
        "--output",
        "o",
        "--streaming",
        "b.txt",
        "--model=m",
        "--runner=X",
    )
    assert parsed.inputs == ["a.txt", "b.txt"]
    assert parsed.beam_args == ["--direct_num_workers=2", "--streaming", "--runner=X"]


def test_a_repeated_option_of_beam_is_passed_on_each_time():
    parsed = parse("a", "--output", "o", "--model", "m", "--experiments=x", "--experiments", "y")
    assert parsed.beam_args == ["--experiments=x", "--experiments=y"]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--max-token", "--max-tokens"),
        ("--max_tokens", "--max-tokens"),
        ("--outptu", "--output"),
        ("--direct-num-workers", "--direct_num_workers"),
        ("--direct_num_worker=3", "--direct_num_workers"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_name(typed, meant):
    with pytest.raises(UsageError) as raised:
        parse("a", "--output", "o", "--model", "m", typed, "5")
    assert str(raised.value) == f"unknown option {typed.partition('=')[0]}: did you mean {meant}?"


def test_an_option_like_no_other_is_refused_without_a_guess():
    with pytest.raises(UsageError, match=r"^unknown option --zzzzqqqq$"):
        parse("a", "--output", "o", "--model", "m", "--zzzzqqqq")


def test_negative_numbers_and_texts_are_no_options():
    assert options_in(["--seed", "-1", "-.5", "- a text", "-", "--x=-1", "--", "--y"]) == ["--seed", "--x"]


def test_a_value_that_beam_refuses_is_one_line():
    with pytest.raises(UsageError, match=r"^Apache Beam: .*--direct_num_workers.*'abc'$"):
        check_beam_args(["--direct_num_workers=abc"])
    with pytest.raises(UsageError, match="--no_such_option"):
        check_beam_args(["--no_such_option=1"])


def test_a_runner_that_is_not_there_is_refused_before_the_run():
    check_beam_args(["--runner=FnApiRunner", "--direct_num_workers=2"])
    check_beam_args(["--runner=PortableRunner", "--job_endpoint=embed", "--environment_type=LOOPBACK"])
    with pytest.raises(UsageError, match="NoSuchRunner"):
        check_beam_args(["--runner=NoSuchRunner"])
    with pytest.raises(UsageError, match="no_such"):
        check_beam_args(["--runner=no_such.module.Runner"])


@pytest.mark.parametrize("config_class", [GenerateConfig, TranscribeConfig])
def test_no_option_of_ours_hides_one_of_beam(config_class):
    parser = Parser(prog="job", allow_abbrev=False, add_help=False)
    add_options(parser, config_class)
    assert not option_names(parser).keys() & (option_names(beam_parser()).keys() - {"-h", "--help"})


def test_beam_is_not_imported_where_every_option_is_ours():
    code = (
        "import sys; from headrace.jobs.beam_options import add_beam_options; "
        "from headrace.jobs.options import Parser; parser = Parser(); parser.add_argument('--x'); "
        "add_beam_options(parser, ['--x', '1']); assert 'apache_beam' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
