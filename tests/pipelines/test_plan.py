"""A plan cuts the input, keeps what is committed, and refuses what does not fit it."""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.pipelines.commit import Footer, write_part
from headrace.pipelines.config import GenerateConfig, TranscribeConfig
from headrace.pipelines.errors import InputError, OutputError
from headrace.pipelines.generate import GenerateWork
from headrace.pipelines.listing import list_inputs
from headrace.pipelines.plan import Plan, make_plan
from headrace.pipelines.run_record import ModelRecord, RunRecord
from headrace.pipelines.shards import Chunk
from headrace.pipelines.transcribe import TranscribeWork


class Fixture:
    """An input directory and an output directory, planned again and again."""

    def __init__(self, root: Path) -> None:
        self.data = root / "data"
        self.data.mkdir()
        self.output = str(root / "out")
        self.record: RunRecord | None = None

    def write_rows(self, name: str, rows: list[Mapping[str, Any]]) -> None:
        (self.data / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    def write_prompts(self, name: str, count: int) -> None:
        self.write_rows(name, [{"prompt": f"{n}"} for n in range(count)])

    def write_audio(self, *names: str) -> None:
        for name in names:
            (self.data / name).write_bytes(name.encode())

    def plan(self, *, audio: bool = False, **options: Any) -> Plan:
        common = {"inputs": (str(self.data),), "output": self.output, "model": "none", "rows_per_part": 3}
        if audio:
            work = TranscribeWork(config=TranscribeConfig(**{**common, **options}))
        else:
            work = GenerateWork(config=GenerateConfig.of(**{**common, **options}))
        listing = list_inputs(work.config.inputs, leave_out=self.output)
        plan = make_plan(work, listing, self.output, "run", self.record)
        self.record = RunRecord(
            job=work.job,
            config={},
            parameters={},
            model=ModelRecord(spec="none", format="none", revision=None, fingerprint="none"),
            root=listing.root,
            shards=plan.shards,
            kept=plan.kept,
        )
        return plan

    def commit(self, chunk: Chunk) -> None:
        rows = [{"id": "x", "source": "x", "row": n, "finish_reason": "stop"} for n in range(chunk.rows)]
        footer = Footer(
            part=chunk.part_name,
            job="generate",
            fingerprint=chunk.fingerprint,
            shard=chunk.shard,
            chunk=chunk.index,
            start=chunk.start,
            stop=chunk.stop,
            rows=chunk.rows,
            rows_failed=0,
            units=0.0,
            finished_at=time.time(),
            wall_s=0.0,
        )
        write_part(self.output, rows, pa.schema({"row": pa.int64()}), footer)


@pytest.fixture
def run(tmp_path: Path) -> Fixture:
    return Fixture(tmp_path)


def ranges(plan: Plan) -> list[tuple[int, int, int]]:
    return [(task.chunk.shard, task.chunk.start, task.chunk.stop) for task in plan.tasks]


def test_a_table_is_a_shard_and_its_rows_are_cut_into_chunks(run: Fixture):
    run.write_prompts("a.jsonl", 7)
    run.write_prompts("b.jsonl", 2)
    plan = run.plan()
    assert ranges(plan) == [(0, 0, 3), (0, 3, 6), (0, 6, 7), (1, 0, 2)]
    assert len({chunk.part_name for chunk in plan.chunks}) == 4
    assert plan.tasks[1].content == ("prompt",)


def test_audio_files_are_grouped_into_shards(run: Fixture):
    run.write_audio("a.wav", "b.wav", "c.wav", "d.wav", "e.mp3")
    plan = run.plan(audio=True, files_per_shard=4)
    assert sorted(ranges(plan)) == [(0, 0, 3), (0, 3, 4), (1, 0, 1)]
    assert [file.source for file in plan.chunks[0].files] == ["a.wav", "b.wav", "c.wav"]


def test_committed_chunks_are_not_done_again(run: Fixture):
    run.write_prompts("a.jsonl", 7)
    run.commit(run.plan().chunks[1])
    plan = run.plan()
    assert ranges(plan) == [(0, 0, 3), (0, 6, 7)]
    assert list(plan.reused) == [plan.chunks[1].part_name]


def test_a_broken_part_is_done_again(run: Fixture):
    run.write_prompts("a.jsonl", 5)
    for chunk in run.plan().chunks:
        run.commit(chunk)
    part = next(Path(run.output).glob("part-*"))
    part.write_bytes(part.read_bytes()[:50])
    assert len(run.plan().tasks) == 1


def test_files_that_come_later_are_new_shards_at_the_end(run: Fixture):
    run.write_prompts("m.jsonl", 4)
    first = run.plan()
    for chunk in first.chunks:
        run.commit(chunk)
    run.write_prompts("a.jsonl", 2)
    grown = run.plan()
    assert ranges(grown) == [(1, 0, 2)]
    assert [shard.files[0].source for shard in grown.shards] == ["m.jsonl", "a.jsonl"]


def test_audio_that_comes_later_moves_no_chunk(run: Fixture):
    run.write_audio("b.wav", "c.wav")
    run.commit(run.plan(audio=True).chunks[0])
    run.write_audio("a.wav", "d.wav")
    grown = run.plan(audio=True)
    assert ranges(grown) == [(1, 0, 2)]
    assert [file.source for file in grown.tasks[0].chunk.files] == ["a.wav", "d.wav"]


@pytest.mark.parametrize("change", ["changed", "gone", "same size"])
def test_a_committed_table_that_changed_or_went_is_refused_by_name(run: Fixture, change: str):
    run.write_prompts("a.jsonl", 7)
    run.write_prompts("b.jsonl", 1)
    run.commit(run.plan().chunks[0])
    if change == "changed":
        run.write_prompts("a.jsonl", 8)
    elif change == "gone":
        (run.data / "a.jsonl").unlink()
    else:
        size = (run.data / "a.jsonl").stat().st_size
        (run.data / "a.jsonl").write_text(json.dumps({"prompt": "x" * (size - 15)}).ljust(size))
        assert (run.data / "a.jsonl").stat().st_size == size
    with pytest.raises(OutputError, match=r"a\.jsonl"):
        run.plan()


@pytest.mark.parametrize("change", ["changed", "gone"])
def test_a_committed_recording_that_changed_or_went_is_refused_by_name(run: Fixture, change: str):
    run.write_audio("a.wav", "b.wav", "c.wav", "d.wav")
    run.commit(run.plan(audio=True).chunks[0])
    if change == "changed":
        (run.data / "b.wav").write_bytes(b"another recording")
    else:
        (run.data / "b.wav").unlink()
    with pytest.raises(OutputError, match=r"b\.wav"):
        run.plan(audio=True)


def test_a_committed_file_of_the_same_size_but_another_time_is_refused_unless_times_are_ignored(run: Fixture):
    run.write_prompts("a.jsonl", 7)
    run.commit(run.plan().chunks[0])
    os.utime(run.data / "a.jsonl", (1, 1))
    with pytest.raises(OutputError, match=r"a\.jsonl, which was modified since"):
        run.plan()
    assert ranges(run.plan(ignore_mtime=True)) == [(0, 3, 6), (0, 6, 7)]
    assert ranges(run.plan()) == [(0, 3, 6), (0, 6, 7)]


def test_all_changed_files_are_counted_and_the_first_are_named(run: Fixture):
    names = [f"{letter}.jsonl" for letter in "abcde"]
    for name in names:
        run.write_prompts(name, 1)
    for chunk in run.plan().chunks:
        run.commit(chunk)
    for name in names:
        (run.data / name).unlink()
    run.write_prompts("z.jsonl", 1)
    with pytest.raises(OutputError, match=r"a\.jsonl, which is gone; of b\.jsonl.*\(and 2 more\)"):
        run.plan()


def test_a_limit_takes_the_first_rows_of_the_input(run: Fixture):
    run.write_prompts("a.jsonl", 4)
    run.write_prompts("b.jsonl", 4)
    assert ranges(run.plan(limit=5)) == [(0, 0, 3), (0, 3, 4), (1, 0, 1)]


def test_a_limit_stays_as_it_was_settled_when_the_input_grows(run: Fixture):
    run.write_prompts("b.jsonl", 4)
    for chunk in run.plan(limit=5).chunks:
        run.commit(chunk)
    run.write_prompts("c.jsonl", 4)
    assert ranges(run.plan(limit=5)) == [(1, 0, 1)]
    run.record = None


def picked(plan: Plan) -> list[tuple[str, int]]:
    """Source and row of all that a plan takes."""
    return sorted(
        (task.chunk.files[0].source, row)
        for task in plan.tasks
        for row in task.picked or range(task.chunk.start, task.chunk.stop)
    )


def test_a_condition_takes_the_rows_that_it_is_true_of(run: Fixture):
    run.write_rows("a.jsonl", [{"prompt": "p", "n": n, "lang": "en" if n % 2 else None} for n in range(10)])
    plan = run.plan(where="n > 2 and lang == 'en'")
    assert picked(plan) == [("a.jsonl", n) for n in (3, 5, 7, 9)]
    assert [chunk.rows for chunk in plan.chunks] == [3, 1]
    run.commit(plan.chunks[0])
    run.write_rows("b.jsonl", [{"prompt": "p", "n": 3, "lang": "en"}, {"prompt": "p", "n": 4, "lang": "en"}])
    later = run.plan(where="n > 2 and lang == 'en'")
    assert picked(later) == [("a.jsonl", 9), ("b.jsonl", 0), ("b.jsonl", 1)]


def test_a_condition_that_cannot_be_is_refused_by_what_is_wrong_with_it(run: Fixture):
    run.write_rows("a.jsonl", [{"prompt": "p", "n": 1}])
    for where, told in (
        ("n >", "invalid syntax"),
        ("m > 1", "no column 'm': its columns are prompt, n"),
        ("1 < 2", "names no column"),
        ("n.x == 1", "no meaning"),
        ("sum(n) > 1", "no function sum"),
        ("prompt > 1", "does not fit a.jsonl"),
        ("n", "does not fit a.jsonl"),
    ):
        with pytest.raises(InputError, match=told):
            run.plan(where=where)
    run.write_audio("a.wav")
    with pytest.raises(InputError, match="recordings have none"):
        run.plan(audio=True, audio_column="prompt", where="n > 0")


def test_a_sample_is_drawn_from_all_tables_and_is_the_same_for_the_same_seed(run: Fixture):
    run.write_prompts("a.jsonl", 50)
    run.write_prompts("b.jsonl", 50)
    plan = run.plan(limit=20, shuffle_seed=1)
    sample = picked(plan)
    assert len(set(sample)) == 20
    assert {source for source, _ in sample} == {"a.jsonl", "b.jsonl"}
    assert [row for _, row in sample] != [*range(20)]
    run.commit(plan.chunks[0])
    again = run.plan(limit=20, shuffle_seed=1)
    assert set(picked(again)) < set(sample)
    assert len(again.tasks) == len(plan.tasks) - 1
    run.record = None
    Path(run.output, plan.chunks[0].part_name).unlink()
    assert picked(run.plan(limit=20, shuffle_seed=1)) == sample
    run.record = None
    assert picked(run.plan(limit=20, shuffle_seed=2)) != sample


def test_a_sample_of_recordings_stays_when_more_come(run: Fixture):
    run.write_audio(*(f"{number:02d}.wav" for number in range(30)))
    sample = [f.source for chunk in run.plan(audio=True, limit=5, shuffle_seed=3).chunks for f in chunk.files]
    assert len(set(sample)) == 5
    assert sample != sorted(f"{number:02d}.wav" for number in range(5))
    run.write_audio("zz.wav")
    later = run.plan(audio=True, limit=5, shuffle_seed=3)
    assert [f.source for chunk in later.chunks for f in chunk.files] == sample


def test_parts_are_cut_by_work_and_the_largest_goes_first(run: Fixture):
    rows = [{"prompt": "x" * (4000 if n == 4 else 40)} for n in range(8)]
    run.write_rows("a.jsonl", rows)
    options = {"work_per_part": 60.0, "max_tokens": 10, "rows_per_part": 3}
    plan = run.plan(**options)
    assert ranges(plan) == [(0, 4, 5), (0, 0, 3), (0, 5, 8), (0, 3, 4)]
    assert [task.first_row for task in plan.tasks] == [3, 0, 3, 3]
    assert [round(task.chunk.work) for task in plan.tasks] == [1010, 60, 60, 20]
    run.commit(plan.tasks[0].chunk)
    assert ranges(run.plan(**options)) == ranges(plan)[1:]


def test_files_without_results_may_change_and_go(run: Fixture):
    run.write_audio("a.wav", "b.wav", "c.wav", "d.wav", "e.wav", "f.wav")
    run.commit(run.plan(audio=True).chunks[0])
    (run.data / "d.wav").unlink()
    (run.data / "e.wav").write_bytes(b"another recording")
    plan = run.plan(audio=True)
    assert [file.source for file in plan.tasks[0].chunk.files] == ["e.wav", "f.wav"]
    run.commit(plan.tasks[0].chunk)
    assert run.plan(audio=True).tasks == ()
    run.write_audio("d.wav")
    again = run.plan(audio=True)
    assert [file.source for task in again.tasks for file in task.chunk.files] == ["d.wav"]


def test_a_table_without_results_may_change_and_go(run: Fixture):
    run.write_prompts("a.jsonl", 4)
    run.write_prompts("b.jsonl", 4)
    run.plan()
    run.write_prompts("a.jsonl", 1)
    (run.data / "b.jsonl").unlink()
    assert ranges(run.plan()) == [(0, 0, 1)]


def test_a_part_that_no_chunk_has_is_refused_by_name(run: Fixture):
    run.write_prompts("a.jsonl", 4)
    run.commit(run.plan().chunks[0])
    strange = Path(run.output) / "part-00009-00000-0000000000000000.parquet"
    strange.write_bytes(b"")
    with pytest.raises(OutputError, match="part-00009"):
        run.plan()


def test_moved_data_keeps_its_parts(run: Fixture):
    run.write_prompts("a.jsonl", 4)
    for chunk in run.plan().chunks:
        run.commit(chunk)
    run.data = run.data.rename(run.data.with_name("elsewhere"))
    assert run.plan().tasks == ()


def test_a_column_that_is_not_there_is_refused_with_those_that_are(run: Fixture):
    run.write_rows("a.jsonl", [{"question": "a", "n": 1}])
    with pytest.raises(InputError, match=r"a\.jsonl has no column 'prompt': its columns are question, n"):
        run.plan()
    with pytest.raises(InputError, match="no column 'topic'"):
        run.plan(template="{question} {topic}")
    with pytest.raises(InputError, match="no column 'name'"):
        run.plan(prompt_column="question", id_column="name")
    with pytest.raises(InputError, match="no column 'x'"):
        run.plan(prompt_column="question", keep_columns=("x",))
    with pytest.raises(InputError, match="no column of audio"):
        run.plan(audio=True)
    run.record = None
    assert run.plan(prompt_column="question", keep_columns=("n",)).kept == pa.schema({"n": pa.int64()})


def test_messages_are_found_where_there_is_no_prompt(run: Fixture):
    run.write_rows("a.jsonl", [{"messages": [{"role": "user", "content": "a"}]}])
    assert run.plan().tasks[0].content == ("messages",)


def test_kept_columns_have_one_type_in_all_files(run: Fixture):
    run.write_rows("a.jsonl", [{"prompt": "a", "x": 1, "y": None, "z": 1}])
    run.write_rows("b.jsonl", [{"prompt": "a", "x": 0.5, "y": True, "z": "one"}])
    kept = run.plan(keep_columns=("x", "y", "z")).kept
    assert kept == pa.schema({"x": pa.float64(), "y": pa.bool_(), "z": pa.string()})
    run.write_rows("c.jsonl", [{"prompt": "a", "x": "text", "y": None, "z": None}])
    with pytest.raises(InputError, match=r"'x' is string in c\.jsonl and double elsewhere"):
        run.plan(keep_columns=("x", "y", "z"))


def test_an_input_of_the_wrong_kind_or_without_rows_is_refused(run: Fixture):
    run.write_rows("a.jsonl", [])
    with pytest.raises(InputError, match="no rows"):
        run.plan()
    run.write_audio("a.wav")
    with pytest.raises(InputError, match=r"a\.wav is not a table of prompts"):
        run.plan()
