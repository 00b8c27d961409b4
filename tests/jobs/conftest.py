"""The tiny random model, for the commands too."""

from tests.pipelines.conftest import tiny_llm as tiny_llm
