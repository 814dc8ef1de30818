"""The peers' sides of ``models``: torch's calls in both layouts, jax and ONNX under the names of torch.nn.functional."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from .harness import Bench, Candidate, optional

__all__ = ["COMPILED", "FIRST", "JAX", "LAST", "ONNX", "TORCH", "Jax", "layouts", "onnx_session", "tensors", "torch"]

TORCH, COMPILED, JAX, ONNX = "torch eager", "torch.compile", "jax.jit", "onnxruntime"
FIRST, LAST = "torch NCHW", "torch channels_last"


# ---- torch ------------------------------------------------------------------------------------------------------------------------------

def torch() -> Any:
    """torch on one thread. Raises ImportError where it is missing."""
    module = optional("torch")
    module.set_num_threads(1)
    return module


def tensors(torch: Any, arrays: Sequence[Any], last: bool = False) -> list[Any]:
    """Tensors of their own, images and filters in the layout."""
    made = [torch.from_numpy(a.copy()) for a in arrays]
    return [t.to(memory_format=torch.channels_last) if last and t.dim() == 4 else t for t in made]


def layouts(bench: Bench, make: Callable[[Any, bool], Candidate]) -> list[Candidate]:
    """``make(torch, channels_last)`` for both layouts."""
    return [c for last in (False, True) for c in bench.peer(LAST if last else FIRST, lambda last=last: make(torch(), last))]  # type: ignore[misc]


# ---- jax --------------------------------------------------------------------------------------------------------------------------------

class Jax:
    """Functions under torch's names. ``last``: images are [n, height, width, channels]; filters are [out, in, height, width] either way."""

    def __init__(self, last: bool = False) -> None:
        self.jax, self.np, self.lax = optional("jax"), optional("jax.numpy"), optional("jax.lax")
        self.last = last
        self.axis = 3 if last else 1
        self.spatial = (1, 2) if last else (2, 3)
        self.relu, self.form = self.jax.nn.relu, ("NHWC" if last else "NCHW", "OIHW", "NHWC" if last else "NCHW")

    def image(self, x: Any) -> Any:
        """An NCHW array in this layout."""
        return self.np.asarray(np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if self.last else x)

    def _each(self, v: Any) -> Any:
        return v.reshape([-1 if d == self.axis else 1 for d in range(4)])

    def conv2d(self, x: Any, w: Any, b: Any = None, stride: int = 1, padding: int = 0, dilation: int = 1, groups: int = 1) -> Any:
        """Convolution with equal steps in both dims."""
        y = self.lax.conv_general_dilated(x, w, (stride,) * 2, [(padding, padding)] * 2, rhs_dilation=(dilation,) * 2, dimension_numbers=self.form,
                                          feature_group_count=groups)
        return y if b is None else y + self._each(b)

    def conv_transpose2d(self, x: Any, w: Any, b: Any, stride: int) -> Any:
        """The transpose of a convolution without padding. ``w``: [in, out, height, width]."""
        k = w.shape[2] - 1
        flipped = self.np.flip(w, (2, 3)).swapaxes(0, 1)
        y = self.lax.conv_general_dilated(x, flipped, (1, 1), [(k, k)] * 2, lhs_dilation=(stride,) * 2, dimension_numbers=self.form)
        return y + self._each(b)

    def batch_norm(self, x: Any, mean: Any, var: Any, w: Any, b: Any, training: bool = False, eps: float = 1e-5) -> Any:
        """With given statistics, or the batch's."""
        if training:
            mean, var = x.mean((0, *self.spatial)), x.var((0, *self.spatial))
        scale = w / self.np.sqrt(var + eps)
        return x * self._each(scale) + self._each(b - mean * scale)

    def max_pool2d(self, x: Any, kernel: int, stride: int | None = None, padding: int = 0) -> Any:
        """The maximum over windows."""
        def spread(n: int) -> tuple[int, ...]:
            return tuple(n if d in self.spatial else 1 for d in range(4))

        pads = [(padding, padding) if d in self.spatial else (0, 0) for d in range(4)]
        return self.lax.reduce_window(x, -self.np.inf, self.lax.max, spread(kernel), spread(stride or kernel), pads)

    def adaptive_avg_pool2d(self, x: Any, _one: int) -> Any:
        """The mean over all places."""
        return x.mean(self.spatial, keepdims=True)

    def linear(self, x: Any, w: Any, b: Any) -> Any:
        """x w' + b."""
        return x @ w.T + b

    def cross_entropy(self, x: Any, labels: Any) -> Any:
        """The mean over the batch."""
        return -self.np.mean(self.np.take_along_axis(self.jax.nn.log_softmax(x), labels[:, None], 1))

    def layer_norm(self, x: Any, _shape: Any, w: Any, b: Any, eps: float = 1e-5) -> Any:
        """Over the last dim."""
        return (x - x.mean(-1, keepdims=True)) / self.np.sqrt(x.var(-1, keepdims=True) + eps) * w + b

    def gelu(self, x: Any, approximate: str = "none") -> Any:
        """gelu in either form."""
        return self.jax.nn.gelu(x, approximate=approximate == "tanh")

    def scaled_dot_product_attention(self, q: Any, k: Any, v: Any, is_causal: bool = False) -> Any:
        """Heads before lengths, as in torch."""
        out = self.jax.nn.dot_product_attention(*(self.np.swapaxes(a, 1, 2) for a in (q, k, v)), is_causal=is_causal)
        return self.np.swapaxes(out, 1, 2)

    def cat(self, a: Any, b: Any) -> Any:
        """Channels of both."""
        return self.np.concatenate((a, b), self.axis)

    def candidate(self, name: str, f: Callable[..., Any], args: Sequence[Any], values: Callable[[Any], Sequence[Any]]) -> Candidate:
        """``f`` under jit, waited for."""
        call = self.jax.jit(f)
        return Candidate(name, lambda *a: self.jax.block_until_ready(call(*a)), values, args=tuple(args))


