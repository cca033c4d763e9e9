"""Contents and values: text passes in any form; what an engine would fetch does not, however it is spelt."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import checks
from gateway.errors import InvalidRequest, ParameterRefused
from gateway.parameters import CHECKS, ParameterRules

RULES = ParameterRules()
MEDIA = ParameterRules(media=True)
URL = "http://169.254.169.254/"


def user(content: object) -> list[dict[str, object]]:
    return [{"role": "user", "content": content}]


@pytest.mark.parametrize(
    "content",
    [
        "Hello",
        "",
        None,
        [],
        ["Hello"],
        [{"type": "text", "text": "Hello", "cache_control": {"type": "ephemeral"}}],
        [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "5"}]}],
        [{"type": "tool_result", "tool_use_id": "t", "content": "5", "is_error": False}],
        [{"type": "tool_use", "id": "t", "name": "f", "input": {"image_url": URL}}],
        [{"type": "thinking", "thinking": "x", "signature": "y"}, {"type": "refusal", "refusal": "no"}],
    ],
)
def test_text_passes(content: object) -> None:
    checks.messages("messages", user(content), RULES)
    checks.content("system", content, RULES)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": URL}},
        {"type": "input_image", "image_url": URL},
        {"type": "image", "source": {"type": "url", "url": URL}},
        {"type": "document", "source": {"type": "url", "url": URL}},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "video_url", "video_url": {"url": "file:///etc/passwd"}},
        {"type": "file", "file": {"file_id": "f"}},
        {"type": "prompt_embeds", "data": "AAAA"},
        {"type": "image_pil", "image_pil": None},
        {"image_url": URL},
        {"type": None, "image_url": URL},
        {"text": "Hello"},
        {"type": "text", "text": "Hello", "uuid": "u", "image_url": URL},
        {"type": "text", "text": "Hello", "uuid": "u"},
        {"type": ["text"], "text": "Hello"},
        {"type": {"text": 1}},
        {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": {}}},
        {"type": "tool_result", "content": [{"type": "image", "source": {}}]},
        {"type": "tool_result", "content": [{"type": "tool_result", "content": [{"image_url": URL}]}]},
    ],
    ids=str,
)
def test_a_part_that_an_engine_could_fetch_is_refused(part: dict[str, Any]) -> None:
    for name, value in (
        ("messages", user([{"type": "text", "text": "x"}, part])),
        ("messages", [{"role": "tool", "content": [part]}]),
        ("input", user([part])),
        ("input", [{"type": "function_call_output", "call_id": "c", "output": [part]}]),
        ("system", [part]),
        ("documents", [{"content": [part]}]),
    ):
        with pytest.raises(ParameterRefused) as raised:
            CHECKS[name](name, value, RULES)
        assert raised.value.param == name


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": URL}},
        {"type": "image", "source": {"type": "url", "url": URL}},
        {"type": "tool_result", "content": [{"type": "image", "source": {}}]},
    ],
    ids=str,
)
def test_a_plan_may_allow_what_is_fetched(part: dict[str, Any]) -> None:
    checks.messages("messages", user([part]), MEDIA)
    checks.texts("query", {"content": [part]}, MEDIA)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": URL}, "uuid": "another tenant's"},
        {"type": "text", "text": "x", "uuid": "u", "image_url": URL},
        {"image_url": URL},
        {"type": ["image_url"]},
        {"type": "image_embeds", "image_embeds": "AAAA"},
        {"type": "prompt_embeds", "data": "AAAA"},
        {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": {}}},
        {"type": "tool_result", "content": [{"type": "audio_embeds", "audio_embeds": "AAAA"}]},
    ],
    ids=str,
)
def test_no_plan_allows_tensors_names_of_cached_media_or_hidden_tools(part: dict[str, Any]) -> None:
    for value, check in ((user([part]), checks.messages), ({"content": [part]}, checks.texts)):
        with pytest.raises(ParameterRefused):
            check("messages", value, MEDIA)


@pytest.mark.parametrize("content", [5, True, {"type": "text"}, [5], [None], [["text"]]])
def test_a_content_that_is_none_is_malformed(content: object) -> None:
    with pytest.raises(InvalidRequest) as raised:
        checks.messages("messages", user(content), RULES)
    assert raised.value.code == "invalid_parameter"


@pytest.mark.parametrize(
    "kind", ["item_reference", "computer_call", "mcp_call", "file_search_call", "input_image", 5, [], {}]
)
def test_an_item_that_is_no_text_is_refused(kind: object) -> None:
    with pytest.raises(ParameterRefused):
        checks.items("input", [{"type": kind, "id": "x"}], RULES)


@pytest.mark.parametrize("ids", [[0], [1, 2, 3], [[1], [2, 3]], [10**9]])
def test_token_ids_pass(ids: list[Any]) -> None:
    checks.prompt("prompt", ids, RULES)


@pytest.mark.parametrize(
    "ids", [[-1], [1, -1], [1, True], [1, 2.0], [1, "a"], [[1], [-1]], [[True]], [[1.5]], [1, None], [1, [2]]]
)
def test_a_token_id_that_is_none_is_refused(ids: list[Any]) -> None:
    for check in (checks.prompt, checks.inputs):
        with pytest.raises(ParameterRefused):
            check("prompt", ids, RULES)


@given(st.lists(st.integers() | st.booleans() | st.floats() | st.text(max_size=2), min_size=1, max_size=6))
def test_ids_pass_only_if_each_is_a_whole_number_from_0(ids: list[Any]) -> None:
    fit = all(type(one) is int and one >= 0 for one in ids)
    texts = all(isinstance(one, str) for one in ids)
    try:
        checks.prompt("prompt", ids, RULES)
    except InvalidRequest:
        assert not fit
        assert not texts
    else:
        assert fit or texts


@pytest.mark.parametrize("value", ["a", ["a", "b"], []])
def test_texts_to_rank_pass(value: object) -> None:
    checks.texts("documents", value, RULES)


@pytest.mark.parametrize("value", ["0", True, None, [1], {"a": 1}, 10**400, -0.1, 1.1])
def test_a_number_has_one_form(value: object) -> None:
    with pytest.raises(InvalidRequest, match="from 0 to 1"):
        checks.number(0, 1)("top_p", value, RULES)


@pytest.mark.parametrize("value", [0, 1, 0.5, 1e-308])
def test_a_number_in_its_range_passes(value: float) -> None:
    checks.number(0, 1)("top_p", value, RULES)


@pytest.mark.parametrize("value", [0, 1, "true", [], {}])
def test_a_switch_is_true_or_false(value: object) -> None:
    for name in ("echo", "store", "parallel_tool_calls"):
        with pytest.raises(InvalidRequest, match="true or false"):
            CHECKS[name](name, value, RULES)
