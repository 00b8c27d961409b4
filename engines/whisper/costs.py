"""Operations that a Whisper model cannot do without."""

from headrace.engines.whisper.config import ModelDims

MLP_RATIO = 4
"""Width of an MLP over that of the residual stream."""


def encoder_flops(dims: ModelDims) -> float:
    """Operations of the products for one window; a multiply-add counts as two."""
    frames, width = dims.num_frames, dims.width
    convolutions = 2.0 * 3 * width * (2 * frames * dims.num_mels + frames * width)
    a_layer = frames * (2 * (4 + 2 * MLP_RATIO) * width**2 + 4 * frames * width)
    cross = dims.decoder_layers * frames * 4 * width**2  # keys and values for the decoder
    return convolutions + dims.encoder_layers * a_layer + cross


def token_flops(dims: ModelDims, context: int | float) -> float:
    """Operations of the products for one decoded token that sees `context` tokens."""
    width = dims.width
    a_layer = 2 * (6 + 2 * MLP_RATIO) * width**2 + 4 * (context + dims.num_frames) * width
    return dims.decoder_layers * a_layer + 2.0 * width * dims.num_vocab
