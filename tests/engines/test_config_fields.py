"""Configs of configs, written and read flat."""

import dataclasses

import pytest

from headrace.engines import ConfigError
from headrace.engines.config_fields import flat_fields, from_flat, to_flat
from headrace.engines.llm import CacheConfig, EngineConfig, SchedulerConfig


def test_flat_options_reach_the_part_that_has_them():
    config = EngineConfig.of(seed=3, max_num_seqs=8, page_size=32)
    assert config == EngineConfig(
        seed=3, scheduler=SchedulerConfig(max_num_seqs=8), cache=CacheConfig(page_size=32)
    )
    whole = EngineConfig.of(cache=CacheConfig(num_pages=9), max_num_seqs=8)
    assert (whole.cache.num_pages, whole.scheduler.max_num_seqs) == (9, 8)


def test_a_config_made_of_its_flat_options_is_the_same():
    config = EngineConfig.of(deterministic=True, decode_burst=4, enable_prefix_caching=False)
    assert from_flat(EngineConfig, to_flat(config)) == config


def test_an_option_that_no_part_has_is_refused_by_name():
    with pytest.raises(TypeError, match="page_sise"):
        EngineConfig.of(page_sise=16)


def test_no_two_parts_have_options_of_one_name():
    names = [each.field.name for each in flat_fields(EngineConfig)]
    assert len(set(names)) == len(names)
    assert not {field.name for field in dataclasses.fields(EngineConfig)} & {"page_size", "max_num_seqs"}


@pytest.mark.parametrize(
    "options",
    [
        {"page_size": 3},
        {"num_pages": 1},
        {"hbm_utilization": 1.5},
        {"max_num_seqs": 1},
        {"decode_burst": 0},
    ],
)
def test_values_out_of_range_are_refused(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        EngineConfig.of(**options)
