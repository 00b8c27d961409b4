"""Log lines: ours from INFO, others' errors, and nothing secret of a URL."""

import logging

import pytest

from headrace.jobs.logs import set_up_logging, without_secrets


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
