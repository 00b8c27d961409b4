"""What would be submitted to Dataflow: the job's graph, staged files, hints, options; no service is asked."""

from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.portability.api import beam_runner_api_pb2

from headrace.jobs.beam_options import check_beam_args
from headrace.pipelines import GenerateConfig
from headrace.pipelines.generate import GenerateWork
from headrace.pipelines.pipeline import add_run, pipeline_options
from headrace.pipelines.plan import ChunkTask
from headrace.pipelines.run_chunk import Launch
from headrace.pipelines.shards import Shard, ShardFile, cut_chunks

ACCELERATOR = "type:nvidia-l4;count:1;install-nvidia-driver"


def arguments(wheel: Path) -> list[str]:
    return [
        "--runner=DataflowRunner",
        "--project=a-project",
        "--region=europe-west4",
        "--temp_location=gs://bucket/tmp",
        "--staging_location=gs://bucket/staging",
        "--job_name=headrace-test",
        f"--extra_package={wheel}",
        "--sdk_container_image=registry/headrace:0.1.0",
        "--machine_type=g2-standard-8",
        "--disk_size_gb=100",
        "--max_num_workers=4",
        "--number_of_worker_harness_threads=4",
        "--experiments=no_use_multiple_sdk_containers",
        f"--dataflow_service_options=worker_accelerator={ACCELERATOR}",
        f"--resource_hint=accelerator={ACCELERATOR}",
        "--resource_hint=min_ram=16GB",
        "--dry_run=True",
        "--no_auth",
    ]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("google.cloud.dataflow", reason="needs the extra gcp")
    from apache_beam.runners.dataflow.internal import apiclient

    wheel = tmp_path / "headrace-0.1.0-cp311-cp311-linux_x86_64.whl"
    wheel.write_bytes(b"wheel")
    beam_args = arguments(wheel)
    check_beam_args(beam_args)
    config = GenerateConfig(
        inputs=("gs://bucket/in/*.jsonl",), output="gs://bucket/out", model="gs://bucket/m"
    )
    shard = Shard(index=0, is_table=True, files=(ShardFile(source="a.jsonl", size=10),), table_rows=1000)
    chunks = cut_chunks([shard], rows_per_part=500, run_fingerprint="run")
    tasks = [ChunkTask(chunk=chunk, paths=("gs://bucket/in/a.jsonl",)) for chunk in chunks]
    pipeline = beam.Pipeline(options=pipeline_options(beam_args))
    add_run(pipeline, GenerateWork(config=config), Launch(output="gs://bucket/out", is_strict=True), tasks)
    result = pipeline.run()
    client = apiclient.DataflowApplicationClient(result.job.options)
    staged: list[str] = []

    def stage(location: str, name: str, stream, *rest, **more) -> None:
        staged.append(f"{location}/{name}")

    # The two places where the client would reach the service: its storage and its jobs.
    monkeypatch.setattr(client, "stage_file_with_retry", stage)
    monkeypatch.setattr(
        client, "_stage_resources", lambda *_: staged.extend(artifact_names(result.job)) or []
    )
    monkeypatch.setattr(client, "submit_job_description", lambda submitted: submitted)
    submitted = client.create_job(result.job)
    submitted.staged = staged
    return submitted


def artifact_names(job: Any) -> list[str]:
    names = []
    for environment in job.proto_pipeline.components.environments.values():
        for artifact in environment.dependencies:
            role = beam_runner_api_pb2.ArtifactStagingToRolePayload.FromString(artifact.role_payload)
            names.append(role.staged_name)
    return names


def test_the_graph_has_the_chunks_and_the_dofn_and_no_row(job: Any):
    components = job.proto_pipeline.components
    names = {transform.unique_name for transform in components.transforms.values()}
    assert {"Chunks", "RunChunk", "Spread"} <= {name.split("/")[0] for name in names}
    assert len(job.proto_pipeline.SerializeToString()) < 1 << 20


def test_the_wheel_is_staged_and_the_image_is_ours(job: Any):
    assert "headrace-0.1.0-cp311-cp311-linux_x86_64.whl" in job.staged
    assert any(name.endswith("pipeline.pb") for name in job.staged)
    images = {
        beam_runner_api_pb2.DockerPayload.FromString(each.payload).container_image
        for each in job.proto_pipeline.components.environments.values()
    }
    assert images == {"registry/headrace:0.1.0"}


def test_hints_and_options_reach_the_service(job: Any):
    hints = {
        urn: value
        for each in job.proto_pipeline.components.environments.values()
        for urn, value in each.resource_hints.items()
    }
    assert hints["beam:resources:accelerator:v1"] == ACCELERATOR.encode()
    assert hints["beam:resources:min_ram_bytes:v1"] == b"16000000000"
    environment = job.proto.environment
    assert "no_use_multiple_sdk_containers" in environment.experiments
    assert f"worker_accelerator={ACCELERATOR}" in environment.service_options
    pool = environment.worker_pools[0]
    assert (pool.machine_type, pool.disk_size_gb) == ("g2-standard-8", 100)
    assert pool.autoscaling_settings.max_num_workers == 4
    assert '"number_of_worker_harness_threads": 4' in job.json()
