from __future__ import annotations

from typing import Any

import pytest

from xpress_exp.data.conversation import conversation_of, parse_conversation

USER = {"role": "user", "content": "hi"}
ASSISTANT = {"role": "assistant", "content": "hello"}
AGAIN = {"role": "user", "content": "more"}


def test_equal_conversations_in_every_form() -> None:
    rows: list[dict[str, Any]] = [
        {"prompt": "hi"},
        {"turns": ["hi", "more"]},
        {"messages": [USER, ASSISTANT]},
        {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "x"}]},
    ]
    for row in rows:
        assert parse_conversation(conversation_of(row)) == (USER,)


def test_earlier_turns_are_kept_and_the_last_answer_dropped() -> None:
    system = {"role": "system", "content": "be kind"}
    last = {"role": "assistant", "content": "bye"}
    parsed = parse_conversation([system, USER, ASSISTANT, AGAIN, last])
    assert parsed == (system, USER, ASSISTANT, AGAIN)


def test_reasoning_of_earlier_turns_is_kept() -> None:
    thinking = {**ASSISTANT, "reasoning_content": "hmm"}
    assert parse_conversation([USER, thinking, AGAIN])[1] == thinking


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ([], "JSON object"),
        ({"text": "hi"}, "none of the keys"),
        ({"messages": []}, "empty"),
        ({"prompt": 3}, "neither a string nor a list"),
        ({"prompt": "  "}, "empty"),
        ({"turns": [" "]}, "empty"),
        ({"messages": [ASSISTANT]}, "no user turn"),
        ({"messages": [USER, AGAIN]}, "wrong role order"),
        ({"messages": [ASSISTANT, USER]}, "wrong role order"),
        ({"messages": [{"role": "tool", "content": "x"}, USER]}, "unknown role 'tool'"),
        ({"messages": [{"role": "user", "content": None}]}, "NoneType"),
        ({"messages": ["hi", USER, 3][1:]}, "must be an object"),
        ({"prompt": "\ud800"}, "surrogate"),
    ],
)
def test_broken_rows_say_why(row: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_conversation(conversation_of(row))
