"""The Whisper engine: transcription of many recordings at a time."""

from headrace.engines.whisper.channels import Channels, ChannelTranscriptions
from headrace.engines.whisper.config import TranscribeOptions, WhisperConfig
from headrace.engines.whisper.engine import WhisperEngine
from headrace.engines.whisper.loading import check_model
from headrace.engines.whisper.results import Segment, Transcription, Word

__all__ = [
    "ChannelTranscriptions",
    "Channels",
    "Segment",
    "TranscribeOptions",
    "Transcription",
    "WhisperConfig",
    "WhisperEngine",
    "Word",
    "check_model",
]
