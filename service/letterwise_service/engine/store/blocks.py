"""The exact tier: prefixes of plain attention as runs of key/value blocks, which states that start alike share.

Engine thread. A prefix is computed in chunks of one forward from position 0, so a chunk's keys and values are the same
bits for every state that shares the tokens up to its end. A block holds one chunk; blocks form a tree by their tokens,
a state being a path in it. The least recently used goes first, but none on which another block or a job stands.

A job reads its path's blocks joined to one run, which the jobs on one state share. The joined run is a copy: it belongs
to the jobs, not to the budget, while one uses it; afterwards a few stay, counted, as long as there is room for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from .. import headroom
from ..backend import caches, mx
from ..reading import views
from ..reading.packing import FORWARD_TOKENS
from .shelf import Counts, Ids, Lease

Key: TypeAlias = tuple[str, Ids]  # salt and tokens
# Joined runs that stay behind their jobs: a state that is asked about again and again is then not joined again.
_SPARE_RUNS = 4


@dataclass(eq=False)
class Block:
    """A chunk of T = len(ids) tokens: per layer its keys and values, (1, H, T, D) each. `used`: when last.

    run: the caches of the whole path to here, joined; None when there are none at the moment.
    """

    salt: str
    ids: Ids
    layers: tuple[tuple[Any, Any], ...] = ()
    parent: Block | None = None
    nbytes: int = 0
    pins: int = 0
    used: int = 0
    children: dict[Key, Block] = field(default_factory=dict)
    run: views.Cache | None = None


class BlockShelf:
    """Blocks, and joined runs that no job uses, of at most `budget_bytes` together."""

    def __init__(self, budget_bytes: int) -> None:
        self._budget = budget_bytes
        self._root = Block("", ())
        self._spare: dict[Block, int] = {}  # blocks whose runs stayed, with their bytes, oldest first
        self._clock = 0
        self.counts = Counts()

    def take(self, salt: str, ids: Ids) -> Lease:
        self._clock += 1
        block, tokens = self._root, 0
        while (child := block.children.get((salt, ids[tokens : tokens + FORWARD_TOKENS]))) is not None:
            block, tokens = child, tokens + len(child.ids)
            block.used = self._clock
        block.pins += 1
        self.counts.bytes -= self._spare.pop(block, 0)
        return Lease(salt, ids, tokens, block)

    def cache(self, lease: Lease) -> views.Cache | None:
        block: Block = lease.at
        if block is self._root:
            return None
        if block.run is None:
            block.run = _joined(block)
        return views.copy(block.run)

    def keep(self, lease: Lease, cache: views.Cache, tokens: int) -> None:
        self._clock += 1
        while lease.tokens < tokens and not lease.refused:
            chunk = lease.ids[lease.tokens : min(lease.tokens + FORWARD_TOKENS, tokens)]
            block = lease.at.children.get((lease.salt, chunk)) or self._add(lease, chunk, cache)
            if block is None:
                lease.refused = True
                self.counts.refused += 1
                return
            block.used = self._clock
            block.pins += 1
            self._unpin(lease.at)
            lease.at, lease.tokens = block, lease.tokens + len(chunk)
        if lease.whole and lease.at.run is None:
            lease.at.run = views.copy(cache)

    def leave(self, lease: Lease, cache: views.Cache, tokens: int) -> None:
        """Nothing to do: every chunk so far is kept."""

    def release(self, lease: Lease) -> None:
        block, run = lease.at, lease.at.run
        self._unpin(block)
        if run is not None and not block.pins:
            self._spare_run(block, run)

    def clear(self) -> None:
        self._drop_runs(0)
        while (leaf := self._oldest_leaf()) is not None:
            self._evict(leaf)

    def pins(self) -> int:
        return sum(block.pins for block in _below(self._root))

    def check(self) -> None:
        held = [block for block in _below(self._root) if block is not self._root]
        for block in held:
            assert block.parent is not None
            assert block.parent.children[block.salt, block.ids] is block
            assert block.pins >= 0
            assert 0 < len(block.ids) <= FORWARD_TOKENS
            assert not block.children or len(block.ids) == FORWARD_TOKENS, "a block stands on a partial one"
            assert block.nbytes == sum(a.nbytes for pair in block.layers for a in pair)
            assert block.run is None or block.pins or block in self._spare
        assert all(b.run is not None and not b.pins and views.nbytes(b.run) == n for b, n in self._spare.items())
        assert self.counts.records == len(held)
        in_all = sum(block.nbytes for block in held) + sum(self._spare.values())
        assert self.counts.bytes == in_all <= self._budget

    def _add(self, lease: Lease, ids: Ids, cache: views.Cache) -> Block | None:
        """A new block of the tokens `ids` that follow the lease's, its arrays its own; None when it does not fit."""
        parent, start = lease.at, lease.tokens
        per_token = sum(_bytes_per_token(a) for layer in cache for a in (layer.keys, layer.values))
        nbytes = per_token * len(ids)
        # A prefix that could never be whole pushes nothing out for its start's sake.
        if per_token * len(lease.ids) > self._budget or not self._make_room(nbytes):
            return None
        if not headroom.fits(nbytes):
            return None
        layers = tuple(_cut(layer, start, start + len(ids)) for layer in cache)
        mx.eval(layers)
        block = Block(lease.salt, ids, layers, parent, nbytes)
        parent.children[lease.salt, ids] = block
        self.counts.stored += 1
        self.counts.records += 1
        self.counts.bytes += nbytes
        return block

    def _make_room(self, nbytes: int) -> bool:
        """Whether `nbytes` more fit, spare runs dropped and blocks evicted for them; nothing is evicted in vain."""
        while self._spare and self.counts.bytes + nbytes > self._budget:
            self._drop_runs(len(self._spare) - 1)
        over = self.counts.bytes + nbytes - self._budget
        if over > 0 and over > self._idle_bytes():
            return False
        while self.counts.bytes + nbytes > self._budget:
            leaf = self._oldest_leaf()
            assert leaf is not None
            self._evict(leaf)
        return True

    def _idle_bytes(self) -> int:
        """Bytes of the blocks on which no job stands, by itself or by what stands on them."""
        blocks = [*_below(self._root)]
        used = {block for pinned in blocks if pinned.pins for block in _path(pinned)}
        return sum(block.nbytes for block in blocks if block not in used)

    def _oldest_leaf(self) -> Block | None:
        leaves = (b for b in _below(self._root) if not b.children and not b.pins and b is not self._root)
        return min(leaves, key=lambda block: block.used, default=None)

    def _evict(self, leaf: Block) -> None:
        assert leaf.parent is not None
        assert not leaf.pins
        assert not leaf.children
        del leaf.parent.children[leaf.salt, leaf.ids]
        self.counts.evicted += 1
        self.counts.records -= 1
        self.counts.bytes -= leaf.nbytes

    def _unpin(self, block: Block) -> None:
        block.pins -= 1
        assert block.pins >= 0, "a lease was released twice"
        if not block.pins:
            block.run = None

    def _spare_run(self, block: Block, run: views.Cache) -> None:
        """Let a run stay behind its job if there is room for it without taking any from blocks."""
        nbytes = views.nbytes(run)
        if self.counts.bytes + nbytes <= self._budget:
            block.run, self._spare[block] = run, nbytes
            self.counts.bytes += nbytes
            self._drop_runs(_SPARE_RUNS)

    def _drop_runs(self, leave: int) -> None:
        """Drop the oldest spare runs until `leave` are left."""
        while len(self._spare) > leave:
            block = next(iter(self._spare))
            self.counts.bytes -= self._spare.pop(block)
            block.run = None


