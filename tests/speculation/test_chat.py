"""Messages and templates: what is refused, and that a template gets what it expects."""

import json
from datetime import datetime

import pytest

from specdec.errors import InvalidArtifact, InvalidRequest
from specdec.speculation.chat import ChatTemplate, check_messages, find_template, parse_messages

USER = {"role": "user", "content": "Hello"}


def render(source, messages=(USER,), **special):
    return ChatTemplate(source, special).render(messages)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "messages is not JSON"),
        ("[{", "messages is not JSON"),
        ("[" * 100_000, "messages is not JSON"),
        ('"Hello"', "messages is a string: expected a list"),
        ("{}", "messages is an object"),
        ("null", "messages is null"),
        ("3", "messages is a number"),
        ("[]", "empty list"),
        ('["Hello"]', r"messages\[0\] is a string: expected an object"),
        ('[{"content": "x"}]', r"messages\[0\].role is missing: allowed are system, developer"),
        ('[{"role": "bot", "content": "x"}]', r"messages\[0\].role is 'bot'"),
        ('[{"role": ["user"], "content": "x"}]', r"messages\[0\].role is \['user'\]"),
        ('[{"role": "user"}]', r"messages\[0\].content is missing: expected a string"),
        ('[{"role": "user", "content": 5}]', r"messages\[0\].content is a number"),
        (
            '[{"role": "user", "content": [{"type": "image_url"}]}]',
            r"messages\[0\].content\[0\] is of type 'image_url': only text",
        ),
        (
            '[{"role": "user", "content": [{"type": "text"}]}]',
            r"messages\[0\].content\[0\].text is null",
        ),
        (
            '[{"role": "user", "content": "x", "tool_calls": [1]}]',
            r"messages\[0\] has tool_calls: allowed are role and content",
        ),
        ('[{"role": "user", "content": "\\ud83d"}]', "half of a surrogate pair"),
    ],
)
def test_bad_messages_say_where_and_what(text, message):
    with pytest.raises(InvalidRequest, match=message) as caught:
        parse_messages(text)
    assert len(str(caught.value)) < 300


def test_what_openai_clients_send_is_understood():
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    found = parse_messages(json.dumps([{"role": "user", "content": parts, "name": None}]))
    assert found == [{"role": "user", "content": "one\ntwo"}]


def test_messages_are_not_changed():
    messages = [USER, {"role": "assistant", "content": ""}]
    assert check_messages(messages) == messages


def test_blocks_leave_no_blank_lines():
    source = (
        "{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}"
    )
    assert render(source) == "Hello\n"


def test_special_tokens_and_the_generation_prompt_are_there():
    source = "{{ bos_token }}{{ messages[0]['content'] }}{% if add_generation_prompt %}>{% endif %}"
    assert render(source, bos_token="<s>") == "<s>Hello>"
    template = ChatTemplate(source, {"bos_token": "<s>"})
    assert template.render([USER], add_generation_prompt=False) == "<s>Hello"


def test_tools_are_defined_and_absent():
    assert render("{% if tools is none and documents is none %}plain{% endif %}") == "plain"


def test_json_is_plain():
    assert render("{{ messages[0] | tojson }}", [{"role": "user", "content": "<é>"}]) == (
        '{"role": "user", "content": "<é>"}'
    )


def test_loop_controls_and_the_training_tag_are_known():
    source = (
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% break %}"
        "{% endfor %}"
    )
    assert render(source, [USER, USER]) == "Hello"


def test_templates_may_ask_for_the_date():
    assert render("{{ strftime_now('%Y') }}") == str(datetime.now().year)


def test_a_template_that_refuses_blames_the_request():
    with pytest.raises(InvalidRequest, match="refuses these messages: roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize("source", ["{{ 1 / 0 }}", "{{ nothing.at.all }}", "{{ messages[0] + 1 }}"])
def test_a_template_that_fails_gives_a_short_error(source):
    with pytest.raises(InvalidRequest, match="refuses these messages") as caught:
        render(source)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__ }}",
    ],
)
def test_the_sandbox_holds(source):
    with pytest.raises(InvalidRequest):
        render(source)


def test_a_template_that_does_not_compile_stops_loading():
    with pytest.raises(InvalidArtifact, match="does not compile"):
        ChatTemplate("{% if %}", {})


def test_the_template_file_wins_over_the_config(tmp_path):
    assert find_template(tmp_path, {}) is None
    assert find_template(tmp_path, {"chat_template": "config"}) == "config"
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    assert find_template(tmp_path, {"chat_template": named}) == "d"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert find_template(tmp_path, {"chat_template": "config"}) == "file"
