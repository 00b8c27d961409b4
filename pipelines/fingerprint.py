"""What decides a result, hashed: parts of equal fingerprint hold equal work."""

import hashlib
import json
from typing import Any

from headrace.engines.compilation_config import CompilationConfig
from headrace.engines.config_fields import flat_fields, to_flat
from headrace.engines.llm.engine_config import CacheConfig, SchedulerConfig
from headrace.engines.llm.speculative_config import SpeculativeConfig
from headrace.engines.mesh import ParallelConfig
from headrace.pipelines.config import RunConfig

SCHEMA_VERSION = 1

# Where things lie, what is done about errors and which model: the model has a fingerprint of its own.
_NOT_PARAMETERS = {
    "inputs",
    "dataset",
    "dataset_config",
    "split",
    "stream_dataset",
    "output",
    "model",
    "revision",
    "fail_on_row_errors",
    "retry_errors",
    "overwrite",
    "ignore_mtime",
    "dedupe",
    "max_error_rate",
    "max_hours",
    "row_timeout_s",
    "prometheus_port",
    "supervise",
}
# How much is done at once: a run may be taken up with less (after running out of memory, say), except where
# --deterministic promises equal texts, which hold for fixed shapes only.
_SPEED = {"max_num_seqs", "max_num_batched_tokens", "max_concurrent_prefill", "chunked_prefill_enabled"}
_SPEED |= {"page_size", "batch_size", *(each.field.name for each in flat_fields(ParallelConfig))}
# In which order the work is done, how programs are compiled, and what is proposed to be checked: no text
# depends on it, shapes being equal.
_PARTS = (SchedulerConfig, CacheConfig, CompilationConfig, SpeculativeConfig)
_ORDER = {each.field.name for part in _PARTS for each in flat_fields(part)}
_ORDER = (_ORDER | {"priority_column"}) - {*_SPEED, "max_model_len", "xla_options", "kv_cache_dtype"}


def parameters(config: RunConfig) -> dict[str, Any]:
    """The options that a result depends on, as JSON values."""
    values = to_flat(config)
    left_out = _NOT_PARAMETERS | _ORDER | (set() if config.deterministic else _SPEED)
    return {name: as_json(value) for name, value in values.items() if name not in left_out}


def run_fingerprint(job: str, model_fingerprint: str, config: RunConfig) -> str:
    """Fingerprint of everything but the input: the job, the model, the parameters and the output's schema."""
    return digest([SCHEMA_VERSION, job, model_fingerprint, parameters(config)])


def digest(value: Any) -> str:
    """A short hash of a JSON value."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def as_json(value: Any) -> Any:
    """A configuration value as JSON holds it: tuples become lists."""
    return [as_json(each) for each in value] if isinstance(value, tuple | list) else value
