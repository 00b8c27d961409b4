"""Tokenizers out of GGUF metadata, against references made with `tokenizers`."""

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from headrace.engines.checkpoints import Checkpoint
from headrace.engines.checkpoints.gguf_sentencepiece import find_merges
from headrace.engines.checkpoints.gguf_splits import SPLITTINGS
from headrace.engines.checkpoints.gguf_tokenizer import build_gguf_tokenizer
from headrace.engines.errors import ModelError

TEXTS = [
    "Hello world! It's 12345 o'clock, isn't it?",
    "  two  spaces,\ttabs\t\tand\n\n\nlines  \n ",
    "def f(x):\n    return x ** 2  # 3.14159\n\n\nprint(f(10_000))",
    "Grüße aus Köln, señor — naïve café",
    "漢字かな交じり文、한국어 텍스트。",
    "😀👩‍👩‍👧‍👦🏳️‍🌈 emoji 🎉",
    "١٢٣ ½ ² Ⅻ numbers",
    "\u00a0no-break\u3000wide\u200bzero",
    "<|im_start|>user\nhi<|im_end|>",
    "",
    " ",
    "'S I'LL DON'T",
]
PATH = Path("x.gguf")
CORPUS = [*TEXTS, *["the quick brown fox jumps over the lazy dog 0123456789 " * 3] * 5]


def reference_bpe(pre_tokenizer: Any, normalizer: Any = None) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def metadata_of(tokenizer: Tokenizer, pre: str | None, **own: Any) -> dict[str, Any]:
    model = json.loads(tokenizer.to_str())["model"]
    tokens = [token for token, _ in sorted(model["vocab"].items(), key=lambda item: item[1])]
    tokens += ["<|im_start|>", "<|im_end|>", "<tool>"]
    made = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": [1] * (len(tokens) - 3) + [3, 3, 4],
        "merges": [" ".join(merge) for merge in model["merges"]],
        "bos_token_id": len(tokens) - 3,
        "eos_token_id": len(tokens) - 2,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (made | own).items() if value is not None}


def split(pattern: str) -> Any:
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), to_bytes])


GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
REFERENCES = {
    "gpt-2": (GPT2, None),
    "smollm": (pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), GPT2]), None),
    "llama-bpe": (split(LLAMA3), None),
    "qwen2": (split(QWEN2), normalizers.NFC()),
}


@pytest.mark.parametrize("pre", REFERENCES)
def test_ids_are_those_of_the_models_own_tokenizer(pre: str):
    reference = reference_bpe(*REFERENCES[pre])
    built = build_gguf_tokenizer(PATH, metadata_of(reference, pre)).wrapped
    reference.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    for text in TEXTS:
        ids = built(text, add_special_tokens=False)["input_ids"]
        assert ids == reference.encode(text, add_special_tokens=False).ids, text
        assert built.decode(ids) == text


@pytest.mark.parametrize("pre", sorted(SPLITTINGS))
def test_every_splitting_gives_texts_back(pre: str):
    built = build_gguf_tokenizer(PATH, metadata_of(reference_bpe(GPT2), pre)).wrapped
    for text in TEXTS:
        assert built.decode(built(text, add_special_tokens=False)["input_ids"]) == text


def test_control_tokens_are_special_and_user_defined_ones_are_not():
    built = build_gguf_tokenizer(PATH, metadata_of(reference_bpe(GPT2), "gpt-2")).wrapped
    ids = built("a<|im_end|><tool>b", add_special_tokens=False)["input_ids"]
    assert ids[1:3] == built.convert_tokens_to_ids(["<|im_end|>", "<tool>"])
    assert built.decode(ids, skip_special_tokens=True) == "a<tool>b"
    assert set(built.all_special_ids) >= {built.bos_token_id, built.eos_token_id}
    assert built.pad_token is None


