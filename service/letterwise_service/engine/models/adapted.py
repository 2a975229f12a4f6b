"""Layers with room for adapters: what the layer itself gives, and what the published adapters add to it.

Engine thread. A layer is wrapped once and holds the matrices of any number of adapters by name; while none of them is
published it only calls the layer, so the bits are those of a model without adapters. The shapes and the sum are those
of mlx-lm's tuner: with A and B an adapter's two thin matrices, y + scale · (x A) B. Knows nothing of files or requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from ..backend import experts, mx, nn

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Delta:
    """What one adapter adds to one layer: `a` and `b`, in the shapes that the layer's `shapes` gives."""

    a: Any
    b: Any


class Publication:
    """What the forward that is being built reads with: by adapter its scales, (1,) for all rows or (rows,)."""

    def __init__(self) -> None:
        self.scales: dict[str, Any] = {}
        self.sorted_rows: Any = None  # (entries,): of which row each of the experts' sorted inputs is

    @contextmanager
    def publish(self, scales: dict[str, Any], rows: int) -> Iterator[None]:
        """Let layers that are called inside the block add these adapters. rows: of the forward, if they differ."""
        assert not self.scales, "an adapter is published already"
        self.scales = scales
        try:
            with self._following_sorts(rows):
                yield
        finally:
            self.scales, self.sorted_rows = {}, None

    @contextmanager
    def _following_sorts(self, rows: int) -> Iterator[None]:
        """Notes where the rows' tokens go when mlx-lm sorts them by expert, which the experts are not told."""
        stock = experts._gather_sort

        def gather_sort(x: Any, indices: Any) -> Any:
            found = stock(x, indices)
            self.sorted_rows = mx.argsort(found[2]) // (indices.size // rows)  # found[2]: where each entry went
            return found

        experts._gather_sort = gather_sort if rows > 1 else stock
        try:
            yield
        finally:
            experts._gather_sort = stock


class Deltas:
    """What each adapter adds to one layer, by the adapter's name."""

    def __init__(self, publication: Publication) -> None:
        self._publication = publication
        self._held: dict[str, Delta] = {}

    def hold(self, name: str, delta: Delta) -> None:
        self._held[name] = delta

    @property
    def published(self) -> bool:
        """Whether an adapter that changes this layer is published, at whatever scale."""
        return not self._held.keys().isdisjoint(self._publication.scales)

    def onto(self, y: Any, product: Callable[[Delta], Any], *, is_sorted: bool = False) -> Any:
        """`y` (n, …) and the published adapters' products, each row's at its own scale."""
        for name, scales in self._publication.scales.items():
            if (delta := self._held.get(name)) is not None:
                y = y + (self._over(scales, y, is_sorted=is_sorted) * product(delta)).astype(y.dtype)
        return y

    def _over(self, scales: Any, y: Any, *, is_sorted: bool) -> Any:
        """The scales as (n, 1, …) or (1, 1, …), for y (n, …): rows, or rows flattened with their tokens, or sorted."""
        rows, n = len(scales), y.shape[0]
        if rows > 1 and is_sorted:
            assert self._publication.sorted_rows is not None, "experts sorted in a way of their own"
            scales = scales[self._publication.sorted_rows]
        elif rows not in (1, n):
            if n % rows:
                raise ValueError(f"a layer sees {n} rows of a forward that has {rows}")
            scales = mx.repeat(scales, n // rows)
        return scales.reshape(-1, *[1] * (y.ndim - 1))


class Adapted(nn.Module):  # type: ignore[misc]  # no types are published
    """A layer, `base`, that adapters may add to."""

    def __init__(self, base: Any, publication: Publication) -> None:
        super().__init__()
        self.base = base
        self.deltas = Deltas(publication)  # no container of mlx's, so these are no parameters of the model

    def shapes(self, rank: int) -> tuple[Shape, Shape]:
        """The shapes of `a` and `b` for an adapter of this rank."""
        raise NotImplementedError


class AdaptedLinear(Adapted):
    """x W, where x is (…, I): a (I, r), b (r, O)."""

    def shapes(self, rank: int) -> tuple[Shape, Shape]:
        outputs, inputs = _size(self.base)
        return (inputs, rank), (rank, outputs)

    def __call__(self, x: Any) -> Any:
        return self.deltas.onto(self.base(x), lambda delta: _thin(_thin(x, delta.a), delta.b))


class AdaptedEmbedding(Adapted):
    """Rows of a table of V, and the table as a head: a (V, r), b (r, D)."""

    def shapes(self, rank: int) -> tuple[Shape, Shape]:
        entries, size = _size(self.base)
        return (entries, rank), (rank, size)

    def __call__(self, ids: Any) -> Any:
        return self.deltas.onto(self.base(ids), lambda delta: _thin(delta.a[ids], delta.b))

    def as_linear(self, x: Any) -> Any:
        """x (…, D) → (…, V)."""
        return self.deltas.onto(self.base.as_linear(x), lambda delta: _thin(_thin(x, delta.b.T), delta.a.T))


class AdaptedExperts(Adapted):
    """E layers, each token going through the ones that `indices` names: a (E, r, I), b (E, O, r)."""

    def shapes(self, rank: int) -> tuple[Shape, Shape]:
        count, outputs, inputs = _size(self.base)
        return (count, rank, inputs), (count, outputs, rank)

    def __call__(self, x: Any, indices: Any, sorted_indices: bool = False) -> Any:
        through = partial(mx.gather_mm, rhs_indices=indices, sorted_indices=sorted_indices)
        return self.deltas.onto(
            self.base(x, indices, sorted_indices=sorted_indices),
            lambda delta: through(through(x, delta.a.swapaxes(-1, -2)), delta.b.swapaxes(-1, -2)),
            is_sorted=sorted_indices,
        )


def adapted(layer: Any, publication: Publication) -> Adapted | None:
    """The layer with room for adapters, itself if it has that already; None for a kind that they cannot change."""
    if isinstance(layer, Adapted):
        return layer
    if hasattr(layer, "to_lora"):  # a layer that is adapted in a way of its own
        return None
    for kinds, wrapper in (
        ((nn.Linear, nn.QuantizedLinear), AdaptedLinear),
        ((nn.Embedding, nn.QuantizedEmbedding), AdaptedEmbedding),
        ((experts.SwitchLinear, experts.QuantizedSwitchLinear), AdaptedExperts),
    ):
        if isinstance(layer, kinds):
            return wrapper(layer, publication)
    return None


def unadapted(layer: Any) -> Any | None:
    """The layer whose weights give the layer's numbers now; None while a published adapter changes them."""
    if not isinstance(layer, Adapted):
        return layer
    return None if layer.deltas.published else layer.base


def _thin(x: Any, matrix: Any) -> Any:
    """x (…, L, I) times matrix (I, O), a product of its own for every leading index.

    One product over all rows, which mlx would make of it, may have other bits with other numbers of rows: for matrices
    as thin as these the BLAS picks its kernel by the size.
    """
    return x @ matrix.reshape(*[1] * (x.ndim - 2), *matrix.shape)


def _size(layer: Any) -> Shape:
    """The shape of the layer's weight, (…, O, I), as it is before packing."""
    *outer, inner = layer.weight.shape
    return (*outer, layer.scales.shape[-1] * layer.group_size if hasattr(layer, "scales") else inner)
