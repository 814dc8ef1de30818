"""The typed IR: types, values, operations, builders, text, interpreter, transforms."""

from . import dims, opdef
from .builder import Builder, build
from .core import Block, Func, Loc, Op, Value, dissolve, walk
from .types import Layout, TensorType, tensor_type

__all__ = ["Block", "Builder", "Func", "Layout", "Loc", "Op", "TensorType", "Value", "build", "dims", "dissolve", "opdef", "tensor_type", "walk"]