# ---- ONNX: a model's graph written by running it, in protobuf's wire format -------------------------------------------------------------

_FLOAT, _INT64, _IR, _OPSET = 1, 7, 8, 17


def _varint(n: int) -> bytes:
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes([*out, n])


def _field(number: int, value: Any) -> bytes:
    """One field: a number, text, bytes, or a message made of fields."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value & (1 << 64) - 1)
    if isinstance(value, float):
        return _varint(number << 3 | 5) + struct.pack("<f", value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _attribute(name: str, value: Any) -> bytes:
    if isinstance(value, (list, tuple)):
        return _field(1, name) + b"".join(_field(8, v) for v in value) + _field(20, 7)
    return _field(1, name) + (_field(2, value) + _field(20, 1) if isinstance(value, float) else _field(3, value) + _field(20, 2))


def _tensor(name: str, a: Any) -> bytes:
    kind = _INT64 if a.dtype == np.int64 else _FLOAT
    return b"".join(_field(1, n) for n in a.shape) + _field(2, kind) + _field(8, name) + _field(9, np.ascontiguousarray(a).tobytes())


def _info(name: str, shape: Sequence[int] | None) -> bytes:
    sizes = b"" if shape is None else _field(2, b"".join(_field(1, _field(1, n)) for n in shape))
    return _field(1, name) + _field(2, _field(1, _field(1, _FLOAT) + sizes))


class _Value:
    """A value of the graph; of its shape only the batch is known."""

    def __init__(self, graph: Onnx, name: str, batch: int) -> None:
        self.graph, self.name, self.shape = graph, name, (batch,)

    def __add__(self, other: Any) -> _Value:
        return self.graph.node("Add", [self, other])

    def reshape(self, *shape: int) -> _Value:
        """As NumPy's."""
        return self.graph.node("Reshape", [self, np.array(shape, np.int64)])


class Onnx:
    """Functions under torch's names that write nodes; arrays they are given become constants of the graph."""

    def __init__(self) -> None:
        self.nodes: list[bytes] = []
        self.constants: list[bytes] = []
        self.fresh: Iterator[str] = (f"v{i}" for i in range(1 << 30))

    def node(self, op: str, inputs: Sequence[Any], **attributes: Any) -> _Value:
        """The result of a new node."""
        names = []
        for x in inputs:
            if isinstance(x, _Value):
                names.append(x.name)
            elif x is not None:
                names.append(next(self.fresh))
                self.constants.append(_tensor(names[-1], x))
        out = _Value(self, next(self.fresh), inputs[0].shape[0])
        self.nodes.append(b"".join(_field(1, n) for n in names) + _field(2, out.name) + _field(4, op) + b"".join(_field(5, _attribute(*a)) for a in attributes.items()))
        return out

    def conv2d(self, x: Any, w: Any, b: Any = None, stride: int = 1, padding: int = 0, dilation: int = 1, groups: int = 1) -> _Value:
        """Convolution with equal steps in both dims."""
        return self.node("Conv", [x, w, b], strides=[stride] * 2, pads=[padding] * 4, dilations=[dilation] * 2, group=groups)

    def conv_transpose2d(self, x: Any, w: Any, b: Any, stride: int) -> _Value:
        """The transpose of a convolution without padding."""
        return self.node("ConvTranspose", [x, w, b], strides=[stride] * 2)

    def batch_norm(self, x: Any, mean: Any, var: Any, w: Any, b: Any) -> _Value:
        """With given statistics."""
        return self.node("BatchNormalization", [x, w, b, mean, var], epsilon=1e-5)

    def relu(self, x: Any) -> _Value:
        """max(x, 0)."""
        return self.node("Relu", [x])

    def max_pool2d(self, x: Any, kernel: int, stride: int | None = None, padding: int = 0) -> _Value:
        """The maximum over windows."""
        return self.node("MaxPool", [x], kernel_shape=[kernel] * 2, strides=[stride or kernel] * 2, pads=[padding] * 4)

    def adaptive_avg_pool2d(self, x: Any, _one: int) -> _Value:
        """The mean over all places."""
        return self.node("GlobalAveragePool", [x])

    def linear(self, x: Any, w: Any, b: Any) -> _Value:
        """x w' + b."""
        return self.node("Gemm", [x, w, b], transB=1)

    def cat(self, a: Any, b: Any) -> _Value:
        """Channels of both."""
        return self.node("Concat", [a, b], axis=1)

    def model(self, f: Callable[[Onnx, _Value], _Value], shape: Sequence[int]) -> bytes:
        """The file's bytes of a function of one array."""
        out = f(self, _Value(self, "x", shape[0]))
        graph = b"".join(_field(1, n) for n in self.nodes) + _field(2, "model") + b"".join(_field(5, c) for c in self.constants)
        graph += _field(11, _info("x", shape)) + _field(12, _info(out.name, None))
        return _field(1, _IR) + _field(7, graph) + _field(8, _field(1, "") + _field(2, _OPSET))


def onnx_session(f: Callable[[Any, Any], Any], x: Any, threads: int = 1) -> Candidate:
    """onnxruntime with all of its optimisations on the graph that ``f(functions, x)`` writes; weights are constants of the graph."""
    runtime = optional("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = threads
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = runtime.InferenceSession(Onnx().model(f, x.shape), options, providers=["CPUExecutionProvider"])
    given = {"x": x}
    return Candidate(ONNX, lambda: session.run(None, given))
