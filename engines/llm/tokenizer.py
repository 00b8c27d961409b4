"""Prompts and conversations to tokens, tokens to text."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.engines.checkpoints import Checkpoint, open_checkpoint
from headrace.engines.checkpoints.fast_tokenizer import FastTokenizer, wrap_tokenizer
from headrace.engines.checkpoints.tokenizer_files import read_huggingface_tokenizer
from headrace.engines.errors import ModelError, RequestError
from headrace.engines.llm.conversation import ChatOptions, Message, normalize_messages
from headrace.engines.llm.detokenizer import Detokenizer, Vocabulary
from headrace.engines.llm.engine_config import EngineConfig
from headrace.engines.llm.sampling_params import SamplingParams


class PromptTokenizer:
    """Encodes prompts and decodes outputs of one model. Its methods may be called from any thread.

    `tokenizer` takes the place of the checkpoint's own: a directory with a tokenizer.json, a model spec, or
    an object of transformers (fast) or tokenizers. `chat_template`, Jinja text or the path of a file with
    it, takes the place of the tokenizer's.

    Raises:
      ModelError: there is no tokenizer, or one that cannot be used.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: EngineConfig,
        tokenizer: Any = None,
        chat_template: str | Path | None = None,
    ) -> None:
        self._tokenizer = checkpoint.fast_tokenizer() if tokenizer is None else _open_tokenizer(tokenizer)
        # The tokenizer of transformers changes its own state with each call; the one below it does not.
        self._backend = self._tokenizer.backend
        self._vocabulary = Vocabulary(self._backend)
        self._bos_token_id = config.bos_token_id
        self._chat_template = _read_template(chat_template)
        self.eos_token_ids = config.eos_token_ids or _find_eos(checkpoint, self._tokenizer)

    @property
    def processor(self) -> Any:
        """The tokenizer of transformers below."""
        return self._tokenizer.wrapped

    @property
    def chat_template(self) -> str | dict[str, str] | None:
        """The template that is in force, or several by their names."""
        return self._chat_template or self._tokenizer.chat_template

    @property
    def has_chat_template(self) -> bool:
        return bool(self.chat_template)

    def encode(self, text: str, add_special_tokens: bool | None = None) -> list[int]:
        """Tokens of a plain prompt, begun as the model's tokenizer begins a text, unless told otherwise."""
        is_begun = add_special_tokens in (None, True)
        if self._bos_token_id is None or not is_begun:
            return self._encode(text, add_special_tokens=is_begun)
        return [self._bos_token_id, *self._encode(text, add_special_tokens=False)]

    @property
    def vocabulary(self) -> dict[str, int]:
        """Ids of the tokens by their spelling, without those that were added to the vocabulary."""
        return self._backend.get_vocab(with_added_tokens=False)

    def to_json(self) -> str:
        """The tokenizer in the form of a tokenizer.json."""
        return self._backend.to_str()

    def encode_part(self, text: str) -> list[int]:
        """Tokens of a piece of text, without any that begin or end a text."""
        return self._encode(text, add_special_tokens=False)

    def encode_chat(
        self, messages: Sequence[Message], options: ChatOptions, add_special_tokens: bool | None = None
    ) -> list[int]:
        """Tokens of a conversation under the model's chat template.

        Raises:
          RequestError: the model has no template, or the template does not take these messages.
        """
        text = self.render_chat(messages, options)
        # The template writes the special tokens itself: adding them again would double the first one.
        return self._encode(text, add_special_tokens=add_special_tokens is True)

    def render_chat(self, messages: Sequence[Message], options: ChatOptions) -> str:
        """The text of a conversation under the model's chat template."""
        template = self._find_template(options)
        normal = normalize_messages(messages, template)
        try:
            rendered = self._tokenizer.wrapped.apply_chat_template(
                normal,
                tools=[dict(tool) for tool in options.tools] or None,
                chat_template=template,
                tokenize=False,
                add_generation_prompt=options.add_generation_prompt,
                continue_final_message=options.continue_final_message,
                **(options.template_kwargs or {}),
            )
        except Exception as error:
            # Templates are programs: they raise jinja2 errors, or TypeError and KeyError of their own.
            raise RequestError(
                f"the chat template refused the messages: {type(error).__name__}: {error}", kind="template"
            ) from error
        return str(rendered)

    def _find_template(self, options: ChatOptions) -> str:
        """The text of the template that a conversation is rendered with."""
        own = self._tokenizer.chat_template
        named = own if isinstance(own, dict) else {"default": own}
        wanted = options.chat_template or self._chat_template
        if wanted is None:
            wanted = "tool_use" if options.tools and "tool_use" in named else "default"
        template = named.get(wanted, None if wanted == "default" else wanted)
        if not template:
            raise RequestError("the model has no chat template: send plain prompts", kind="template")
        return template

    def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError("the prompt is not valid Unicode text", kind="prompt_type") from error
        return self._backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of output tokens."""
        return self._vocabulary.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def detokenizer(self, *, skip_special_tokens: bool = True) -> Detokenizer:
        """What turns one row's output tokens into text as they come."""
        return self._vocabulary.detokenizer(skip_special_tokens=skip_special_tokens)

    def stop_ids(self, params: SamplingParams) -> tuple[int, ...]:
        """Tokens that end a text."""
        eos = () if params.ignore_eos else self.eos_token_ids
        return tuple(dict.fromkeys((*eos, *params.stop_token_ids)))


def _open_tokenizer(tokenizer: Any) -> FastTokenizer:
    """The tokenizer of a directory, a model spec or an object."""
    import tokenizers

    if isinstance(tokenizer, tokenizers.Tokenizer):
        return FastTokenizer.of(wrap_tokenizer(tokenizer, {}))
    if isinstance(tokenizer, str | Path):
        if Path(tokenizer).is_dir():
            return FastTokenizer.of(read_huggingface_tokenizer(Path(tokenizer)))
        return open_checkpoint(str(tokenizer)).fast_tokenizer()
    if not hasattr(tokenizer, "backend_tokenizer"):
        raise ModelError(
            f"a tokenizer of class {type(tokenizer).__name__} is of no use: give a fast one of "
            "transformers, one of tokenizers, or the path of a directory with a tokenizer.json"
        )
    return FastTokenizer.of(tokenizer)


def _read_template(template: str | Path | None) -> str | None:
    if isinstance(template, str) and ("{" in template or "\n" in template):
        return template
    if template is None or not Path(template).is_file():
        return None if template is None else str(template)
    return Path(template).read_text(encoding="utf-8")


def _find_eos(checkpoint: Checkpoint, tokenizer: FastTokenizer) -> tuple[int, ...]:
    for source in (checkpoint.generation_config, checkpoint.config):
        found = source.get("eos_token_id")
        if found is not None:
            return tuple(found) if isinstance(found, (list, tuple)) else (int(found),)
    if tokenizer.eos_token_id is None:
        raise ModelError("the model names no end-of-text token: set eos_token_ids")
    return (tokenizer.eos_token_id,)
