"""Seams of overlapping windows: nothing doubled, nothing lost, no chance match believed."""

import pytest

from headrace.engines.whisper.merge import Overlap, TimedWord, find_seam


def words(text: str, start_s: float, end_s: float) -> list[TimedWord]:
    """The words of a text, spread evenly over a stretch of time."""
    parts = text.split()
    step = (end_s - start_s) / max(len(parts), 1)
    return [TimedWord(f" {part}", (i,), start_s + (i + 0.5) * step) for i, part in enumerate(parts)]


def merged(left: list[TimedWord], right: list[TimedWord], overlap: Overlap) -> str:
    seam = find_seam(left, right, overlap)
    return "".join(word.text for word in (*left[: seam.keep_left], *right[seam.skip_right :])).strip()


OVERLAP = Overlap(20.0, 30.0, 25.0, 2.0)
"""Windows of 30 s with 5 s of stride on both sides."""


def test_equal_overlaps_are_kept_once():
    left = words("zero one two three four five six seven eight nine", 10, 30)
    right = words("five six seven eight nine ten eleven twelve", 20, 36)
    assert (
        merged(left, right, OVERLAP) == "zero one two three four five six seven eight nine ten eleven twelve"
    )


def test_words_cut_at_the_windows_edges_are_taken_from_the_other_side():
    left = words("a b c d e f g hal", 14, 30)
    right = words("d e f g half i j k l m", 20, 40)
    assert merged(left, right, OVERLAP) == "a b c d e f g half i j k l m"
    right = words("rest e f g half i j k l m", 20, 38)
    assert merged(left, right, OVERLAP) == "a b c d e f g half i j k l m"


def test_chance_matches_do_not_delete_text():
    left = words(" ".join(f"l{i}" for i in range(28)) + " the of", 0, 30)
    right = words("the x of " + " ".join(f"r{i}" for i in range(27)), 20, 50)
    text = merged(left, right, OVERLAP).split()
    assert {f"l{i}" for i in range(24)} <= set(text)
    assert {f"r{i}" for i in range(3, 27)} <= set(text)


def test_an_overlap_of_one_word_is_not_doubled():
    overlap = Overlap(29.0, 30.0, 29.5, 2.0)
    left = words("ask not what your country", 25, 30)
    right = words("country can do for you", 29, 34)
    assert merged(left, right, overlap) == "ask not what your country can do for you"


def test_case_and_punctuation_do_not_double_an_overlap():
    left = words("we went home. And then, we slept", 20, 30)
    right = words("home and then we Slept. The next day", 22, 36)
    assert merged(left, right, OVERLAP).lower().replace(".", "").replace(",", "") == (
        "we went home and then we slept the next day"
    )


def test_a_reworded_overlap_is_neither_doubled_nor_lost():
    left = words("he said that he would be arriving there soon", 21, 30)
    right = words("he told us he'd come there quite soon and left", 21, 31)
    text = merged(left, right, OVERLAP).split()
    assert text.count("soon") == 1
    assert text.count("there") == 1
    assert 8 <= len(text) <= 11


def test_a_reworded_overlap_without_any_match_is_cut_by_time():
    left = words("l0 l1 l2 l3 l4 l5 l6 l7 l8 l9", 20, 30)
    right = words("r0 r1 r2 r3 r4 r5 r6 r7 r8 r9", 20, 30)
    seam = find_seam(left, right, OVERLAP)
    assert seam.by == "time"
    assert (seam.keep_left, seam.skip_right) == (5, 5)


def test_a_real_repetition_is_not_collapsed():
    left = words("no no no no", 26, 30)
    right = words("no no no no", 29, 33)
    overlap = Overlap(29.0, 30.0, 29.5, 2.0)
    assert merged(left, right, overlap) == "no no no no no no no"


def test_a_sentence_said_twice_stays_twice():
    left = words("the cat sat on the mat", 22, 28)
    right = words("the cat sat on the mat", 29, 35)
    assert merged(left, right, OVERLAP).split().count("cat") == 2


@pytest.mark.parametrize("silent", ["left", "right"])
def test_the_only_text_of_an_overlap_is_kept_whole(silent: str):
    early, late = words("a b c", 1, 4), words("x y z", 32, 35)
    if silent == "left":
        assert merged(early, words("x y z", 21, 24), OVERLAP) == "a b c x y z"
    else:
        assert merged(words("a b c", 26, 29), late, OVERLAP) == "a b c x y z"


def test_nothing_on_one_side_keeps_the_other():
    assert merged([], words("x y", 21, 24), OVERLAP) == "x y"
    assert merged(words("x y", 21, 24), [], OVERLAP) == "x y"


def test_punctuation_alone_is_no_match():
    left = words("a b ... c", 26, 30)
    right = words("... d e f", 27, 31)
    assert "d e f" in merged(left, right, OVERLAP)
