"""A finished or running run as a page, or as text for a terminal."""

from headrace.pipelines.report.page import report_page
from headrace.pipelines.report.text import report_text

__all__ = ["report_page", "report_text"]
