"""What counts as an image in a request: things this service does not read, and says so.

Pure functions on any thread. A caption under `image` is text, and so is a list of a page's elements: only an
image's own data, or a part in the form that chat interfaces send images in, is an image.
"""

from __future__ import annotations

from .request import Json

_KEYS = ("image", "images", "screenshot", "screenshots")
_PART_TYPES = ("image", "image_url", "input_image")
_PART_DATA = ("image_url", "source", "data", "data_base64")


def holds_image(state: Json) -> bool:
    """Whether a state is an image, or holds one in its list or under an image's key."""
    if isinstance(state, list):
        return any(_is_part(item) for item in state)
    if not isinstance(state, dict):
        return False
    return _is_part(state) or any(_is_image(state.get(key)) for key in _KEYS)


def _is_image(value: Json) -> bool:
    """Whether a value under an image's key is one, or a list of some."""
    if isinstance(value, list):
        return any(_is_one_image(item) for item in value)
    return _is_one_image(value)


def _is_one_image(value: Json) -> bool:
    if isinstance(value, dict):
        return value.get("type") in _PART_TYPES or any(_is_data_uri(inner) for inner in value.values())
    return _is_data_uri(value)


def _is_data_uri(value: Json) -> bool:
    return isinstance(value, str) and value[:64].lstrip()[:11].lower() == "data:image/"


def _is_part(value: Json) -> bool:
    """Whether this is a typed image part: `{"type": "image_url", "image_url": …}` and its kin."""
    if not isinstance(value, dict) or value.get("type") not in _PART_TYPES:
        return False
    return any(value.get(key) is not None for key in _PART_DATA)
