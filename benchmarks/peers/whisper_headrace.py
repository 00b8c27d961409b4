"""headrace's Whisper engine on one workload."""

import argparse
from collections.abc import Sequence

from measured import Answer, Answers, Loaded, run

from headrace.engines.whisper import WhisperConfig, WhisperEngine


def load(args: argparse.Namespace) -> Loaded:
    english_only = "en" in args.model.rsplit(".", 1)[-1]
    dtype, _, context = args.dtype.partition("-")
    config = WhisperConfig(
        language=None if english_only else "en",
        return_timestamps="segment",
        dtype=dtype,
        encoder_context=context or "full",
        batch_size=args.slots,
    )
    engine = WhisperEngine(args.model, config)

    def answer(paths: Sequence[str], max_tokens: int) -> Answers:
        del max_tokens
        futures = [engine.submit(path, request_id=path) for path in paths]
        return [Answer(future.result().text) for future in futures]

    return answer


if __name__ == "__main__":
    run(load, ["jax", "jaxlib"])
