"""Which devices the replicas, stages and shards of a model get (four devices, see tests/conftest.py)."""

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from headrace.engines import ConfigError
from headrace.engines.mesh import ParallelConfig, choose_meshes, count_replicas
from headrace.engines.partition import check_spec, find_spec, split_array


def numbers(**options) -> list[list[list[int]]]:
    """Device numbers of each replica, of each of its stages."""
    return [
        [[device.id for device in mesh.devices.flat] for mesh in meshes or ()]
        for meshes in choose_meshes(ParallelConfig(**options))
    ]


def test_stages_and_shards_of_a_replica_are_neighbours():
    assert numbers(tensor_parallel_size=2, pipeline_parallel_size=2) == [[[0, 1], [2, 3]]]
    assert numbers(tensor_parallel_size=2, data_parallel_size=2) == [[[0, 1]], [[2, 3]]]
    assert numbers(pipeline_parallel_size=3) == [[[0], [1], [2]]]


def test_data_parallel_is_what_the_named_devices_have_room_for():
    assert numbers(tensor_parallel_size=2, devices="all") == [[[0, 1]], [[2, 3]]]
    assert numbers(devices="3,1-2") == [[[3]], [[1]], [[2]]]
    assert count_replicas(ParallelConfig(devices="0-3", tensor_parallel_size=4)) == 1
    assert numbers(tensor_parallel_size=2) == [[[0, 1]]]


def test_without_sizes_everything_is_on_the_default_device():
    assert choose_meshes(ParallelConfig()) == [None]
    assert choose_meshes(ParallelConfig(data_parallel_size=1)) == [None]
    assert count_replicas(ParallelConfig()) == 1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"tensor_parallel_size": 5}, "JAX sees 4"),
        ({"devices": "2-7"}, "JAX sees 4"),
        ({"devices": "0-2", "tensor_parallel_size": 2}, "name a multiple of 2"),
        ({"devices": "all", "data_parallel_size": 3}, "leave data_parallel_size out"),
        ({"devices": "first"}, "give all, or numbers"),
        ({"devices": "0,0-1"}, "name each device once"),
        ({"tensor_parallel_size": 0}, "wanted at least 1"),
        ({"pipeline_layers": (2, 2)}, "give 1 numbers"),
    ],
)
def test_devices_that_cannot_be_had_are_refused(options, told):
    with pytest.raises(ConfigError, match=told):
        choose_meshes(ParallelConfig(**options))


def test_layers_are_cut_as_evenly_as_can_be_or_as_they_are_told():
    assert ParallelConfig(pipeline_parallel_size=3).stage_layers(7) == (2, 2, 3)
    assert ParallelConfig(pipeline_parallel_size=2, pipeline_layers=(5, 2)).stage_layers(7) == (5, 2)
    with pytest.raises(ConfigError, match="the model has 6 layers"):
        ParallelConfig(pipeline_parallel_size=2, pipeline_layers=(5, 2)).stage_layers(6)
    with pytest.raises(ConfigError, match="give at most so many"):
        ParallelConfig(pipeline_parallel_size=3).stage_layers(2)


def test_the_first_rule_that_matches_says_how_an_array_is_split():
    rules = [(r"mlp\.down", PartitionSpec("tensor")), (r"mlp", PartitionSpec(None, "tensor"))]
    assert find_spec(rules, "layers.3.mlp.down.kernel") == PartitionSpec("tensor")
    assert find_spec(rules, "layers.3.mlp.up.kernel") == PartitionSpec(None, "tensor")
    assert find_spec(rules, "norm.scale") == PartitionSpec()


def test_each_device_is_given_its_own_slice_alone():
    (mesh,) = choose_meshes(ParallelConfig(tensor_parallel_size=4))[0] or ()
    values = np.arange(32, dtype=np.float32).reshape(4, 8)
    split = split_array(values, mesh, PartitionSpec(None, "tensor"))
    for number, shard in enumerate(sorted(split.addressable_shards, key=lambda each: each.device.id)):
        assert shard.device == jax.devices()[number]
        assert np.array_equal(shard.data, values[:, 2 * number : 2 * number + 2])


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (PartitionSpec("tensor"), "which are not even"),
        (PartitionSpec("model"), "wanted one of 'tensor'"),
        (PartitionSpec(None, None, "tensor"), "it has 2"),
    ],
)
def test_partitions_that_do_not_fit_an_array_are_refused(spec, told):
    (mesh,) = choose_meshes(ParallelConfig(tensor_parallel_size=2))[0] or ()
    with pytest.raises(ConfigError, match=told):
        check_spec(spec, "head", (5, 4), mesh)