@pytest.mark.parametrize(
    ("pre", "flags", "begins", "ends"),
    [
        ("gpt-2", {}, False, False),
        ("llama-bpe", {}, True, False),
        ("llama-bpe", {"add_bos_token": False}, False, False),
        ("gpt-2", {"add_bos_token": True, "add_eos_token": True}, True, True),
        ("gpt-2", {"add_bos_token": True, "bos_token_id": None}, False, False),
    ],
)
def test_beginning_and_end_are_added_as_the_file_says(pre: str, flags: dict, begins: bool, ends: bool):
    built = build_gguf_tokenizer(PATH, metadata_of(reference_bpe(GPT2), pre, **flags)).wrapped
    bare = built("hi", add_special_tokens=False)["input_ids"]
    wanted = [built.bos_token_id] * begins + bare + [built.eos_token_id] * ends
    assert built("hi")["input_ids"] == wanted


def test_chat_templates_of_all_names_are_kept():
    metadata = metadata_of(reference_bpe(GPT2), "gpt-2")
    own = metadata | {"tokenizer.chat_template": "D{{ messages[0].content }}"}
    one = build_gguf_tokenizer(PATH, own).wrapped
    messages = [{"role": "user", "content": "hi"}]
    assert one.apply_chat_template(messages, tokenize=False) == "Dhi"
    named = metadata | {"tokenizer.chat_template": "D", "tokenizer.chat_template.tool_use": "T"}
    two = build_gguf_tokenizer(PATH, named).wrapped
    assert two.apply_chat_template(messages, tokenize=False) == "D"
    assert two.apply_chat_template(messages, tokenize=False, chat_template="tool_use") == "T"
    assert build_gguf_tokenizer(PATH, metadata).chat_template is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pre": "never-heard-of"}, "'never-heard-of', which is not known.*llama-bpe"),
        ({"pre": None}, "does not say how"),
        ({"model": "bert"}, "of kind 'bert'"),
        ({"model": None}, "has no tokenizer"),
        ({"tokens": []}, "has no tokenizer"),
        ({"merges": None}, "no merges"),
        ({"merges": ["zzz yyy"]}, "damaged tokenizer"),
        ({"model": "llama"}, "0 scores"),
    ],
)
def test_tokenizer_that_is_not_understood_is_refused(change: dict, words: str):
    with pytest.raises(ModelError, match=words):
        build_gguf_tokenizer(PATH, metadata_of(reference_bpe(GPT2), **({"pre": "gpt-2"} | change)))


# SentencePiece: <unk>, <s>, </s>, 256 bytes, then pieces whose score falls with their rank.
PIECES = ["▁t", "he", "▁the", "▁▁", "in", "▁h", "ello", "el", "lo", "ll", "▁hello", "▁world"]
PIECES += ["▁w", "or", "ld", "orld", "1", "2", "▁", "t", "h", "e", "l", "o", "w", "r", "d", "i", "n", "漢"]


def sentencepiece_metadata(**own: Any) -> dict[str, Any]:
    tokens = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)], *PIECES, "<|user|>"]
    made = {
        "model": "llama",
        "pre": "default",
        "tokens": tokens,
        "scores": [0.0] * 259 + [-float(rank) for rank in range(len(PIECES))] + [0.0],
        "token_type": [2, 3, 3] + [6] * 256 + [1] * len(PIECES) + [4],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (made | own).items()}


def reference_sentencepiece(text: str, *, prefix: bool = True) -> list[str]:
    """SentencePiece's own procedure, slowly: join the neighbours with the best union until there are none."""
    if not text:
        return []
    pieces = list(("▁" if prefix else "") + text.replace(" ", "▁"))
    while True:
        unions = [
            (PIECES.index(a + b), place)
            for place, (a, b) in enumerate(itertools.pairwise(pieces))
            if a + b in PIECES
        ]
        if not unions:
            break
        _, place = min(unions)
        pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]
    found = []
    for piece in pieces:
        found += [piece] if piece in PIECES else [f"<0x{byte:02X}>" for byte in piece.encode()]
    return found


