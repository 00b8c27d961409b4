"""`headrace models`: which models can be run, and in which layouts."""

from collections.abc import Mapping, Sequence

from headrace.engines.checkpoints import DEMO_MODELS, GGUF_FAMILIES
from headrace.engines.llm.families import FAMILIES, ROPE_KINDS
from headrace.jobs.options import Parser

DESCRIPTION = "Lists the models that can be run, the layouts that are read, and the demo models."
LAYOUTS = {
    "Hugging Face": "config.json and safetensors, one file or sharded; from a hub, a directory or a URL",
    "faster-whisper": "model.bin of CTranslate2 (transcribe)",
    "artifact": "a directory that `headrace compile` wrote",
    "GGUF": f"one .gguf file (generate): {', '.join(GGUF_FAMILIES)}",
}


def main(argv: Sequence[str]) -> int:
    Parser(prog="headrace models", description=DESCRIPTION, allow_abbrev=False).parse_args(list(argv))
    print("\n\n".join(sections()))
    return 0


def sections() -> list[str]:
    """The parts of the list, each under a heading."""
    families = {name: family.title for name, family in FAMILIES.items()}
    demos = dict.fromkeys(DEMO_MODELS, "answers prompts")
    demos |= {name: "transcribes speech" for name in DEMO_MODELS if "whisper" in name}
    return [
        _section("text models, by model_type (generate)", families),
        _section("position embeddings", {"rotary": ", ".join(ROPE_KINDS), "learned": "GPT-2"}),
        _section("speech models (transcribe)", {"whisper": "Whisper tiny to large-v3, turbo"}),
        _section("layouts", LAYOUTS),
        _section("demo models, small and real", demos),
    ]


def _section(heading: str, lines: Mapping[str, str]) -> str:
    width = max(map(len, lines))
    return "\n".join([heading, *(f"  {name:<{width}}  {text}" for name, text in lines.items())])
