"""Operations that the engine may replace on the processor, behind one door.

Engine thread. For now: the joining of a shared prefix with the rows' own keys and values.
"""

from __future__ import annotations

from typing import Any

from .backend import mx


def join_shared(prefix: tuple[Any, Any], own: tuple[Any, Any]) -> tuple[Any, Any]:
    """Prefix (1, H, P, D) and own (B, H, L, D) keys and values, joined along the tokens: (B, H, P + L, D) each."""
    rows = own[0].shape[0]
    keys, values = (
        mx.concatenate([mx.broadcast_to(p, (rows, *p.shape[1:])), o], axis=2) for p, o in zip(prefix, own, strict=True)
    )
    return keys, values
