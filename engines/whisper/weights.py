"""Tensors of a Whisper checkpoint in the form that the model takes."""

from collections.abc import Mapping, Sequence, Set
from typing import Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Shaped

from headrace.engines import native
from headrace.engines.checkpoints import Checkpoint
from headrace.engines.errors import ModelError
from headrace.engines.quantization import Quantization
from headrace.engines.whisper.config import ModelDims

AnyArray = Array | np.ndarray
Pair = tuple[Float[AnyArray, "out in"], Float32[AnyArray, " out"] | None]
"""Weight and bias, not yet on a device: each operation there would be a program to compile."""


def on_device(values: Shaped[AnyArray, "..."]) -> Shaped[Array, "..."]:
    """Values on the default device; `jnp.asarray` would compile a program for each shape."""
    return jax.device_put(values)


class Form(NamedTuple):
    """How the weights of a product are kept."""

    dtype: jnp.dtype
    """What enters the product."""
    kind: Literal["plain", "packed", "int16", "int8"]
    """As they are, in the native kernel's order, there as whole numbers, or in 8 bits for plain XLA."""
    is_outline: bool = False
    """Whether the weights are but traced, for their shapes."""


class Weights:
    """Reads tensors by their Hugging Face names, casts them, and checks the shapes that matter."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        dims: ModelDims,
        dtype: jnp.dtype,
        quantization: Quantization | None = None,
    ) -> None:
        self._checkpoint = checkpoint
        self._names = set(self._tensor_names())
        self._prefix = "" if "encoder.conv1.weight" in self._names else "model."
        self._dims = dims
        self.dtype = dtype
        self.width = dims.width
        is_native = dtype == jnp.bfloat16 and dims.width % 16 == 0 and native.is_available(native.LINEAR)
        # Where CPUs do not multiply bfloat16 the kernel would make whole numbers of it in each product.
        packed = "packed" if native.multiplies_bfloat16(native.BEST_LEVEL) else "int16"
        self.plain_form = Form(dtype, packed if is_native else "plain")
        self.form = self.plain_form if quantization is None else Form(dtype, quantization)
        # Whole numbers are made of the weights as they are, not as bfloat16 rounds them.
        self.product_dtype = jnp.dtype(jnp.float32) if self.form.kind in ("int16", "int8") else dtype
        self._check()

    def array(self, name: str, dtype: jnp.dtype | type | None = None) -> Float[Array, "..."]:
        """One tensor on the device, in the model's dtype unless another is named."""
        return on_device(self.values(name, dtype))

    def values(self, name: str, dtype: jnp.dtype | type | None = None) -> Float[AnyArray, "..."]:
        """As `array`, before it is on the device: it may be a view of the file."""
        return self._read(name).astype(dtype or self.dtype, copy=False)

    def linear(self, name: str) -> Pair:
        weight = self.values(f"{name}.weight", self.product_dtype)
        return weight, self._bias(name, weight.shape[0])

    def norm(self, name: str) -> tuple[Float32[Array, " D"], Float32[Array, " D"]]:
        return self.array(f"{name}.weight", jnp.float32), self.array(f"{name}.bias", jnp.float32)

    def fused(self, names: Sequence[str], num_heads: int | None = None) -> Pair:
        """Several projections in one; the first is scaled by 1/sqrt(head width) where num_heads is given."""
        kernels = [self._read(f"{name}.weight").astype(np.float32) for name in names]
        biases = [self._bias(name, kernels[0].shape[0]) for name in names]
        if num_heads is not None:
            scale = (kernels[0].shape[0] // num_heads) ** -0.5  # 1/8 in all known models: exact in bfloat16
            kernels[0], biases[0] = kernels[0] * np.float32(scale), biases[0] * np.float32(scale)
        return np.concatenate(kernels).astype(self.product_dtype), np.concatenate(biases)

    def convolution(self, name: str) -> Pair:
        """A convolution of width 3 as a product: [out, in, 3] becomes [out, 3 x in]."""
        kernel = self._read(f"{name}.weight")
        flat = np.ascontiguousarray(np.swapaxes(kernel, 1, 2)).reshape(kernel.shape[0], -1)
        dtype = jnp.float32 if self.plain_form.kind == "int16" else self.dtype
        return flat.astype(dtype), self._bias(name, kernel.shape[0])

    def _read(self, name: str) -> np.ndarray:
        full = self._prefix + name
        if full not in self._names:
            raise ModelError(f"the checkpoint lacks tensor {full}: it is not a whole Whisper model")
        return self._tensor(full)

    def _tensor_names(self) -> Set[str]:
        return self._checkpoint.tensor_names()

    def _tensor(self, name: str) -> np.ndarray:
        return self._checkpoint.tensor(name)

    def _bias(self, name: str, size: int) -> Float32[AnyArray, " out"]:
        if f"{self._prefix}{name}.bias" not in self._names:
            return np.zeros(size, np.float32)
        return self.values(f"{name}.bias", jnp.float32)

    def _check(self) -> None:
        dims = self._dims
        mels = self._read("encoder.conv1.weight").shape[1]
        if mels != dims.num_mels:
            raise ModelError(f"config.json says {dims.num_mels} mel bands, the encoder's weights take {mels}")
        said = self._checkpoint.preprocessor_config.get("feature_size", mels)
        if said != mels:
            raise ModelError(
                f"preprocessor_config.json says {said} mel bands, the encoder's weights take {mels}"
            )
        wanted = {
            "encoder.embed_positions.weight": (dims.num_frames, dims.width),
            "decoder.embed_positions.weight": (dims.max_tokens, dims.width),
            "decoder.embed_tokens.weight": (dims.num_vocab, dims.width),
        }
        for name, shape in wanted.items():
            got = self._read(name).shape
            if got != shape:
                raise ModelError(f"tensor {name} has shape {got}, config.json asks for {shape}")


class Outline(Weights):
    """Tensors of which only the shapes are known, within a trace that makes modules."""

    def __init__(
        self, checkpoint: Checkpoint, dims: ModelDims, dtype: jnp.dtype, quantization: Quantization | None
    ) -> None:
        assert checkpoint.artifact is not None
        self._shapes = cast("Mapping[str, tuple[int, ...]]", checkpoint.artifact.tensor_shapes)
        super().__init__(checkpoint, dims, dtype, quantization)
        self.plain_form = self.plain_form._replace(is_outline=True)
        self.form = self.form._replace(is_outline=True)

    def values(self, name: str, dtype: jnp.dtype | type | None = None) -> Float[AnyArray, "..."]:
        return jnp.zeros(self._read(name).shape, dtype or self.dtype)

    def fused(self, names: Sequence[str], num_heads: int | None = None) -> Pair:
        num_in = self._read(f"{names[0]}.weight").shape[1]
        num_out = sum(self._read(f"{name}.weight").shape[0] for name in names)
        return jnp.zeros((num_out, num_in), self.product_dtype), jnp.zeros(num_out, jnp.float32)

    def convolution(self, name: str) -> Pair:
        num_out, num_in, width = self._read(f"{name}.weight").shape
        return jnp.zeros((num_out, num_in * width), self.dtype), jnp.zeros(num_out, jnp.float32)

    def _tensor_names(self) -> Set[str]:
        return self._shapes.keys()

    def _tensor(self, name: str) -> np.ndarray:
        return np.broadcast_to(np.float32(0.0), self._shapes[name])  # takes no memory


def slot_bytes(dims: ModelDims, dtype: jnp.dtype, beam_size: int = 1) -> int:
    """Most bytes of a slot: cross-attention keys and values of a window, self-attention ones of its beams."""
    return (
        2
        * dims.decoder_layers
        * (dims.num_frames + beam_size * dims.max_tokens)
        * dims.width
        * jax.numpy.dtype(dtype).itemsize
    )