def _path(block: Block) -> Iterator[Block]:
    """The block and those it stands on, last first, without the root."""
    while block.parent is not None:
        yield block
        block = block.parent


def _below(block: Block) -> Iterator[Block]:
    stack = [block]
    while stack:
        one = stack.pop()
        yield one
        stack.extend(one.children.values())


def _joined(block: Block) -> views.Cache:
    """The caches of the path's tokens, out of its blocks' keys and values."""
    path = [*_path(block)][::-1]
    headroom.ensure(scratch_bytes=sum(one.nbytes for one in path))
    return [_joined_layer(pairs) for pairs in zip(*(one.layers for one in path), strict=True)]


def _joined_layer(pairs: tuple[tuple[Any, Any], ...]) -> Any:
    layer = caches.KVCache()
    keys, values = zip(*pairs, strict=True)
    layer.keys, layer.values = mx.concatenate(list(keys), axis=2), mx.concatenate(list(values), axis=2)
    layer.offset = layer.keys.shape[2]
    return layer


def _cut(layer: Any, start: int, end: int) -> tuple[Any, Any]:
    """The layer's keys and values of some tokens, in arrays of their own: a slice would keep the whole buffer."""
    return layer.keys[:, :, start:end] * 1, layer.values[:, :, start:end] * 1


def _bytes_per_token(array: Any) -> int:
    return int(array.nbytes // array.shape[2])
