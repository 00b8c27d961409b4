"""A tokenizer for those who encode and decode alone: transformers is imported for what needs it."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tokenizers
    import transformers


class FastTokenizer:
    """A tokenizer of the `tokenizers` package, and the one of transformers around it.

    Importing transformers takes about as long as making the weights of a small model ready, and plain
    prompts have no use for it.
    """

    def __init__(
        self,
        backend: "tokenizers.Tokenizer",
        wrap: "Callable[[], transformers.PreTrainedTokenizerFast]",
        *,
        chat_template: str | dict[str, str] | None = None,
        eos_token_id: int | None = None,
        decodes_only: bool = False,
    ) -> None:
        self.backend = backend
        """Encodes with the tokens that begin and end a text; may be used from any thread."""
        self.chat_template = chat_template
        """Jinja text, or several by name."""
        self.eos_token_id = eos_token_id
        """The token that ends a text."""
        self.decodes_only = decodes_only
        """Whether the model came without the rules to encode."""
        self._wrap = functools.cache(wrap)

    @property
    def added_tokens(self) -> dict[str, int]:
        """Ids of the tokens beside the vocabulary, by their spelling."""
        return {each.content: token for token, each in self.backend.get_added_tokens_decoder().items()}

    @property
    def wrapped(self) -> "transformers.PreTrainedTokenizerFast":
        """The same tokenizer as transformers has it."""
        return self._wrap()

    @classmethod
    def of(cls, wrapped: Any) -> "FastTokenizer":
        """Of a fast tokenizer of transformers."""
        return cls(
            wrapped.backend_tokenizer,
            lambda: wrapped,
            chat_template=wrapped.chat_template,
            eos_token_id=wrapped.eos_token_id,
        )

    @classmethod
    def of_backend(cls, backend: "tokenizers.Tokenizer", arguments: dict[str, Any]) -> "FastTokenizer":
        """Of a whole tokenizer, special tokens and ends of a text included.

        `arguments` are those of transformers' class: the names of special tokens, and the chat template.
        """
        eos_token = arguments.get("eos_token")
        return cls(
            backend,
            lambda: wrap_tokenizer(backend, arguments),
            chat_template=arguments.get("chat_template"),
            eos_token_id=None if eos_token is None else backend.token_to_id(str(eos_token)),
        )


def wrap_tokenizer(
    tokenizer: "tokenizers.Tokenizer", arguments: dict[str, Any]
) -> "transformers.PreTrainedTokenizerFast":
    """A transformers tokenizer around one of the `tokenizers` package."""
    from transformers import PreTrainedTokenizerFast

    defaults = {"clean_up_tokenization_spaces": False}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **(defaults | arguments))
