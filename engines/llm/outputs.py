"""What a row gives back: where its text ends, and its outputs while it grows and at the end."""

from dataclasses import replace
from typing import NamedTuple

from headrace.engines.llm.batch import Sampled
from headrace.engines.llm.logprobs import LogprobTrace, TokenLogprobs
from headrace.engines.llm.output_text import OutputText
from headrace.engines.llm.request import CompletionOutput, FinishReason, RequestOutput, Sequence
from headrace.engines.llm.sampling_params import SamplingParams
from headrace.engines.llm.tokenizer import PromptTokenizer


class Ending(NamedTuple):
    """How a row ended."""

    num_outputs: int
    """Tokens that belong to it; those that the device made beyond a stop string do not."""
    finish_reason: FinishReason
    stop_reason: int | str | None = None


class OutputWriter:
    """Makes the outputs of an engine's rows."""

    def __init__(self, tokenizer: PromptTokenizer) -> None:
        self._tokenizer = tokenizer

    def stop_ids(self, sequence: Sequence) -> tuple[int, ...]:
        """Tokens that end the row."""
        return self._tokenizer.stop_ids(sequence.request.params)

    def find_ending(self, sequence: Sequence, num_before: int) -> Ending | None:
        """How the row ends, if it does; `num_before` of its outputs were there before the last dispatch."""
        if sequence.error is not None:
            return Ending(sequence.num_outputs, "stop")
        params = sequence.request.params
        if sequence.text is None and (params.stop or sequence.request.output_kind != "final"):
            sequence.text = self._new_text(sequence)
        last = sequence.tokens[-1]
        is_stopped = sequence.num_outputs >= max(params.min_tokens, 1) and last in self.stop_ids(sequence)
        if sequence.text is not None:
            new = sequence.tokens[sequence.num_prompt + num_before :]
            if is_stopped and not params.include_stop_str_in_output:
                new.pop()
            for count, token in enumerate(new, num_before + 1):
                if sequence.text.push(token, may_stop=count >= params.min_tokens):
                    return Ending(count, "stop", sequence.text.stop_reason)
        if is_stopped:
            return Ending(sequence.num_outputs, "stop", last if last in params.stop_token_ids else None)
        return Ending(sequence.num_outputs, "length") if sequence.num_remaining == 0 else None

    def finished(self, sequence: Sequence, ending: Ending, now_s: float) -> RequestOutput:
        """The last output of a row."""
        if sequence.error is not None:
            request = sequence.request
            return RequestOutput(
                request_id=request.request_id,
                prompt_token_ids=request.prompt_token_ids,
                error=sequence.error,
                quality_flags=request.quality_flags,
            )
        if sequence.request.output_kind == "delta":
            assert sequence.text is not None
            sequence.text.finish()
            text, first = sequence.text.read(), sequence.num_read
        else:
            text, first = self._whole_text(sequence, ending), 0
        return self._output(sequence, text, slice(first, ending.num_outputs), ending, now_s)

    def joined(self, outputs: list[RequestOutput], params: SamplingParams) -> RequestOutput:
        """One output of those of all rows of a request: the n best of them by mean log-probability."""
        last = max(outputs, key=lambda output: output.latency_s or 0.0)
        texts = [output.outputs[0] for output in outputs]
        texts.sort(key=lambda text: (-text.cumulative_logprob / max(len(text.token_ids), 1), text.index))
        if params.use_beam_search or params.num_samples == params.n:
            texts.sort(key=lambda text: text.index)
        kept = tuple(replace(text, index=index) for index, text in enumerate(texts[: params.n]))
        first = min(outputs, key=lambda output: output.outputs[0].index)
        return replace(first, outputs=kept, latency_s=last.latency_s)

    def growing(self, sequence: Sequence) -> RequestOutput | None:
        """An output of a row that goes on, where such are asked for."""
        kind = sequence.request.output_kind
        if kind == "final":
            return None
        assert sequence.text is not None
        if kind == "cumulative":
            text, first = sequence.text.shown(), 0
        else:
            text, first = sequence.text.read(), sequence.num_read
            sequence.num_read = sequence.num_outputs
        return self._output(sequence, text, slice(first, sequence.num_outputs), None, None)

    def _new_text(self, sequence: Sequence) -> OutputText:
        params = sequence.request.params
        detokenizer = self._tokenizer.detokenizer(skip_special_tokens=params.skip_special_tokens)
        return OutputText(detokenizer, params.stop, include_stop=params.include_stop_str_in_output)

    def _whole_text(self, sequence: Sequence, ending: Ending) -> str:
        if sequence.text is not None:
            return sequence.text.finish()
        params = sequence.request.params
        token_ids = sequence.output_ids
        if ending.finish_reason == "stop" and not params.include_stop_str_in_output:
            token_ids.pop()
        return self._tokenizer.decode(token_ids, skip_special_tokens=params.skip_special_tokens)

    def _output(
        self, sequence: Sequence, text: str, shown: slice, ending: Ending | None, now_s: float | None
    ) -> RequestOutput:
        """An output of the row's tokens in `shown`."""
        request, trace = sequence.request, sequence.trace
        assert sequence.first_scheduled_s is not None
        assert sequence.first_token_s is not None
        completion = CompletionOutput(
            index=sequence.sample,
            text=text,
            token_ids=tuple(sequence.output_ids[shown]),
            num_tokens=shown.stop,
            finish_reason=ending.finish_reason if ending else None,
            stop_reason=ending.stop_reason if ending else None,
            cumulative_logprob=sequence.logprob,
            logprobs=None if trace is None else trace.read(shown.start, shown.stop, self._decode_one),
            seed=None if request.params.is_greedy else sequence.seed,
        )
        return RequestOutput(
            request_id=request.request_id,
            prompt_token_ids=request.prompt_token_ids,
            prompt_logprobs=self._prompt_logprobs(sequence) if shown.start == 0 else None,
            outputs=(completion,),
            finished=ending is not None,
            metadata=request.metadata,
            quality_flags=request.quality_flags,
            cached_tokens=sequence.num_cached,
            queue_s=sequence.first_scheduled_s - request.submit_time_s,
            ttft_s=sequence.first_token_s - request.submit_time_s,
            latency_s=None if now_s is None else now_s - request.submit_time_s,
        )

    def _prompt_logprobs(self, sequence: Sequence) -> tuple[TokenLogprobs | None, ...] | None:
        trace = sequence.prompt_trace
        return None if trace is None else trace.read_all(self._decode_one)

    def _decode_one(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)


def trace_logprobs(sequence: Sequence, sampled: Sampled, row: int, made: slice) -> None:
    """Keeps the log-probabilities of the tokens `made` new for a row, where they are asked for."""
    num_top = sequence.request.params.logprobs
    if num_top is None:
        return
    assert sampled.top is not None
    if sequence.trace is None:
        sequence.trace = LogprobTrace(num_top)
    for step in range(made.start, made.stop):
        sequence.trace.add(
            int(sampled.tokens[row, step]),
            float(sampled.logprobs[row, step]),
            int(sampled.top.ranks[row, step]),
            (sampled.top.tokens[row, step], sampled.top.logprobs[row, step]),
        )
