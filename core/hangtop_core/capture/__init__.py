"""Captures: all observations in one file that can be opened without the job."""

from hangtop_core.capture.form import Facts, Header, counted, masked
from hangtop_core.capture.naming import default_name, target_names, unused
from hangtop_core.capture.read import Capture, is_capture, load
from hangtop_core.capture.redact import Redaction
from hangtop_core.capture.write import Saved, save, stream

__all__ = [
    "Capture",
    "Facts",
    "Header",
    "Redaction",
    "Saved",
    "counted",
    "default_name",
    "is_capture",
    "load",
    "masked",
    "save",
    "stream",
    "target_names",
    "unused",
]
