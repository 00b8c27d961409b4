"""Error rate and CPU time of short clips with the encoder's context full and fitted, in alternating runs.

    python benchmarks/encoder_context.py demo:whisper-tiny.en ../shared/data/speech.jsonl

Takes the clips of --language (not the long forms) that `wer.py` takes. CPU time is that of the whole process,
decoding included; the encoder's own is told by its frames, 1500 for 30 s.
"""

import argparse
import time

import jax
from wer import LONG_FORM, rate, read_table, score, table_arguments

from headrace.audio import load_audio
from headrace.engines.whisper import WhisperConfig, WhisperEngine


def main() -> None:
    args = _arguments()
    rows = [row for row in read_table(args.table, args.language) if LONG_FORM not in row["file"]]
    clips = [load_audio(args.table.parent / row["file"]).waveform for row in rows]
    engines = {
        context: WhisperEngine(
            args.model,
            WhisperConfig(language=args.language, return_timestamps=args.timestamps, encoder_context=context),
        )
        for context in ("full", "fit")
    }
    print(f"{jax.default_backend()}, {args.model}, timestamps {args.timestamps}, {len(clips)} clips")
    for number in range(args.rounds):
        for context, engine in engines.items():
            before, started = engine.metrics(), time.process_time()
            futures = [engine.submit(clip, request_id=f"{number}-{i}") for i, clip in enumerate(clips)]
            results = [future.result() for future in futures]
            seconds, after = time.process_time() - started, engine.metrics()
            rated = rate([score(row, r, args.language) for row, r in zip(rows, results, strict=True)])
            frames, again = (after[name] - before[name] for name in ("encoded_frames", "context_retries"))
            print(
                f"{context}: WER {rated['wer_percent']:.2f} % ({rated['errors']} errors of {rated['words']} "
                f"words), CPU {seconds:.1f} s, encoder frames {frames:.0f}, encoded again {again:.0f}",
                flush=True,
            )
    for engine in engines.values():
        engine.close()


def _arguments() -> argparse.Namespace:
    parser = table_arguments(__doc__, "segment")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
