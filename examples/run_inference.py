"""Serves Beam's own RunInference; one bad example does not fail its batch.

python examples/run_inference.py
"""

import apache_beam as beam
from apache_beam.ml.inference.base import PredictionResult, RunInference
from apache_beam.options.pipeline_options import PipelineOptions

from headrace.pipelines.model_handler import GenerateModelHandler

PROMPTS = ["The capital of France is", "Water boils at", ""]


def show(prediction: PredictionResult) -> None:
    print(f"{prediction.example!r}: {prediction.inference}")


def main() -> None:
    handler = GenerateModelHandler("demo:smollm2-135m", max_tokens=8, max_model_len=128, max_num_seqs=8)
    with beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"])) as pipeline:
        _ = pipeline | beam.Create(PROMPTS) | RunInference(handler) | beam.Map(show)


if __name__ == "__main__":
    main()
