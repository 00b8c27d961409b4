"""Whisper on many languages: which is found, and the error rates of headrace and faster-whisper.

    python benchmarks/languages.py demo:whisper-base ../shared/data/speech.jsonl
    python benchmarks/languages.py MODEL TABLE FOLDER --settings headrace "faster-whisper beam5"

Recordings are the rows of .jsonl tables, less those that are English or other encodings of an earlier row,
and folders LANGUAGE/NAME.wav with NAME.txt (as pytest-audioeval has them). No language is told. An engine's
name goes with words that change its setting, which is else greedy, with times of segments, the temperatures
of openai/whisper, one draw at each, and no text before: for headrace (bfloat16, chunked) those of
peers/languages_headrace.py, for faster-whisper (float32, in an environment of its own) those of
peers/languages_faster.py. What a setting heard is kept under --output, so that a run that was broken off
goes on.

Errors are those of words after Whisper's basic normaliser, of characters in languages without spaces; a "!"
stands for a recording above 5 s whose language was not found. --differences FIRST SECOND shows the texts on
which two settings differ.
"""

import argparse
import json
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import jiwer
import peer_models
from peer_environments import environment
from whisper_normalizer.basic import BasicTextNormalizer

PEERS = Path(__file__).parent / "peers"
SCRIPTS = {"headrace": "languages_headrace.py", "faster-whisper": "languages_faster.py"}
SURE_S = 5.0
UNSPACED = ("zh", "ja", "th", "lo", "my", "yue")


@dataclass(frozen=True, kw_only=True, slots=True)
class Recording:
    """A recording and what is said in it."""

    path: str
    text: str
    language: str
    seconds: float | None
    """None: not known, and taken for short."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Heard:
    """What an engine made of a recording."""

    path: str
    language: str | None
    text: str
    temperatures: list[float]
    """Of the segments: above 0 where a window was tried again."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a model spec in the faster-whisper layout")
    parser.add_argument("sources", type=Path, nargs="+", help="tables, folders")
    parser.add_argument("--settings", nargs="+", default=["headrace"])
    parser.add_argument("--output", type=Path, default=Path("build/languages"))
    parser.add_argument("--environments", type=Path, default=Path("build/peers"))
    parser.add_argument("--differences", nargs=2, metavar=("FIRST", "SECOND"))
    args = parser.parse_args()
    recordings = [one for source in args.sources for one in read(source)]
    names = args.differences or args.settings
    heard = {setting: hear(setting, recordings, args) for setting in names}
    languages = sorted({one.language for one in recordings})
    print(f"| setting | {' | '.join(languages)} |\n|{' --- |' * (len(languages) + 1)}")
    for setting, texts in heard.items():
        cells = (cell([one for one in recordings if one.language == each], texts) for each in languages)
        print(f"| {setting} | {' | '.join(cells)} |")
    if args.differences:
        show_differences(recordings, *heard.values())


def read(source: Path) -> list[Recording]:
    """The recordings of a table or a folder that are not English."""
    if source.is_dir():
        texts = sorted(path for path in source.glob("*/*.txt") if path.parent.name != "en")
        return [
            Recording(
                path=str(path.with_suffix(".wav").absolute()),
                text=path.read_text(encoding="utf-8").strip(),
                language=path.parent.name,
                seconds=None,
            )
            for path in texts
        ]
    rows = map(json.loads, source.read_text(encoding="utf-8").splitlines())
    return [
        Recording(
            path=str((source.parent / row["file"]).absolute()),
            **{name: row[name] for name in ("text", "language", "seconds")},
        )
        for row in rows
        if row["language"] != "en" and not row["variant"]
    ]


def hear(setting: str, recordings: Sequence[Recording], args: argparse.Namespace) -> dict[str, Heard]:
    """What a setting makes of the recordings, by their paths."""
    engine, *words = setting.split()
    output = args.output / peer_models.folder_name(args.model)
    output.mkdir(parents=True, exist_ok=True)
    kept = output / f"{'-'.join((engine, *sorted(words)))}.jsonl"
    done = load(kept)
    missing = [one for one in recordings if one.path not in done]
    if missing:
        listed = output / "recordings.json"
        listed.write_text(json.dumps([asdict(one) for one in missing]))
        model = args.model if engine == "headrace" else peer_models.ctranslate2(args.model, output)
        python = environment(engine, args.environments)
        command = [python, PEERS / SCRIPTS[engine], model, listed, kept, *words]
        subprocess.run(list(map(str, command)), check=True)
    return load(kept)


def load(path: Path) -> dict[str, Heard]:
    """What was heard and kept."""
    if not path.exists():
        return {}
    heard = [Heard(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    return {one.path: one for one in heard}


def cell(recordings: Sequence[Recording], heard: dict[str, Heard]) -> str:
    """Errors of all texts over the length of all references, in percent and as counts."""
    counts = [count_errors(one, heard[one.path].text) for one in recordings]
    errors, length = (sum(each) for each in zip(*counts, strict=True))
    missed = [
        one for one in recordings if (one.seconds or 0) > SURE_S and heard[one.path].language != one.language
    ]
    return f"{100 * errors / length:.1f} ({errors}/{length}){'!' * len(missed)}"


def count_errors(recording: Recording, text: str) -> tuple[int, int]:
    """Words or characters to put right, and those of the reference."""
    said, got = map(BasicTextNormalizer(), (recording.text, text))
    if recording.language in UNSPACED:
        said, got = ("".join(each.split()) for each in (said, got))
        found = jiwer.process_characters(said, got)
    else:
        found = jiwer.process_words(said, got)
    wrong = found.substitutions + found.deletions
    return wrong + found.insertions, wrong + found.hits


def show_differences(
    recordings: Sequence[Recording], first: dict[str, Heard], second: dict[str, Heard]
) -> None:
    """Both texts, and the errors of each, of the recordings on which two settings differ."""
    for one in recordings:
        pair = first[one.path], second[one.path]
        if pair[0].text.strip() == pair[1].text.strip():
            continue
        print(f"\n{Path(one.path).name}\n  said {one.text}")
        for each in pair:
            errors, _ = count_errors(one, each.text)
            print(f"  {errors:4d} {each.text.strip()} {each.temperatures}")


if __name__ == "__main__":
    main()
