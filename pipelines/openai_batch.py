"""OpenAI's batch files: a request a line, its body as the API takes it; answers as output and error files."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pyarrow as pa
from pydantic import ValidationError

from headrace.engines import RequestError, RowError
from headrace.engines.llm import LLM, RequestOutput, TextRequest
from headrace.engines.openai import Answer, ChatBody, CompletionBody, Piece
from headrace.pipelines.commit import scratch_directory
from headrace.pipelines.committed import result_tables
from headrace.pipelines.config import GenerateConfig
from headrace.pipelines.files import join, make_directory, write_whole
from headrace.pipelines.generate import GenerateWork
from headrace.pipelines.scans import TableRow, TableScan
from headrace.pipelines.schemas import generate_schema
from headrace.pipelines.work import ResultRow, WorkRow, as_text, kept_values, require_columns, row_key

BODIES: Mapping[str, type[ChatBody] | type[CompletionBody]] = {
    "/v1/chat/completions": ChatBody,
    "/v1/completions": CompletionBody,
}
COLUMNS = ("custom_id", "method", "url", "body")
DIRECTORY = "__batch"
"""Below the output; readers of the results pass over it."""
RESPONSE = pa.field("response", pa.string())
"""The body of the answer, JSON; null where there is an error."""

# The length of any context: what a body asks for is checked before the model is loaded.
_ANY_LENGTH = 1 << 30


class Line(NamedTuple):
    """What a line of a batch file asks for: plain data, so that equal lines are equal work."""

    url: str
    body: Mapping[str, Any]

    def parse(self) -> ChatBody | CompletionBody:
        """The body, checked.

        Raises:
          RequestError: it is not what the API takes.
        """
        try:
            return BODIES[self.url].model_validate(self.body)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            raise RequestError(f"body: {place}: {first['msg']}", kind="invalid_body") from error


def generate_work(config: GenerateConfig) -> GenerateWork:
    """The job that continues prompts, for the format of its input."""
    if config.format == "openai-batch":
        return OpenAIBatchWork(config=replace(config, id_column=COLUMNS[0]))
    return GenerateWork(config=config)


@dataclass(frozen=True, kw_only=True)
class OpenAIBatchWork(GenerateWork):
    """Lines of batch files, one result each; their bodies alone say how texts are made."""

    @property
    def schema(self) -> pa.Schema:
        return generate_schema((), self.kept).append(RESPONSE)

    def content_columns(self, source: str, columns: Sequence[str]) -> tuple[str, ...]:
        require_columns(COLUMNS, source, columns)
        return COLUMNS

    def work_columns(self, scan: TableScan) -> tuple[str, ...]:
        return ("body",)

    def load(self) -> LLM:
        return self.load_engine()

    def prepare(self, row: TableRow, path: str, source: str, content: Sequence[str]) -> WorkRow:
        key = row_key(self.config, source, row.row, row.values)
        if row.error is not None:
            return WorkRow(key=key, error=row.error)
        shown = kept_values(self.kept, generate_schema(), row.values)
        try:
            line = read_line(row.values)
            prompt = as_text(text_request(line, _ANY_LENGTH).prompt)
        except RequestError as error:
            return WorkRow(key=key, shown=shown, error=RowError.of(error))
        return WorkRow(key=key, payload=line._asdict(), shown={"prompt": prompt, **shown})

    def submit(self, engine: LLM, row: WorkRow) -> "Future[RequestOutput]":
        request = text_request(Line(**row.payload), engine.max_model_len)
        return engine.submit_request(replace(request, request_id=row.request_id))

    def finish(self, row: WorkRow, output: RequestOutput) -> ResultRow:
        result = super().finish(row, output)
        if output.error is not None:
            return result
        response = json.dumps(answer_body(Line(**row.payload), output, _name(row)), ensure_ascii=False)
        return result._replace(values={**result.values, RESPONSE.name: response})

    def write_beside(self, output: str) -> None:
        """The output file and the error file."""
        done, failed = bytearray(), bytearray()
        for table in result_tables(output, ("id", "source", "row", "error", RESPONSE.name)):
            for values in table.to_pylist():
                line = json.dumps(batch_line(values), ensure_ascii=False).encode() + b"\n"
                (done if values["error"] is None else failed).extend(line)
        directory = join(output, DIRECTORY)
        make_directory(directory)
        for name, content in (("output.jsonl", done), ("errors.jsonl", failed)):
            write_whole(join(directory, name), bytes(content), scratch=scratch_directory(output))


def read_line(values: Mapping[str, Any]) -> Line:
    """What a line asks for.

    Raises:
      RequestError: a field is missing, or is not one that can be served.
    """
    missing = [name for name in COLUMNS if values.get(name) is None]
    if missing:
        raise RequestError(f"the line lacks {', '.join(missing)}", kind="missing_value")
    method, url, body = values["method"], values["url"], values["body"]
    if method != "POST" or url not in BODIES:
        wanted = " or ".join(BODIES)
        raise RequestError(f"{method} {url} is not served: POST {wanted} is", kind="invalid_url")
    if not isinstance(body, Mapping):
        raise RequestError(f"body is a {type(body).__name__}: an object is wanted", kind="invalid_body")
    # A column of structs gives every body every field, null where it was not set.
    return Line(url, {name: value for name, value in body.items() if value is not None})


def text_request(line: Line, max_model_len: int) -> TextRequest:
    """The engine's request for a line; its choices are samples of one prompt.

    Raises:
      RequestError: the body asks for what cannot be honoured.
    """
    body = line.parse()
    if body.stream:
        raise RequestError("body: a line of a batch is not streamed: leave out stream", kind="invalid_body")
    try:
        requests = body.requests(max_model_len)
        if len(requests) != body.num_choices:
            raise RequestError("body: give one prompt a line", kind="invalid_body")
        params = requests[0].params.replace(n=body.num_choices)
    except RequestError:
        raise
    except ValueError as error:
        raise RequestError(f"body: {' '.join(str(error).split())}", kind="invalid_body") from error
    return replace(requests[0], params=params, output_kind="final")


def answer_body(line: Line, output: RequestOutput, name: str) -> dict[str, Any]:
    """The answer in the API's JSON."""
    body = line.parse()
    num_top = (body.top_logprobs or 0) if isinstance(body, ChatBody) else 0
    is_chat = isinstance(body, ChatBody)
    answer = Answer(body.model, len(output.outputs), is_chat=is_chat, num_top=num_top, name=name)
    for index, completion in enumerate(output.outputs):
        answer.add(Piece(index, replace(output, outputs=(completion,))))
    return answer.whole()


def batch_line(values: Mapping[str, Any]) -> dict[str, Any]:
    """A line of the output file or, with status 400, of the error file."""
    place = f"{values['source']}#{values['row']}"
    name = _hash(place)
    if values["error"] is None:
        status, body = 200, json.loads(values[RESPONSE.name])
    else:
        told = {"message": values["error"], "type": "invalid_request_error", "param": None, "code": None}
        status, body = 400, {"error": told}
    return {
        "id": f"batch_req_{name}",
        "custom_id": values["id"] if values["id"] != place else None,
        "response": {"status_code": status, "request_id": name, "body": body},
        "error": None,
    }


def _name(row: WorkRow) -> str:
    return _hash(row.request_id)


def _hash(place: str) -> str:
    return hashlib.blake2b(place.encode(), digest_size=12).hexdigest()
