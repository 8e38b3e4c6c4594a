"""Chat messages and the model's own template (Jinja, sandboxed): messages in, prompt text out.

Knows nothing of token ids.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specdec.errors import InvalidArtifact, InvalidRequest

ROLES = ("system", "developer", "user", "assistant", "tool")
_EXAMPLE = '[{"role": "user", "content": "Hello"}]'


def parse_messages(text: str) -> list[dict[str, str]]:
    """Read `messages`: a JSON list of {"role", "content"}. Raises `InvalidRequest`."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InvalidRequest(f"messages is not JSON ({reason}): expected {_EXAMPLE}") from None
    return check_messages(found)


def check_messages(found: object) -> list[dict[str, str]]:
    """Validate messages; content given as a list of text parts is joined by newlines."""
    if not isinstance(found, list):
        raise InvalidRequest(f"messages is {_kind(found)}: expected a list such as {_EXAMPLE}")
    if not found:
        raise InvalidRequest(f"messages is an empty list: expected at least one, as in {_EXAMPLE}")
    return [_check_message(f"messages[{i}]", message) for i, message in enumerate(found)]


def _check_message(where: str, message: object) -> dict[str, str]:
    if not isinstance(message, dict):
        raise InvalidRequest(f"{where} is {_kind(message)}: expected an object as in {_EXAMPLE}")
    message = {name: value for name, value in message.items() if value is not None}
    unknown = sorted(str(name)[:40] for name in set(message) - {"role", "content"})
    if unknown:
        raise InvalidRequest(f"{where} has {', '.join(unknown)}: allowed are role and content")
    role = message.get("role")
    if role not in ROLES:
        found = repr(role)[:40] if "role" in message else "missing"
        raise InvalidRequest(f"{where}.role is {found}: allowed are {', '.join(ROLES)}")
    return {"role": role, "content": _check_content(f"{where}.content", message.get("content"))}


def _check_content(where: str, content: object) -> str:
    if isinstance(content, list):
        content = "\n".join(_check_part(f"{where}[{i}]", part) for i, part in enumerate(content))
    if not isinstance(content, str):
        found = "missing" if content is None else _kind(content)
        raise InvalidRequest(f"{where} is {found}: expected a string")
    try:
        content.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{where} has half of a surrogate pair: not valid Unicode") from None
    return content


def _check_part(where: str, part: object) -> str:
    if not isinstance(part, dict) or part.get("type") != "text":
        found = part.get("type") if isinstance(part, dict) else _kind(part)
        raise InvalidRequest(f"{where} is of type {str(found)[:40]!r}: only text is supported")
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequest(f"{where}.text is {_kind(text)}: expected a string")
    return text


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    return names.get(type(value), "null" if value is None else "a number")


class _GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks what an assistant wrote, for training; here
    it is transparent."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 reads a plain class attribute)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _to_json(value: Any, indent: int | None = None) -> str:
    # Jinja's own filter escapes for HTML; templates want plain JSON.
    return json.dumps(value, ensure_ascii=False, indent=indent)


class ChatTemplate:
    """One compiled template. Thread safe; the sandbox lets it reach plain data only."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Raises `InvalidArtifact` when the template does not compile."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag]
        )
        functions: dict[str, Callable[..., Any]] = {
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }
        environment.globals.update(functions)
        environment.filters["tojson"] = _to_json
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise InvalidArtifact(f"the chat template does not compile: {error}") from None
        self._special_tokens = dict(special_tokens)

    def render(
        self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True
    ) -> str:
        """Raises `InvalidRequest` when the template refuses the messages."""
        try:
            return self._template.render(
                messages=list(messages),
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **self._special_tokens,
            )
        except Exception as error:  # a template may fail in any way that Python can
            reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            raise InvalidRequest(f"the chat template refuses these messages: {reason}") from None


def find_template(directory: Path, tokenizer_config: Mapping[str, Any]) -> str | None:
    """The template of a model directory: chat_template.jinja, or tokenizer_config.json's."""
    path = directory / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    found = tokenizer_config.get("chat_template")
    if isinstance(found, list):  # several named ones; the default is for plain chat
        found = {entry["name"]: entry["template"] for entry in found}.get("default")
    return found
