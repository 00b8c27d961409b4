"""faster-whisper, greedy, on one workload.

Its plain mode, or with `--dtype batched-int8_float32` its batches of 16 windows, which voice detection cuts.
"""

import argparse
from collections.abc import Sequence

from faster_whisper import BatchedInferencePipeline, WhisperModel
from measured import Answer, Answers, Loaded, run

SETTINGS = {"language": "en", "beam_size": 1, "best_of": 1, "temperature": 0.0, "without_timestamps": False}


def load(args: argparse.Namespace) -> Loaded:
    compute_type = args.dtype.removeprefix("batched-")
    model = WhisperModel(args.model, device="cpu", compute_type=compute_type, cpu_threads=args.threads)
    batches = BatchedInferencePipeline(model)

    def transcribe(path: str) -> str:
        if args.dtype.startswith("batched-"):
            segments, _ = batches.transcribe(path, batch_size=16, vad_filter=True, **SETTINGS)
        else:
            segments, _ = model.transcribe(path, condition_on_previous_text=False, **SETTINGS)
        return "".join(segment.text for segment in segments)

    def answer(paths: Sequence[str], max_tokens: int) -> Answers:
        del max_tokens
        return [Answer(transcribe(path)) for path in paths]

    return answer


if __name__ == "__main__":
    run(load, ["faster-whisper", "ctranslate2"])
