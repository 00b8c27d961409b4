"""Log lines: ours from INFO, others' errors, and nothing secret of a URL."""

import logging
import os
import subprocess
import sys
from contextlib import suppress

import pytest

from headrace.jobs.logs import print_line, set_up_logging, stderr_console, without_secrets


@pytest.fixture
def stderr_of_logging(capsys):
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    set_up_logging()
    yield lambda: capsys.readouterr().err
    root.handlers, root.level = before, level


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("at https://h.example/a.wav?X-Amz-Signature=abc&b=1 now", "at https://h.example/a.wav?... now"),
        ("'https://user:pass@h.example/a#frag'", "'https://h.example/a?...'"),
        ("s3://bucket/key and mail a@b.example?", "s3://bucket/key and mail a@b.example?"),
    ],
)
def test_queries_and_passwords_of_urls_are_cut_out(text, kept):
    assert without_secrets(text) == kept


def test_our_lines_are_written_and_chatter_of_libraries_is_not(stderr_of_logging):
    logging.getLogger("headrace.pipelines.run").info("shard done: %d rows", 5)
    logging.getLogger("headrace.engines").warning("slow: https://h/x?sig=1")
    logging.getLogger("apache_beam.runners").warning("chatter")
    logging.getLogger().warning("chatter of the root")
    logging.getLogger("apache_beam.runners").error("broken [bold]pipe[/bold]")
    lines = [line.partition(" ")[2] for line in stderr_of_logging().splitlines()]
    assert lines == [
        "shard done: 5 rows",
        "warning: slow: https://h/x?...",
        "error: broken [bold]pipe[/bold]",
    ]


def test_setting_up_twice_writes_each_line_once(stderr_of_logging):
    set_up_logging()
    logging.getLogger("headrace").info("once")
    assert stderr_of_logging().count("once") == 1


def test_a_reader_of_stderr_that_has_left_ends_no_thread(stderr_of_logging, monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    pipe = os.fdopen(writer, "w")
    monkeypatch.setattr(sys, "stderr", pipe)
    stderr_console.cache_clear()
    try:
        logging.getLogger("headrace").info("nobody reads this")
        print_line("nor this")
    finally:
        stderr_console.cache_clear()
        with suppress(BrokenPipeError):
            pipe.close()


def test_a_line_for_a_full_disk_is_dropped(monkeypatch):
    full = open("/dev/full", "w")  # noqa: SIM115 - its close raises
    monkeypatch.setattr(sys, "stderr", full)
    print_line("no room for this")
    with suppress(OSError):
        full.close()


def test_no_file_of_ours_gets_the_number_of_a_closed_stream():
    code = (
        "import os; from headrace.jobs.logs import open_standard_streams; open_standard_streams(); "
        "raise SystemExit(os.open(os.devnull, os.O_RDONLY))"
    )
    shell = subprocess.run(["sh", "-c", 'exec "$0" -c "$1" <&- 2>&- >&-', sys.executable, code])
    assert shell.returncode > 2
