"""The bodies of requests, and the requests of the engine that they ask for."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from headrace.engines.llm import ChatOptions, SamplingParams, TextRequest

MAX_CHOICES = 128
_TAKEN_OVER = (
    "min_tokens",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "suppress_tokens",
    "allowed_token_ids",
    "bad_words",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
)
"""Fields of a body that are fields of SamplingParams."""


class _Strict(BaseModel):
    """Fields that are not known are refused, not ignored."""

    model_config = ConfigDict(extra="forbid")


class StreamOptions(_Strict):
    include_usage: bool = False


class JsonSchema(_Strict):
    name: str = ""
    description: str | None = None
    schema_: dict[str, Any] = Field(default_factory=dict, alias="schema")
    strict: bool | None = None


class ResponseFormat(_Strict):
    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: JsonSchema | None = None


class GenerateBody(_Strict):
    """What chat and completions have in common. Unset fields have the engine's defaults, temperature 1."""

    model: str
    max_tokens: int | None = None
    temperature: float | None = None
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    min_tokens: int | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    suppress_tokens: list[int] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    response_format: ResponseFormat | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None

    def params(self, max_model_len: int, logprobs: int | None) -> SamplingParams:
        """The sampling parameters that the body asks for.

        Raises:
          ValueError: a value is out of range, or cannot be honoured.
        """
        given = {name: getattr(self, name) for name in _TAKEN_OVER if getattr(self, name) is not None}
        limit = self.max_tokens if self.max_tokens is not None else self.default_max_tokens(max_model_len)
        values = {
            "max_tokens": limit,
            "temperature": 1.0 if self.temperature is None else self.temperature,
            "logprobs": logprobs,
            "guided_json": self._guide(),
            **given,
        }
        return SamplingParams.from_dict({name: value for name, value in values.items() if value is not None})

    def default_max_tokens(self, max_model_len: int) -> int:
        """Most new tokens where the body does not say."""
        return max_model_len

    @property
    def num_choices(self) -> int:
        return self.n or 1

    @property
    def wants_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def _guide(self) -> Any:
        if self.response_format is None or self.response_format.type == "text":
            return None
        if self.response_format.type == "json_object":
            return True
        if self.response_format.json_schema is None:
            raise ValueError("response_format json_schema lacks its json_schema")
        return self.response_format.json_schema.schema_


class ChatBody(GenerateBody):
    """Body of POST /v1/chat/completions."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0)
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None

    def requests(self, max_model_len: int) -> list[TextRequest]:
        """A request a choice."""
        body = self if self.max_completion_tokens is None else _with_limit(self, self.max_completion_tokens)
        params = body.params(max_model_len, (self.top_logprobs or 0) if self.logprobs else None)
        chat = ChatOptions(
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
            tools=() if self.tool_choice == "none" else tuple(self.tools or ()),
            template_kwargs=self.chat_template_kwargs,
        )
        prompt = self.messages
        return [
            TextRequest(prompt=prompt, params=own, chat=chat, output_kind="delta")
            for own in _spread(params, self.num_choices)
        ]


class CompletionBody(GenerateBody):
    """Body of POST /v1/completions."""

    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: int | None = Field(default=None, ge=0)
    echo: bool | None = False

    def default_max_tokens(self, max_model_len: int) -> int:
        return 16  # OpenAI's

    def requests(self, max_model_len: int) -> list[TextRequest]:
        """A request a prompt and choice, the choices of a prompt side by side."""
        if self.echo:
            raise ValueError("echo is not supported: put the prompt before the text yourself")
        params = self.params(max_model_len, self.logprobs)
        prompts: list[Any] = (
            list(self.prompt)
            if isinstance(self.prompt, list) and self.prompt and not isinstance(self.prompt[0], int)
            else [self.prompt]
        )
        return [
            TextRequest(prompt=prompt, params=own, output_kind="delta")
            for prompt in prompts
            for own in _spread(params, self.num_choices)
        ]


class CountBody(_Strict):
    """Body of POST /v1/count_tokens: a text or a conversation."""

    model: str
    text: str | None = None
    messages: list[dict[str, Any]] | None = None


def _with_limit(body: ChatBody, limit: int) -> ChatBody:
    return body.model_copy(update={"max_tokens": limit})


def _spread(params: SamplingParams, count: int) -> list[SamplingParams]:
    """The same params for each choice, with seeds of their own where a seed is given."""
    if params.seed is None:
        return [params] * count
    return [params.replace(seed=params.seed + index) for index in range(count)]
