"""The real demo models, through pip: what a checkpoint of each layout gives."""

import numpy as np

from headrace.engines.checkpoints import Checkpoint


def test_whisper_tiny_en_is_what_its_card_says(whisper_tiny_checkpoint: Checkpoint):
    config = whisper_tiny_checkpoint.config
    wanted = {"d_model": 384, "encoder_layers": 4, "decoder_layers": 4, "encoder_attention_heads": 6}
    wanted |= {
        "vocab_size": 51864,
        "num_mel_bins": 80,
        "decoder_start_token_id": 50257,
        "eos_token_id": 50256,
    }
    wanted |= {"max_source_positions": 1500, "max_target_positions": 448, "encoder_ffn_dim": 1536}
    assert wanted.items() <= config.items()
    generation = whisper_tiny_checkpoint.generation_config
    assert generation["is_multilingual"] is False
    assert generation["no_timestamps_token_id"] == 50362
    assert generation["begin_suppress_tokens"] == [220, 50256]
    assert "lang_to_id" not in generation
    assert len(whisper_tiny_checkpoint.tensor_names()) == 167


def test_whisper_base_is_joined_from_two_wheels(whisper_base_checkpoint: Checkpoint):
    names = sorted(path.name for path in whisper_base_checkpoint.model.path.iterdir())
    assert names == ["config.json", "model.bin", "tokenizer.json", "vocabulary.txt"]
    generation = whisper_base_checkpoint.generation_config
    assert generation["is_multilingual"] is True
    assert len(generation["lang_to_id"]) == 99
    assert generation["lang_to_id"]["<|de|>"] == 50261
    assert generation["task_to_id"] == {"transcribe": 50359, "translate": 50358}
    assert whisper_base_checkpoint.config["encoder_layers"] == 6


def test_every_whisper_weight_is_finite_and_of_half_precision(whisper_base_checkpoint: Checkpoint):
    for name in whisper_base_checkpoint.tensor_names():
        values = whisper_base_checkpoint.tensor(name)
        assert values.dtype == np.float16
        assert np.isfinite(values).all(), name


def test_positions_of_the_encoder_are_sines_then_cosines(whisper_tiny_checkpoint: Checkpoint):
    positions = whisper_tiny_checkpoint.tensor("model.encoder.embed_positions.weight").astype(np.float32)
    scales = np.exp(-np.log(10000) / 191 * np.arange(192))
    angles = np.arange(1500)[:, None] * scales[None]
    np.testing.assert_allclose(positions, np.concatenate([np.sin(angles), np.cos(angles)], axis=1), atol=1e-3)


def test_whisper_tokenizer_has_all_timestamps(whisper_tiny_checkpoint: Checkpoint):
    tokenizer = whisper_tiny_checkpoint.tokenizer()
    assert tokenizer.convert_ids_to_tokens([50363, 51863]) == ["<|0.00|>", "<|30.00|>"]
    assert tokenizer.decode([15496, 995], skip_special_tokens=True) == "Hello world"


def test_smollm2_is_what_its_card_says(smollm2_checkpoint: Checkpoint):
    config = smollm2_checkpoint.config
    wanted = {"model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30}
    wanted |= {"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49152}
    wanted |= {
        "tie_word_embeddings": True,
        "rope_theta": 100000.0,
        "rope_scaling": None,
        "attention_bias": False,
    }
    wanted |= {"bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 8192}
    assert wanted.items() <= config.items()
    assert len(smollm2_checkpoint.tensor_names()) == 272
    assert smollm2_checkpoint.tensor("model.layers.29.mlp.down_proj.weight").shape == (576, 1536)


def test_smollm2_chat_template_makes_the_turns_that_it_was_trained_on(smollm2_checkpoint: Checkpoint):
    tokenizer = smollm2_checkpoint.tokenizer()
    ids = tokenizer.apply_chat_template(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi 12"}],
        add_generation_prompt=True,
        return_dict=False,
    )
    assert ids[0] == tokenizer.bos_token_id == 1
    assert ids.count(1) == 3
    text = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi 12<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer.decode(ids) == text


def test_smollm2_tokenizer_cuts_digits_one_by_one(smollm2_checkpoint: Checkpoint):
    tokenizer = smollm2_checkpoint.tokenizer()
    ids = tokenizer("in 2024")["input_ids"]
    assert [tokenizer.decode([index]) for index in ids] == ["in", " ", "2", "0", "2", "4"]
