"""Prompts and conversations to tokens, tokens to text."""

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.engines.checkpoints import Checkpoint
from headrace.engines.errors import ModelError, RequestError
from headrace.engines.llm.detokenizer import Detokenizer, Vocabulary
from headrace.engines.llm.engine_config import EngineConfig, Overlong
from headrace.engines.llm.sampling_params import SamplingParams

Message = Mapping[str, Any]


class PromptTokenizer:
    """Encodes prompts and decodes outputs of one model. Its methods may be called from any thread."""

    def __init__(self, checkpoint: Checkpoint, config: EngineConfig) -> None:
        self._tokenizer = checkpoint.tokenizer()
        # The tokenizer of transformers changes its own state with each call; the one below it does not.
        self._backend = self._tokenizer.backend_tokenizer
        self._vocabulary = Vocabulary(self._backend)
        self._bos_token_id = config.bos_token_id
        self.eos_token_ids = config.eos_token_ids or _find_eos(checkpoint, self._tokenizer)

    @property
    def has_chat_template(self) -> bool:
        return self._tokenizer.chat_template is not None

    def encode(self, text: str) -> list[int]:
        """Tokens of a plain prompt, begun as the model's tokenizer begins a text."""
        if self._bos_token_id is None:
            return self._encode(text, add_special_tokens=True)
        return [self._bos_token_id, *self._encode(text, add_special_tokens=False)]

    def encode_part(self, text: str) -> list[int]:
        """Tokens of a piece of text, without any that begin or end a text."""
        return self._encode(text, add_special_tokens=False)

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Tokens of a conversation under the model's chat template, up to where the answer begins.

        Raises:
          RequestError: the model has no template, or the template does not take these messages.
        """
        text = self.render_chat(messages)
        # The template writes the special tokens itself: adding them again would double the first one.
        return self._encode(text, add_special_tokens=False)

    def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError("the prompt is not valid Unicode text", kind="prompt_type") from error
        return self._backend.encode(text, add_special_tokens=add_special_tokens).ids

    def render_chat(self, messages: Sequence[Message]) -> str:
        """The text of a conversation under the model's chat template."""
        if not self.has_chat_template:
            raise RequestError("the model has no chat template: send plain prompts", kind="template")
        _check_messages(messages)
        try:
            rendered = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages], tokenize=False, add_generation_prompt=True
            )
        except Exception as error:
            # Templates are programs: they raise jinja2 errors, or TypeError and KeyError of their own.
            raise RequestError(
                f"the chat template refused the messages: {type(error).__name__}: {error}", kind="template"
            ) from error
        return str(rendered)

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


def fit_prompt(token_ids: list[int], max_tokens: int, overlong: Overlong) -> tuple[list[int], bool]:
    """The prompt, cut to `max_tokens` where it is longer and a cut is wanted, and whether it was cut.

    A prompt that is too long and not to be cut comes back whole: the scheduler refuses it.
    """
    if len(token_ids) <= max_tokens or overlong == "error":
        return token_ids, False
    kept = token_ids[-max_tokens:] if overlong == "truncate-left" else token_ids[:max_tokens]
    return kept, True


def _check_messages(messages: Sequence[Message]) -> None:
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence) or not messages:
        raise RequestError("messages must be a non-empty list of {role, content}", kind="template")
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise RequestError("each message must be a mapping with a role and a content", kind="template")


def _find_eos(checkpoint: Checkpoint, tokenizer: Any) -> tuple[int, ...]:
    for source in (checkpoint.generation_config, checkpoint.config):
        found = source.get("eos_token_id")
        if found is not None:
            return tuple(found) if isinstance(found, (list, tuple)) else (int(found),)
    if tokenizer.eos_token_id is None:
        raise ModelError("the model names no end-of-text token: set eos_token_ids")
    return (int(tokenizer.eos_token_id),)
