"""The faster-whisper layout: binary, names, configs, tokenizer."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from headrace.engines.checkpoints import open_checkpoint
from headrace.engines.errors import ModelError

WIDTH, FFN, MELS, VOCAB = 6, 10, 128, 51866
SPECIAL = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|yue|>", "<|translate|>", "<|transcribe|>"]
SPECIAL += ["<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]
FIRST_SPECIAL = VOCAB - 1501 - len(SPECIAL)


def whisper_variables() -> dict[str, np.ndarray]:
    """A Whisper of 2 encoder and 1 decoder layers, as CTranslate2 names it."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    made = {"encoder/conv1/weight": normal(WIDTH, MELS, 3), "encoder/conv1/bias": normal(WIDTH)}
    made |= {"encoder/conv2/weight": normal(WIDTH, WIDTH, 3), "encoder/conv2/bias": normal(WIDTH)}
    made["decoder/embeddings/weight"] = normal(VOCAB, WIDTH)
    for side, layers, positions in (("encoder", 2, 20), ("decoder", 1, 30)):
        made[f"{side}/position_encodings/encodings"] = normal(positions, WIDTH)
        made[f"{side}/num_heads"] = np.int16(3)
        norms = [f"{side}/layer_norm"]
        for layer in range(layers):
            prefix = f"{side}/layer_{layer}"
            linears = {
                "self_attention/linear_0": (3 * WIDTH, WIDTH),
                "self_attention/linear_1": (WIDTH, WIDTH),
            }
            linears |= {"ffn/linear_0": (FFN, WIDTH), "ffn/linear_1": (WIDTH, FFN)}
            parts = ["self_attention", "ffn"]
            if side == "decoder":
                linears |= {"attention/linear_0": (WIDTH, WIDTH), "attention/linear_1": (2 * WIDTH, WIDTH)}
                linears["attention/linear_2"] = (WIDTH, WIDTH)
                parts.append("attention")
            norms += [f"{prefix}/{part}/layer_norm" for part in parts]
            for name, shape in linears.items():
                made[f"{prefix}/{name}/weight"] = normal(*shape)
                made[f"{prefix}/{name}/bias"] = normal(shape[0])
        for norm in norms:
            made |= {f"{norm}/gamma": normal(WIDTH), f"{norm}/beta": normal(WIDTH)}
    made["decoder/scale_embeddings"] = np.int8(0)
    made["decoder/activation"] = np.int8(3)
    return made


@pytest.fixture(scope="module")
def variables() -> dict[str, np.ndarray]:
    return whisper_variables()


TIED = {"decoder/projection/weight": "decoder/embeddings/weight"}


