"""One conversation: what a prompt row is, and how the accepted JSON forms become messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Message = dict[str, str]

# The key that holds the conversation in a JSON row; the first one present decides.
CONVERSATION_KEYS = ("messages", "conversations", "turns", "prompt")
_ROLES = {
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "system": "system",
}


@dataclass(frozen=True)
class PromptRow:
    """A usable input row: the conversation up to and including its last user turn.

    index counts input rows from 0, broken ones included. id is unique within its source; the
    seed of the row's response is derived from it.
    """

    index: int
    id: str
    domain: str
    messages: tuple[Message, ...]
    family: str = ""


@dataclass(frozen=True)
class BrokenRow:
    """An input row that cannot be used; reason names the line and the fault."""

    index: int
    id: str
    reason: str


def conversation_of(row: Any) -> Any:
    """The conversation inside a JSON row; raises ValueError when there is none."""
    if not isinstance(row, dict):
        raise ValueError(f"expected a JSON object, got {type(row).__name__}")
    for key in CONVERSATION_KEYS:
        if key in row:
            return row[key]
    raise ValueError(f"none of the keys {', '.join(CONVERSATION_KEYS)} is present")


def parse_conversation(value: Any) -> tuple[Message, ...]:
    """Messages up to the last user turn.

    Accepts a string (one user turn), a list of strings (user turns without answers: only the
    first can be asked), or a list of {role, content} or {from, value} objects. Earlier assistant
    turns are kept as given. Raises ValueError with the reason when the row is broken.
    """
    if isinstance(value, str):
        messages = [_message("user", value)]
    elif isinstance(value, list) and value and isinstance(value[0], str):
        messages = [_message("user", value[0])]
    elif isinstance(value, list) and value:
        messages = [_from_object(item) for item in value]
    else:
        raise ValueError("the conversation is empty or neither a string nor a list")
    while messages and messages[-1]["role"] != "user":
        messages.pop()
    if not messages:
        raise ValueError("there is no user turn")
    _check_order(messages)
    return tuple(messages)


def _from_object(item: Any) -> Message:
    if not isinstance(item, dict):
        raise ValueError(f"a message must be an object, got {type(item).__name__}")
    role = item.get("role", item.get("from"))
    if not isinstance(role, str) or role not in _ROLES:
        raise ValueError(f"unknown role {role!r}")
    message = _message(_ROLES[role], item.get("content", item.get("value")))
    reasoning = item.get("reasoning_content")
    if isinstance(reasoning, str):
        # Templates of reasoning models read it; dropping it would change the prompt.
        message["reasoning_content"] = reasoning
    return message


def _message(role: str, content: Any) -> Message:
    if not isinstance(content, str):
        raise ValueError(f"the content of a {role} turn is {type(content).__name__}, not a string")
    if not content.strip():
        raise ValueError(f"a {role} turn is empty")
    try:
        content.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"a {role} turn holds a lone surrogate ({error.reason})") from error
    return {"role": role, "content": content}


def _check_order(messages: list[Message]) -> None:
    turns = messages[1:] if messages[0]["role"] == "system" else messages
    for number, message in enumerate(turns):
        expected = "assistant" if number % 2 else "user"
        if message["role"] != expected:
            raise ValueError(
                f"wrong role order: turn {number + 1} is {message['role']}, expected {expected}"
            )
