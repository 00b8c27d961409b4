"""OpenVINO GenAI's Whisper pipeline on one workload; it takes one recording at a time."""

import argparse
from collections.abc import Sequence

import librosa
import openvino_genai as genai
from measured import Answer, Answers, Loaded, run

PRECISIONS = {"bfloat16": "bf16", "float32": "f32", "int8": "bf16"}


def load(args: argparse.Namespace) -> Loaded:
    properties = {"INFERENCE_PRECISION_HINT": PRECISIONS[args.dtype], "INFERENCE_NUM_THREADS": args.threads}
    pipeline = genai.WhisperPipeline(args.model, "CPU", **properties)
    config = pipeline.get_generation_config()
    config.return_timestamps = True
    if config.is_multilingual:
        config.language, config.task = "<|en|>", "transcribe"

    def transcribe(path: str) -> str:
        samples, _ = librosa.load(path, sr=16000, mono=True)
        return pipeline.generate(samples.tolist(), config).texts[0]

    def answer(paths: Sequence[str], max_tokens: int) -> Answers:
        del max_tokens
        return [Answer(transcribe(path)) for path in paths]

    return answer


if __name__ == "__main__":
    run(load, ["openvino", "openvino-genai"])
