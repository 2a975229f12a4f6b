"""OpenAI's `input` and content parts → a state and texts.

Owns what an item or a part may be, and the one form in which a conversation becomes a state: the list of its items,
each with its content as one text. A text, and a lone message of a user, is that text. Pure, on any thread.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from ..errors import Unsupported
from .bodies import BodyReader
from .request import Json

_ROLES = ("user", "developer", "system", "assistant")
_MESSAGE_FIELDS = ("type", "role", "content")
# calls by type → their own fields; outputs by type → the type of call that they answer
_CALLS = {"function_call": ("name", "arguments"), "custom_tool_call": ("name", "input")}
_OUTPUTS = {"function_call_output": "function_call", "custom_tool_call_output": "custom_tool_call"}
# part type → the field of its text
_PARTS = {"input_text": "text", "output_text": "text", "refusal": "refusal"}


class InputReader:
    """Reads the input of one body, and the content of its questions; tells `body` what is wrong and what unused."""

    def __init__(self, body: BodyReader) -> None:
        self._body = body
        self._calls: dict[str, set[str]] = {kind: set() for kind in _CALLS}

    def state(self, value: Json) -> Json:
        """The state in an `input`; None, which no state is, when there is none. Raises Unsupported for images."""
        if value is None or isinstance(value, str):
            return value
        if not isinstance(value, list) or not value:
            self._body.wrong("input", "text, or an array of messages, tool calls and their outputs")
            return ""
        items = [self._item(f"input[{place}]", item) for place, item in enumerate(value)]
        if len(items) == 1 and items[0].get("role") == "user":
            return items[0]["content"]
        return items

    def text(self, field: str, value: Json) -> str:
        """A content as one text: its parts under each other. Raises Unsupported for images."""
        if isinstance(value, str):
            return value
        if not isinstance(value, list):
            self._body.wrong(field, "text, or an array of parts")
            return ""
        return "\n".join(self._part(f"{field}[{place}]", part) for place, part in enumerate(value))

    def _part(self, field: str, part: Json) -> str:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "input_image":
            raise Unsupported(f"{field}: images are not read; give their content as text")
        if kind == "input_json":
            self._body.note_unused(field, part, ("type", "data"))
            return self._json(f"{field}.data", part.get("data"))
        name = _PARTS.get(kind) if isinstance(kind, str) else None
        if name is None:
            self._body.wrong(field, "a part whose type is input_text, input_json, output_text or refusal")
            return ""
        self._body.note_unused(field, part, ("type", name))
        return self._string(f"{field}.{name}", part.get(name))

    def _json(self, field: str, value: Json) -> str:
        if not isinstance(value, dict | list):
            self._body.wrong(field, "an object or an array of objects")
            return ""
        return json.dumps(value, ensure_ascii=False)

    def _item(self, field: str, item: Json) -> dict[str, str]:
        if not self._body.sound(field, item):
            return {}
        if not isinstance(item, dict):
            self._body.wrong(field, "an object")
            return {}
        kind = item.get("type", "message")
        if kind == "message":
            return self._message(field, item)
        if isinstance(kind, str) and kind in _CALLS:
            return self._call(field, kind, item)
        if isinstance(kind, str) and kind in _OUTPUTS:
            return self._output(field, kind, item)
        self._body.wrong(f"{field}.type", f"message, {', '.join([*_CALLS, *_OUTPUTS])} or nothing")
        return {}

    def _message(self, field: str, item: Mapping[str, Json]) -> dict[str, str]:
        self._body.note_unused(field, item, _MESSAGE_FIELDS)
        role = item.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            self._body.wrong(f"{field}.role", f"one of {', '.join(_ROLES)}")
            return {}
        return {"role": role, "content": self.text(f"{field}.content", item.get("content"))}

    def _call(self, field: str, kind: str, item: Mapping[str, Json]) -> dict[str, str]:
        self._body.note_unused(field, item, ("type", "call_id", *_CALLS[kind]))
        told = {name: self._string(f"{field}.{name}", item.get(name)) for name in ("call_id", *_CALLS[kind])}
        self._calls[kind].add(told["call_id"])
        return {"type": kind, **told}

    def _output(self, field: str, kind: str, item: Mapping[str, Json]) -> dict[str, str]:
        self._body.note_unused(field, item, ("type", "call_id", "output"))
        call = self._string(f"{field}.call_id", item.get("call_id"))
        if call not in self._calls[_OUTPUTS[kind]]:
            self._body.wrong(f"{field}.call_id", f"the call_id of a {_OUTPUTS[kind]} before it")
        return {"type": kind, "call_id": call, "output": self.text(f"{field}.output", item.get("output"))}

    def _string(self, field: str, value: Json) -> str:
        if isinstance(value, str):
            return value
        self._body.wrong(field, "text")
        return ""
