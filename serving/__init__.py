"""An OpenAI-compatible HTTP server over both engines. Needs the extra `serve`."""

from headrace.serving.app import Application, create_app
from headrace.serving.config import ServeConfig
from headrace.serving.server import serve

__all__ = ["Application", "ServeConfig", "create_app", "serve"]