SP_TEXTS = [
    "hello world",
    "the  other world",
    "in the hello",
    "漢字 😀",
    "",
    " ",
    "12 1 2\nline",
    "hellooo  llo  ",
]


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_joins_the_best_neighbours_first(prefix: bool):
    built = build_gguf_tokenizer(PATH, sentencepiece_metadata(add_space_prefix=prefix)).wrapped
    for text in SP_TEXTS:
        ids = built(text, add_special_tokens=False)["input_ids"]
        assert built.convert_ids_to_tokens(ids) == reference_sentencepiece(text, prefix=prefix), text
        assert built.decode(ids) == text


def test_sentencepiece_begins_with_bos_unless_told_otherwise():
    built = build_gguf_tokenizer(PATH, sentencepiece_metadata()).wrapped
    assert built("hello")["input_ids"][0] == 1
    bare = build_gguf_tokenizer(PATH, sentencepiece_metadata(add_bos_token=False, add_eos_token=True)).wrapped
    assert bare("hello")["input_ids"][-1] == 2
    assert bare("hello")["input_ids"][0] != 1


def test_sentencepiece_cuts_at_user_defined_and_control_tokens():
    built = build_gguf_tokenizer(PATH, sentencepiece_metadata(add_space_prefix=False)).wrapped
    ids = built("hello<|user|>world</s>", add_special_tokens=False)["input_ids"]
    assert built.convert_tokens_to_ids("<|user|>") in ids
    assert ids[-1] == 2
    assert built.decode(ids, skip_special_tokens=True) == "hello<|user|>world"


def test_merges_of_sentencepiece_are_in_the_order_of_the_scores():
    own = {key.removeprefix("tokenizer.ggml."): value for key, value in sentencepiece_metadata().items()}
    made = [left + right for left, right in find_merges(own)]
    assert made == sorted(made, key=PIECES.index)
    assert "<|user|>" not in made


def test_smollm2_gives_texts_back(smollm2_checkpoint: Checkpoint):
    tokenizer = smollm2_checkpoint.tokenizer()
    for text in TEXTS:
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_smollm2_ids_are_those_of_transformers(smollm2_checkpoint: Checkpoint):
    golden = json.loads((Path(__file__).parents[2] / "golden" / "smollm2_greedy.json").read_text("utf-8"))
    tokenizer = smollm2_checkpoint.tokenizer()
    for row in golden["tokenizer"]:
        assert tokenizer(row["text"])["input_ids"] == row["token_ids"]
    for row in golden["chat"]:
        assert (
            tokenizer.apply_chat_template(row["messages"], add_generation_prompt=True, return_dict=False)
            == row["token_ids"]
        )


def test_smollm2_splits_like_digits_and_gpt2(smollm2_checkpoint: Checkpoint):
    tokenizer = smollm2_checkpoint.tokenizer()
    reference = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    digits = pre_tokenizers.Digits(individual_digits=True)
    reference.pre_tokenizer = pre_tokenizers.Sequence([digits, GPT2])
    for text in TEXTS:
        assert tokenizer(text)["input_ids"] == reference.encode(text).ids, text


def test_the_tokenizer_without_transformers_is_the_same(smollm2_checkpoint: Checkpoint):
    fast, wrapped = smollm2_checkpoint.fast_tokenizer(), smollm2_checkpoint.tokenizer()
    assert fast.backend.to_str() == wrapped.backend_tokenizer.to_str()
    assert fast.eos_token_id == wrapped.eos_token_id
    assert fast.chat_template == wrapped.chat_template


def test_plain_texts_are_encoded_without_an_import_of_transformers(smollm2_checkpoint: Checkpoint):
    code = (
        "import sys; from headrace.engines.checkpoints import open_checkpoint; "
        "print(open_checkpoint(sys.argv[1]).fast_tokenizer().backend.encode('the sea').ids, "
        "'transformers' in sys.modules)"
    )
    command = [sys.executable, "-c", code, smollm2_checkpoint.model.spec]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == f"{smollm2_checkpoint.tokenizer().encode('the sea')} False"
