"""A job in which some prompts end the process, hang it or end the engine; imported by name in workers."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from headrace.engines import EngineError
from headrace.engines.llm import LLM, RequestOutput
from headrace.pipelines import GenerateConfig, Progress, RunSummary
from headrace.pipelines.generate import GenerateWork
from headrace.pipelines.run import run_work
from headrace.pipelines.work import WorkRow


class PoisonWork(GenerateWork):
    """The job, with poison in it."""

    def submit(self, engine: LLM, row: WorkRow) -> "Future[RequestOutput]":
        if "crash" in str(row.payload):
            os.abort()
        if "kill" in str(row.payload):
            os.kill(os.getpid(), 9)
        if "hang" in str(row.payload):
            return Future()
        if "break" in str(row.payload):
            engine.close()  # what is in flight gets EngineError, as where the engine fails
            future: Future[RequestOutput] = Future()
            future.set_exception(EngineError("the engine failed: a test wanted it"))
            return future
        return super().submit(engine, row)


def run_poisoned(
    config: GenerateConfig,
    beam_args: Sequence[str] = (),
    on_progress: Callable[[Progress], None] | None = None,
) -> RunSummary:
    """What a supervisor calls in place of `run_generate`."""
    return run_work(PoisonWork(config=config), beam_args, on_progress)


def die(*_: object) -> None:
    """A run whose process dies before it does anything."""
    os._exit(3)
