"""Functions of torch's own namespace that take other arguments there than in ``nn.functional``."""

from __future__ import annotations

from typing import Any

from . import functional

__all__ = ["dropout", "embedding"]


def dropout(input: Any, p: float, train: bool) -> Any:
    """``nn.functional.dropout``, with whether it is training always given.

    >>> import aotgrad as ag
    >>> ag.dropout(ag.ones(2), 0.5, False)
    tensor([1., 1.])
    """
    return functional.dropout(input, p, train)


def embedding(weight: Any, indices: Any, padding_idx: int = -1) -> Any:
    """Rows of ``weight`` at the places of ``indices``: ``nn.functional.embedding`` with the table first. The row ``padding_idx`` (none by default) has no gradient.

    >>> import aotgrad as ag
    >>> ag.embedding(ag.tensor([[1.0], [2.0]]), ag.tensor([1, 0]))
    tensor([[2.],
            [1.]])
    """
    return functional.embedding(indices, weight, None if padding_idx == -1 else padding_idx)