@pytest.fixture
def directory(tmp_path: Path, write_ct2, variables) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    write_ct2(path / "model.bin", variables, aliases=TIED)
    stored = {
        "suppress_ids": [1, 2],
        "suppress_ids_begin": [220],
        "alignment_heads": [[0, 1]],
        "lang_ids": [7],
    }
    (path / "config.json").write_text(json.dumps(stored))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    filler = [f"word{index}" for index in range(FIRST_SPECIAL - len(alphabet))]
    vocabulary = {token: index for index, token in enumerate(alphabet + filler)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer.save(str(path / "tokenizer.json"))
    return path


def test_names_and_orientation_are_hugging_faces(directory: Path, variables):
    checkpoint = open_checkpoint(str(directory))
    fused = variables["encoder/layer_1/self_attention/linear_0/weight"]
    prefix = "model.encoder.layers.1.self_attn"
    for place, part in enumerate(("q_proj", "k_proj", "v_proj")):
        rows = fused[place * WIDTH : (place + 1) * WIDTH]
        np.testing.assert_array_equal(checkpoint.tensor(f"{prefix}.{part}.weight"), rows)
    fused_bias = variables["encoder/layer_1/self_attention/linear_0/bias"]
    np.testing.assert_array_equal(checkpoint.tensor(f"{prefix}.v_proj.bias"), fused_bias[2 * WIDTH :])
    assert f"{prefix}.k_proj.bias" not in checkpoint.tensor_names()
    cross = "model.decoder.layers.0.encoder_attn"
    kv = variables["decoder/layer_0/attention/linear_1/weight"]
    np.testing.assert_array_equal(checkpoint.tensor(f"{cross}.v_proj.weight"), kv[WIDTH:])
    same = {
        f"{cross}.q_proj.weight": "decoder/layer_0/attention/linear_0/weight",
        f"{cross}.out_proj.bias": "decoder/layer_0/attention/linear_2/bias",
        "model.decoder.layers.0.fc1.weight": "decoder/layer_0/ffn/linear_0/weight",
        "model.decoder.layers.0.final_layer_norm.weight": "decoder/layer_0/ffn/layer_norm/gamma",
        "model.decoder.layers.0.encoder_attn_layer_norm.bias": "decoder/layer_0/attention/layer_norm/beta",
        "model.encoder.layer_norm.weight": "encoder/layer_norm/gamma",
        "model.encoder.conv1.weight": "encoder/conv1/weight",
        "model.encoder.embed_positions.weight": "encoder/position_encodings/encodings",
        "model.decoder.embed_tokens.weight": "decoder/embeddings/weight",
    }
    for name, variable in same.items():
        np.testing.assert_array_equal(checkpoint.tensor(name), variables[variable])


def test_number_of_tensors_is_that_of_the_architecture(directory: Path):
    layer = {"encoder": 15, "decoder": 24}  # without the bias of k_proj
    top = 4 + 1 + 2 + 1 + 2 + 1  # convolutions, positions, norms, embeddings
    assert (
        len(open_checkpoint(str(directory)).tensor_names()) == 2 * layer["encoder"] + layer["decoder"] + top
    )


def test_config_is_derived_from_the_tensors(directory: Path):
    config = open_checkpoint(str(directory)).config
    wanted = {
        "model_type": "whisper",
        "d_model": WIDTH,
        "encoder_layers": 2,
        "decoder_layers": 1,
        "encoder_attention_heads": 3,
        "decoder_attention_heads": 3,
        "encoder_ffn_dim": FFN,
        "decoder_ffn_dim": FFN,
        "vocab_size": VOCAB,
        "num_mel_bins": MELS,
        "max_source_positions": 20,
        "max_target_positions": 30,
        "activation_function": "gelu",
        "tie_word_embeddings": True,
        "decoder_start_token_id": FIRST_SPECIAL + 1,
        "eos_token_id": FIRST_SPECIAL,
    }
    assert wanted.items() <= config.items()


def test_heads_are_of_64_where_the_file_does_not_say(directory: Path, write_ct2, variables):
    kept = {name: value for name, value in variables.items() if not name.endswith("num_heads")}
    kept["decoder/embeddings/weight"] = np.zeros((VOCAB, 128), np.float16)
    write_ct2(directory / "model.bin", kept)
    assert open_checkpoint(str(directory)).config["encoder_attention_heads"] == 2


def test_generation_config_is_made_of_the_vocabulary_and_config(directory: Path):
    generation = open_checkpoint(str(directory)).generation_config
    wanted = {
        "is_multilingual": True,
        "suppress_tokens": [1, 2],
        "begin_suppress_tokens": [220],
        "alignment_heads": [[0, 1]],
        "lang_to_id": {"<|en|>": FIRST_SPECIAL + 2, "<|yue|>": FIRST_SPECIAL + 3},
        "task_to_id": {"transcribe": FIRST_SPECIAL + 5, "translate": FIRST_SPECIAL + 4},
        "no_timestamps_token_id": FIRST_SPECIAL + 9,
        "prev_sot_token_id": FIRST_SPECIAL + 7,
        "decoder_start_token_id": FIRST_SPECIAL + 1,
        "eos_token_id": FIRST_SPECIAL,
    }
    assert wanted.items() <= generation.items()


def test_preprocessor_config_has_the_number_of_mels(directory: Path):
    assert open_checkpoint(str(directory)).preprocessor_config["feature_size"] == MELS
    (directory / "preprocessor_config.json").write_text('{"feature_size": 80}')
    assert open_checkpoint(str(directory)).preprocessor_config == {"feature_size": 80}


def test_tokenizer_knows_every_timestamp(directory: Path):
    tokenizer = open_checkpoint(str(directory)).tokenizer()
    assert len(tokenizer) == VOCAB
    assert tokenizer.convert_ids_to_tokens([VOCAB - 1501, VOCAB - 1]) == ["<|0.00|>", "<|30.00|>"]
    ids = tokenizer("Grüße, 漢字 😀", add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == "Grüße, 漢字 😀"


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_float_weights_keep_their_precision(directory: Path, write_ct2, variables, dtype):
    stored = {
        name: value.astype(dtype) if value.dtype == np.float32 else value for name, value in variables.items()
    }
    write_ct2(directory / "model.bin", stored)
    read = open_checkpoint(str(directory)).tensor("model.encoder.conv1.weight")
    assert read.dtype == dtype
    np.testing.assert_array_equal(read, stored["encoder/conv1/weight"])


@pytest.mark.parametrize("kind", ["int8", "int16"])
def test_quantized_weights_are_scaled_back(directory: Path, write_ct2, variables, kind: str):
    stored = dict(variables)
    for name in (
        "decoder/layer_0/attention/linear_1/weight",
        "encoder/conv1/weight",
        "decoder/embeddings/weight",
    ):
        value = variables[name]
        rows = np.abs(value.reshape(len(value), -1)).max(axis=1)
        scale = 127.0 / rows if kind == "int8" else np.float32(2**10 / rows.max())
        shaped = scale.reshape(-1, *[1] * (value.ndim - 1)) if kind == "int8" else scale
        stored[name] = np.rint(value * shaped).astype(kind)
        stored[f"{name}_scale"] = np.asarray(scale, np.float32)
    write_ct2(directory / "model.bin", stored, aliases=TIED)
    checkpoint = open_checkpoint(str(directory))
    wanted = {
        "model.decoder.layers.0.encoder_attn.v_proj.weight": variables[
            "decoder/layer_0/attention/linear_1/weight"
        ][WIDTH:],
        "model.encoder.conv1.weight": variables["encoder/conv1/weight"],
        "model.decoder.embed_tokens.weight": variables["decoder/embeddings/weight"],
    }
    for name, value in wanted.items():
        read = checkpoint.tensor(name)
        assert read.dtype == np.float32
        np.testing.assert_allclose(read, value, atol=np.abs(value).max() / (127 if kind == "int8" else 1024))


def test_projection_of_its_own_is_not_tied(directory: Path, write_ct2, variables):
    own = variables | {"decoder/projection/weight": np.ones((VOCAB, WIDTH), np.float16)}
    write_ct2(directory / "model.bin", own)
    checkpoint = open_checkpoint(str(directory))
    assert checkpoint.config["tie_word_embeddings"] is False
    assert checkpoint.tensor("proj_out.weight").shape == (VOCAB, WIDTH)


@pytest.mark.parametrize("kept", [0, 2, 4, 10, 25, 1000, -3, -400])
def test_cut_binary_is_one_line(directory: Path, kept: int):
    binary = directory / "model.bin"
    binary.write_bytes(binary.read_bytes()[:kept])
    with pytest.raises(ModelError, match=r"model\.bin' is (cut short|empty)") as caught:
        open_checkpoint(str(directory))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("version", [3, 7])
def test_unknown_version_is_refused_by_its_number(directory: Path, write_ct2, variables, version: int):
    write_ct2(directory / "model.bin", variables, version=version)
    with pytest.raises(ModelError, match=f"its first number is {version}"):
        open_checkpoint(str(directory))


def test_older_version_of_the_same_layout_is_read(directory: Path, write_ct2, variables):
    write_ct2(directory / "model.bin", variables, version=5)
    assert open_checkpoint(str(directory)).config["d_model"] == WIDTH


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"<!DOCTYPE html>" * 9, "no CTranslate2 model of version"),
        (b"\6\0\0\0" + b"\7\0garbage" * 9, "does not end where it should"),
        (b"\6\0\0\0" + b"\3\0\xff\xff\0" + b"\0" * 99, "not text"),
    ],
)
def test_foreign_binary_is_one_line(directory: Path, content: bytes, words: str):
    (directory / "model.bin").write_bytes(content)
    with pytest.raises(ModelError, match=words):
        open_checkpoint(str(directory))


