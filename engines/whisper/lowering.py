"""The device programs as they are compiled: traced for a bucket, before any recording is there."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Int32, PyTree

from headrace.engines.program_store import program_signature
from headrace.engines.programs import ProgramKey
from headrace.engines.whisper.alignment import Attended, Known, attend_to_frames
from headrace.engines.whisper.attention import LayerKV
from headrace.engines.whisper.decode import admit, decode_burst
from headrace.engines.whisper.model import WhisperModel
from headrace.engines.whisper.slots import (
    Arrival,
    Decoding,
    Entry,
    Restart,
    Rows,
    Slots,
    empty_slots,
    enter,
    restart,
)

FRAME_SAMPLES = 320
"""Samples of one frame of the encoder's output: 20 ms."""


class Lowering:
    """Traces a model's programs: empty, admit by frames, burst by slots, restart, enter, align by tokens."""

    def __init__(self, model: WhisperModel, decoding: Decoding, encoder_batch: int) -> None:
        self.graph, self.params = graph, _ = nnx.split(model)
        self._decoding = decoding
        self._encoder_batch = encoder_batch
        self._backend = type(model.decoder.layers[0].backend).__name__
        self._params = jax.tree.map(_shape_of, self.params)

        def empty_program() -> Slots:
            return empty_slots(nnx.merge(graph, self._params), decoding)

        def admit_program(params: PyTree, slots: Slots, arrival: Arrival) -> Slots:
            return admit(nnx.merge(graph, params), slots, arrival, decoding.beam_size)

        def burst_program(
            params: PyTree, slots: Slots, min_active: Int32[Array, ""], num_slots: int
        ) -> Slots:
            return decode_burst(nnx.merge(graph, params), slots, min_active, num_slots, decoding)

        def enter_program(rows: Rows, entry: Entry) -> Rows:
            return enter(rows, entry, decoding.beam_size)

        def align_program(params: PyTree, crosses: tuple[LayerKV, ...], known: Known) -> Attended:
            decoder = nnx.merge(graph, params).decoder
            return attend_to_frames(decoder, crosses, known, decoding.alignment_heads, decoding.special.eot)

        # Workers trace while the engine's thread donates the slots: they are given shapes alone.
        self._slots = jax.eval_shape(empty_program)
        self._empty = jax.jit(empty_program)
        self._admit = jax.jit(admit_program, donate_argnames="slots")
        self._burst = jax.jit(burst_program, donate_argnames="slots", static_argnames="num_slots")
        self._enter = jax.jit(enter_program, donate_argnums=0)
        self._restart = jax.jit(restart, donate_argnums=0)
        self._align = jax.jit(align_program)

    def plan(self) -> list[ProgramKey]:
        """What every job needs."""
        admits = [ProgramKey("admit", frames) for frames in self._decoding.contexts]
        bursts = [ProgramKey("burst", slots) for slots in self._decoding.slot_sizes]
        of_all = [ProgramKey(kind, self._decoding.num_slots) for kind in ("empty", "restart")]
        return [*admits, *bursts, *of_all]

    def lower(self, key: ProgramKey, arguments: Mapping[str, Any]) -> jax.stages.Lowered:
        """The traced program of a bucket for these arguments."""
        match key.kind:
            case "empty":
                return self._empty.lower()
            case "admit":
                return self._admit.lower(self._params, self._slots, **arguments)
            case "burst":
                return self._burst.lower(self._params, self._slots, num_slots=key.size, **arguments)
            case "enter":
                return self._enter.lower(self._slots.rows, **arguments)
            case "restart":
                return self._restart.lower(self._slots.rows, **arguments)
            case _:
                return self._align.lower(self._params, self._slots.crosses, **arguments)

    def example(self, key: ProgramKey) -> dict[str, Any]:
        """Arguments of the shapes that a bucket has."""
        number: Any = jax.ShapeDtypeStruct((), jnp.int32)
        match key.kind:
            case "empty":
                return {}
            case "admit":
                return {"arrival": self._arrival(key.size)}
            case "burst":
                return {"min_active": number}
            case "enter":
                return {"entry": self._entry(key.size)}
            case "restart":
                shape = self._slots.rows.position.shape
                types = (jnp.bool, jnp.float32, jnp.uint32, jnp.int32)
                fields: Any = [jax.ShapeDtypeStruct(shape, each) for each in types]
                return {"restart": Restart(*fields)}
            case _:
                tokens: Any = jax.ShapeDtypeStruct((key.size,), jnp.int32)
                return {"known": Known(tokens, number, number, number, number)}

    def _arrival(self, num_frames: int) -> Arrival:
        shape = (self._encoder_batch, num_frames * FRAME_SAMPLES)
        waveform: Any = jax.ShapeDtypeStruct(shape, jnp.float32)
        zeros_from: Any = jax.ShapeDtypeStruct(shape[:1], jnp.int32)
        return Arrival(waveform, zeros_from, self._entry(self._encoder_batch))

    def _entry(self, num_rows: int) -> Entry:
        rows = (num_rows,)
        others = {
            "tokens": ((*rows, self._decoding.max_length), jnp.int32),
            "with_timestamps": (rows, jnp.bool),
            "seed": (rows, jnp.uint32),
        }
        fields: Any = {
            name: jax.ShapeDtypeStruct(*others.get(name, (rows, jnp.int32))) for name in Entry._fields
        }
        return Entry(**fields)

    def made_from(self) -> dict[str, str]:
        """All that a program depends on beside its key and its arguments."""
        return {
            "engine": "whisper",
            "model": repr(self._decoding),
            "backend": self._backend,
            "weights": repr(program_signature(self._params)),
            "slots": repr(program_signature(self._slots)),
        }


def _shape_of(array: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype)
