"""OpenAI's JSON for texts: what a request asks of the text engine, and how its outputs are told."""

from headrace.engines.openai.answers import Answer, Piece
from headrace.engines.openai.bodies import ChatBody, CompletionBody, CountBody, GenerateBody

__all__ = ["Answer", "ChatBody", "CompletionBody", "CountBody", "GenerateBody", "Piece"]
