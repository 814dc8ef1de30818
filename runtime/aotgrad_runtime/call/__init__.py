"""The call path: Python callables that check their arguments, allocate results and run a kernel in well under 0.1 microseconds.

One generic machine-code trampoline (``machine``) serves all functions; where it cannot be used, ``plain`` does the same through ctypes.
"""

from .function import Function, make_callable, prebind
from .spec import ABSENT, ArgSpec, Attr, Cell, Dim, Fixed, Global, Instance, OutSpec, Source, Sym, default_on_error, failure

__all__ = [
    "ABSENT", "ArgSpec", "Attr", "Cell", "Dim", "Fixed", "Function", "Global", "Instance", "OutSpec", "Source", "Sym", "default_on_error", "failure", "make_callable",
    "prebind",
]
