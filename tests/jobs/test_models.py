"""`headrace models`: the list of what can be run."""

from headrace.engines.checkpoints import DEMO_MODELS
from headrace.engines.llm.families import FAMILIES, ROPE_KINDS
from headrace.jobs.cli import main


def test_every_family_rope_and_demo_model_is_listed(capsys):
    assert main(["models"]) == 0
    listed = capsys.readouterr().out.split()
    words = {word.strip(",") for word in listed}
    assert words >= {*FAMILIES, *ROPE_KINDS, *DEMO_MODELS, "gemma3"}
