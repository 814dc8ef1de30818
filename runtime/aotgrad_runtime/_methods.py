"""The base of ``Tensor`` that stands for what the frontend installs. Empty here; the stub beside it lists every method, for editors and type checkers."""

from __future__ import annotations

__all__ = ["TensorMethods"]


class TensorMethods:
    """Operators and methods come from the registry of operations when ``aotgrad`` is imported."""

    __slots__ = ()
