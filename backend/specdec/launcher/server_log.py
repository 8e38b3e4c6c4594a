"""What the server's log says: which models are loaded, and why a start failed, in short.

A model's error arrives as one log line with escaped newlines and a stack:
    E1129 17:10:09.4 66 model_lifecycle.cc:642] "failed to load 'target' version 1: Internal:
    TritonModelException: no exported model in ...\\n\\nAt:\\n  .../model.py(7): initialize\\n"
"""

from __future__ import annotations

import re

_LOADED = re.compile(r"\"successfully loaded '([^']+)'\"")
_FAILED = re.compile(r"\"failed to load '([^']+)' version \d+: [A-Z][\w ]+: (.*)\"$", re.MULTILINE)
_UNREADABLE = re.compile(r"\"Poll failed for model directory '([^']+)': (.*)\"$", re.MULTILINE)
_TEXT_FORMAT = re.compile(r"Error parsing text-format [\w.]+: (.*)$", re.MULTILINE)
_OURS = "TritonModelException|InvalidArtifact|InvalidConfig|UnsupportedModel|DecoderFailed"
_EXCEPTION = re.compile(rf"^(?:[\w.]+\.)?(?:{_OURS}): ")  # their messages need no class name
_ERROR = re.compile(r"^E\d{4} \S+ \d+ [^\]]+\] \"?(.*?)\"?$", re.MULTILINE)
_FATAL = re.compile(r"^error: (?:creating server: )?(?:Internal - )?(.*)$", re.MULTILINE)
_NOISE = ("CudaDriverHelper has not been initialized", "unable to create stream for")
_MAX_LINES = 5


def loaded_models(log: str) -> list[str]:
    return _LOADED.findall(log)


def failure_reasons(log: str) -> list[str]:
    """At most a few lines, the cause first; never a stack.

    Models that only failed because another one did (an ensemble) are left out.
    """
    failed = [_of_model(name, _message(text)) for name, text in _FAILED.findall(log)]
    causes = [x for x in failed if "contains models that are not available" not in x]
    details = _TEXT_FORMAT.findall(log)
    for name, text in _UNREADABLE.findall(log):
        causes.append(_of_model(name, _message(text)))
        if "text proto" in text and details:
            causes[-1] += f": {details.pop(0)}"
    if not causes:
        causes = [x for x in map(_message, _ERROR.findall(log)) if not x.startswith(_NOISE)]
    if not causes:
        causes = failed or [x.strip() for x in _FATAL.findall(log)]
    if not causes:
        causes = [line for line in log.splitlines() if line.strip()][-_MAX_LINES:]
    return list(dict.fromkeys(causes))[:_MAX_LINES]


def _of_model(name: str, message: str) -> str:
    return message if message.startswith(f"{name}: ") else f"{name}: {message}"


def _message(escaped: str) -> str:
    text = escaped.replace("\\n", "\n").replace('\\"', '"').split("\nAt:\n")[0]
    text = _EXCEPTION.sub("", text.strip())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines[:3])
