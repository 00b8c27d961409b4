"""Error rates of transcripts against references, over words and characters."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from headrace.pipelines.committed import result_tables
from headrace.pipelines.errors import InputError
from headrace.pipelines.tables import read_rows, scan_table, table_format

KEY_COLUMNS = ("id", "file", "path", "audio_filepath", "audio", "source")
"""Columns that name a recording, in the order in which they are looked for."""
ALL_ROWS = 1 << 62


@dataclass(frozen=True, kw_only=True, slots=True)
class Errors:
    """Substitutions, deletions and insertions against a length."""

    errors: int
    """Substitutions, deletions and insertions together."""
    length: int
    """Words or characters of the reference."""

    @property
    def percent(self) -> float:
        return 100 * self.errors / max(self.length, 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoredRow:
    """One recording: both texts, and the errors between their normalised forms."""

    id: str
    """Of the result."""
    reference: str
    """As given."""
    hypothesis: str
    """As transcribed; "" where the row failed."""
    words: Errors
    """Errors in words."""
    characters: Errors
    """Errors in characters, spaces left out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """The score of a run."""

    rows: tuple[ScoredRow, ...]
    """Recordings that have a reference and a result, in the order of the references."""
    num_missing: int
    """References without a result."""

    def total(self, unit: Literal["words", "characters"]) -> Errors:
        """Errors of all recordings over the length of all references."""
        parts = [getattr(row, unit) for row in self.rows]
        return Errors(errors=sum(part.errors for part in parts), length=sum(part.length for part in parts))

    def worst(self, count: int) -> list[ScoredRow]:
        """The recordings with most errors."""
        return sorted(self.rows, key=lambda row: (-row.words.errors, -row.words.percent))[:count]


def score_run(
    references: str, output: str, *, text_column: str = "text", key_column: str | None = None
) -> Scores:
    """Scores of a run's transcripts, after Whisper's normalisers (English, else the basic one).

    `references` is a table with the texts in text_column; a row belongs to the result whose id or source is
    that of its key_column (the first of KEY_COLUMNS that it has), or ends in the same file name.

    Raises:
      InputError: the table lacks a column, a name is ambiguous, or nothing matches.
    """
    results = _Results(output)
    rows, num_missing = [], 0
    for values in _reference_rows(references, text_column, key_column):
        key, reference = str(values["key"]), str(values["text"] or "")
        result = results.find(key)
        if result is None:
            num_missing += 1
            continue
        language = values.get("language") or result.get("language")
        rows.append(score_texts(result["id"], reference, result.get("text") or "", language))
    if not rows:
        raise InputError(
            f"no row of {references} names a result of {output}: say which column does with --key-column"
        )
    return Scores(rows=tuple(rows), num_missing=num_missing)


def score_texts(row_id: str, reference: str, hypothesis: str, language: str | None) -> ScoredRow:
    """The errors between two texts of a language."""
    normalise = _normaliser(language)
    wanted, got = normalise(reference), normalise(hypothesis)
    return ScoredRow(
        id=row_id,
        reference=reference,
        hypothesis=hypothesis,
        words=_errors(wanted, got),
        characters=_errors(_spread(wanted), _spread(got)),
    )


def _errors(wanted: str, got: str) -> Errors:
    import jiwer

    if not wanted.split():
        return Errors(errors=len(got.split()), length=0)
    found = jiwer.process_words(wanted, got)
    errors = found.substitutions + found.deletions + found.insertions
    return Errors(errors=errors, length=len(wanted.split()))


def _spread(text: str) -> str:
    """The characters of a text as words."""
    return " ".join("".join(text.split()))


@cache
def _normaliser(language: str | None) -> Any:
    try:
        from whisper_normalizer.basic import BasicTextNormalizer
        from whisper_normalizer.english import EnglishTextNormalizer
    except ImportError:
        raise InputError("scoring needs the extra score: pip install headrace[score]") from None
    is_english = language is None or language.lower() in ("en", "english")
    return EnglishTextNormalizer() if is_english else BasicTextNormalizer()


class _Results:
    """The results of a run by what a reference may call them."""

    def __init__(self, output: str) -> None:
        self._rows: dict[str, dict[str, Any]] = {}
        self._by_name: dict[str, list[dict[str, Any]]] = {}
        for table in result_tables(output, ("id", "source", "row", "channel", "text", "language")):
            for row in table.to_pylist():
                self._rows[row["id"]] = row
                if row.get("channel") is None:
                    self._rows.setdefault(row["source"], row)
                self._by_name.setdefault(_file_name(row["source"]), []).append(row)
        if not self._rows:
            raise InputError(f"{output} holds no results: give the output directory of `headrace transcribe`")

    def find(self, key: str) -> Mapping[str, Any] | None:
        if key in self._rows:
            return self._rows[key]
        named = self._by_name.get(_file_name(key), [])
        if len(named) > 1:
            raise InputError(f"{key} names several results: {', '.join(row['id'] for row in named[:3])}")
        return named[0] if named else None


def _file_name(path: str) -> str:
    return path.rpartition("/")[2]


def _reference_rows(path: str, text_column: str, key_column: str | None) -> Iterator[dict[str, Any]]:
    if table_format(path) in (None, "txt"):
        raise InputError(f"{path} is no table: references are a .parquet, .jsonl or .csv file")
    columns = scan_table(path, stride=ALL_ROWS, typed=()).columns
    key = key_column or next((name for name in KEY_COLUMNS if name in columns), None)
    for name, what in ((key, "names the recordings"), (text_column, "holds the texts")):
        if name is None or name not in columns:
            raise InputError(
                f"{path} has no column {name or ' or '.join(KEY_COLUMNS)} that {what}: "
                f"its columns are {', '.join(columns)}"
            )
    assert key is not None
    wanted = [name for name in (key, text_column, "language") if name in columns]
    for row in read_rows(path, 0, ALL_ROWS, offset=0, columns=wanted):
        if row.error is not None:
            raise InputError(f"row {row.row} of {path} cannot be read: {row.error.message}")
        values = {name: row.values.get(name) for name in wanted}
        yield {"key": values[key], "text": values[text_column], "language": values.get("language")}


def worst_lines(rows: Sequence[ScoredRow]) -> Iterator[str]:
    """Rows as lines of a table: errors, words, id, and both texts below."""
    for row in rows:
        yield f"{row.words.errors:6d} of {row.words.length:6d} words  {row.id}"
        yield f"    reference  {row.reference}"
        yield f"    transcript {row.hypothesis}"