def test_translation_model_is_refused_by_its_name(directory: Path, write_ct2, variables):
    write_ct2(directory / "model.bin", variables, spec="TransformerSpec")
    with pytest.raises(ModelError, match="TransformerSpec"):
        open_checkpoint(str(directory))


def test_missing_variable_is_named(directory: Path, write_ct2, variables):
    kept = {name: value for name, value in variables.items() if name != "encoder/layer_0/ffn/linear_1/bias"}
    write_ct2(directory / "model.bin", kept)
    with pytest.raises(ModelError, match="'encoder/layer_0/ffn/linear_1/bias' is missing"):
        open_checkpoint(str(directory))


@pytest.mark.parametrize("kind", ["txt", "json"])
def test_vocabulary_alone_decodes_and_says_that_it_cannot_encode(directory: Path, kind: str):
    whole = open_checkpoint(str(directory)).tokenizer()
    tokens = whole.convert_ids_to_tokens(list(range(VOCAB)))
    ids = whole("Grüße, 漢字 😀", add_special_tokens=False)["input_ids"]
    (directory / "tokenizer.json").unlink()
    text = json.dumps(tokens) if kind == "json" else "\n".join(tokens) + "\n"
    (directory / f"vocabulary.{kind}").write_text(text, encoding="utf-8")
    checkpoint = open_checkpoint(str(directory))
    assert checkpoint.generation_config["no_timestamps_token_id"] == FIRST_SPECIAL + 9
    bare = checkpoint.tokenizer()
    assert bare.decode([FIRST_SPECIAL + 1, *ids], skip_special_tokens=True) == "Grüße, 漢字 😀"
    assert bare.decode([VOCAB - 1]) == "<|30.00|>"
    assert len(bare) == VOCAB
    with pytest.raises(ModelError, match="can only decode"):
        bare("text")


def test_directory_without_any_vocabulary_is_one_line(directory: Path):
    (directory / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"no tokenizer\.json, vocabulary\.json or vocabulary\.txt"):
        open_checkpoint(str(directory))


def test_vocabulary_of_another_model_is_refused(directory: Path):
    (directory / "tokenizer.json").unlink()
    (directory / "vocabulary.txt").write_text("a\nb\n")
    with pytest.raises(ModelError, match="not a Whisper model's"):
        open_checkpoint(str(directory))
