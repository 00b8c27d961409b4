"""`headrace score`: error rates of a transcription against references."""

import dataclasses
import json
from collections.abc import Iterator, Sequence

from headrace.jobs.options import Parser
from headrace.pipelines.scoring import Scores, score_run, worst_lines

DESCRIPTION = """\
Word and character error rates of the results in OUT against the texts in REFERENCES, a .parquet, .jsonl or
.csv table, after Whisper's normalisers: over all recordings, and those with most errors."""


def main(argv: Sequence[str]) -> int:
    parser = Parser(prog="headrace score", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("references", metavar="REFERENCES", help="table of reference texts")
    parser.add_argument("output", metavar="OUT", help="output directory of `headrace transcribe`")
    parser.add_argument("--text-column", default="text", help="column of the texts (default: text)")
    parser.add_argument("--key-column", help="column of the id, source or file name of each recording")
    parser.add_argument(
        "--show", type=int, default=10, metavar="N", help="so many of the rows with most errors (default: 10)"
    )
    parser.add_argument("--json", action="store_true", help="all rows, as JSON")
    parsed = parser.parse_args(list(argv))
    scores = score_run(
        parsed.references, parsed.output, text_column=parsed.text_column, key_column=parsed.key_column
    )
    print(_as_json(scores) if parsed.json else "\n".join(_lines(scores, max(parsed.show, 0))))
    return 0


def _lines(scores: Scores, show: int) -> Iterator[str]:
    words, characters = scores.total("words"), scores.total("characters")
    yield f"recordings            {len(scores.rows):,} ({scores.num_missing:,} references have no result)"
    yield f"word error rate       {words.percent:.2f} % ({words.errors:,} of {words.length:,})"
    yield f"character error rate  {characters.percent:.2f} % ({characters.errors:,} of {characters.length:,})"
    yield from worst_lines([row for row in scores.worst(show) if row.words.errors])


def _as_json(scores: Scores) -> str:
    rows = [dataclasses.asdict(row) for row in scores.rows]
    totals = {
        "word_error_percent": round(scores.total("words").percent, 4),
        "character_error_percent": round(scores.total("characters").percent, 4),
    }
    return json.dumps({**totals, "missing": scores.num_missing, "rows": rows}, ensure_ascii=False, indent=1)
