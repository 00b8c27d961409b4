"""Model families: their configurations in Hugging Face's terms, and their weights."""

from headrace.engines.llm.families.eagle_heads import load_eagle_head, read_eagle_config
from headrace.engines.llm.families.loading import load_decoder
from headrace.engines.llm.families.random_weights import random_decoder
from headrace.engines.llm.families.registry import FAMILIES, read_model_config
from headrace.engines.llm.families.rope_fields import ROPE_KINDS

__all__ = [
    "FAMILIES",
    "ROPE_KINDS",
    "load_decoder",
    "load_eagle_head",
    "random_decoder",
    "read_eagle_config",
    "read_model_config",
]
