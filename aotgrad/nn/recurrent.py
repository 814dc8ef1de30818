"""Recurrent modules: ``RNN``, ``LSTM``, ``GRU`` and their cells.

A step of a cell is one operation in eager code. A sequence is a compiled function with a loop (``scan``), called as it is in eager code.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from aotgrad.frontend.compile import compile as compiled
from aotgrad.frontend.composed import composed
from aotgrad.frontend.control import scan
from aotgrad.frontend.factories import zeros
from aotgrad_runtime.dtypes import float32
from aotgrad_runtime.errors import AotgradNotImplementedError, AotgradRuntimeError, AotgradValueError

from . import functional
from ._shared import dtype_of, f
from .layers import _uniform
from .module import Module
from .parameter import Parameter

__all__ = ["GRU", "GRUCell", "LSTM", "LSTMCell", "RNN", "RNNCell"]


# ---- steps: ``gates`` is what the input contributes -----------------------------------------------------------------------------------

def _lstm(gates: Any, state: Any, weight: Any, bias: Any) -> tuple[Any, ...]:
    h, c = state
    i, keep, g, o = f.chunk(f.add(gates, functional.linear(h, weight, bias)), 4, -1)
    c = f.add(f.mul(f.sigmoid(keep), c), f.mul(f.sigmoid(i), f.tanh(g)))
    return f.mul(f.sigmoid(o), f.tanh(c)), c


def _gru(gates: Any, state: Any, weight: Any, bias: Any) -> tuple[Any, ...]:
    (h,) = state
    xr, xz, xn = f.chunk(gates, 3, -1)
    hr, hz, hn = f.chunk(functional.linear(h, weight, bias), 3, -1)
    n = f.tanh(f.add(xn, f.mul(f.sigmoid(f.add(xr, hr)), hn)))
    return (f.add(n, f.mul(f.sigmoid(f.add(xz, hz)), f.sub(h, n))),)


def _tanh(gates: Any, state: Any, weight: Any, bias: Any) -> tuple[Any, ...]:
    return (f.tanh(f.add(gates, functional.linear(state[0], weight, bias))),)


def _relu(gates: Any, state: Any, weight: Any, bias: Any) -> tuple[Any, ...]:
    return (f.relu(f.add(gates, functional.linear(state[0], weight, bias))),)


_STEPS: dict[str, Any] = {"LSTM": _lstm, "GRU": _gru, "RNN_TANH": _tanh, "RNN_RELU": _relu}
_GATES = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}


@composed("RnnStepBackward0", "gates", "h", "weight", "bias", "c")
def _step(gates: Any, h: Any, weight: Any, bias: Any = None, c: Any = None, *, mode: str) -> Any:
    """One step: the next state."""
    return _STEPS[mode](gates, (h,) if c is None else (h, c), weight, bias)


@functools.lru_cache(maxsize=32)
def _sequence(mode: str, reverse: bool, biased: bool) -> Callable[..., Any]:
    """All steps, from the end where ``reverse``: of what the input contributes to each, the weight, the bias and the state, the last state and h of every step."""
    def run(gates: Any, weight: Any, *rest: Any) -> Any:
        def body(state: Any, x: Any) -> tuple[Any, Any]:
            state = _STEPS[mode](x, state, weight, rest[0] if biased else None)
            return state, state[0]

        state, out = scan(body, rest[biased:], gates, reverse=reverse)
        return (*state, out)

    return compiled(run, name=mode.lower())  # type: ignore[no-any-return]


def _mode(nonlinearity: str) -> str:
    if nonlinearity not in ("tanh", "relu"):
        raise AotgradValueError(f"Unknown nonlinearity '{nonlinearity}'. Select from 'tanh' or 'relu'.")
    return f"RNN_{nonlinearity.upper()}"


class _Weights(Module):
    mode = ""

    def _make(self, suffix: str, sizes: int, bias: bool, device: Any, dtype: Any) -> None:
        """``weight_ih``, ``weight_hh`` and the two biases, uniform in ±1/sqrt(hidden_size)."""
        rows, bound = _GATES[self.mode] * self.hidden_size, 1.0 / math.sqrt(self.hidden_size)
        for name, shape in ((f"weight_ih{suffix}", (rows, sizes)), (f"weight_hh{suffix}", (rows, self.hidden_size))):
            self.register_parameter(name, Parameter(_uniform(shape, bound, dtype, device)))
        for name in (f"bias_ih{suffix}", f"bias_hh{suffix}"):
            if bias or not suffix:
                self.register_parameter(name, Parameter(_uniform((rows,), bound, dtype, device)) if bias else None)

    def _sizes(self) -> None:
        if self.hidden_size <= 0:
            raise AotgradValueError("hidden_size must be greater than zero")


# ---- cells ----------------------------------------------------------------------------------------------------------------------------

class _Cell(_Weights):
    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        self._sizes()
        self._make("", input_size, bias, device, dtype)

    def _step(self, input: Any, state: Any) -> Any:
        name, rank = type(self).__name__, len(input.shape)
        if rank not in (1, 2):
            raise AotgradValueError(f"{name}: Expected input to be 1D or 2D, got {rank}D instead")
        if input.shape[-1] != self.input_size:
            raise AotgradRuntimeError(f"{name}: input has inconsistent input_size: got {input.shape[-1]} expected {self.input_size}")
        if state is None:
            start = zeros(*input.shape[:-1], self.hidden_size, dtype=input.dtype)
            state = (start, start) if self.mode == "LSTM" else (start,)
        for h in state:
            if len(h.shape) != rank:
                raise AotgradValueError(f"{name}: Expected hidden to be {rank}D as the input is, got {len(h.shape)}D instead")
            if h.shape[-1] != self.hidden_size or rank == 2 and h.shape[0] != input.shape[0]:
                raise AotgradRuntimeError(f"{name}: hidden of shape {list(h.shape)} does not fit input {list(input.shape)} and hidden_size {self.hidden_size}")
        h, c = state if self.mode == "LSTM" else (*state, None)
        out = _step(functional.linear(input, self.weight_ih, self.bias_ih), h, self.weight_hh, self.bias_hh, c, mode=self.mode)
        return out if self.mode == "LSTM" else out[0]

    def forward(self, input: Any, hx: Any = None) -> Any:
        """The next state, of ``input`` (N, input_size) or (input_size) and a state (zeros where there is none)."""
        return self._step(input, None if hx is None else (hx,))

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias else ", bias=False")


class LSTMCell(_Cell):
    """One step of an LSTM: ``h, c = cell(x, (h, c))``.

    >>> import aotgrad as ag
    >>> h, c = ag.nn.LSTMCell(3, 2)(ag.ones(5, 3))
    >>> h.shape
    aotgrad.Size([5, 2])
    """

    mode = "LSTM"

    def forward(self, input: Any, hx: Any = None) -> Any:
        """The next (h, c), of ``input`` (N, input_size) or (input_size) and (h, c) (zeros where there is none)."""
        return self._step(input, hx)


class GRUCell(_Cell):
    """One step of a GRU: ``h = cell(x, h)``."""

    mode = "GRU"


class RNNCell(_Cell):
    """One step of ``h = tanh(x @ weight_ih.T + h @ weight_hh.T + biases)``, or ``relu`` of that."""

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh", device: Any = None, dtype: Any = None) -> None:
        object.__setattr__(self, "mode", _mode(nonlinearity))
        super().__init__(input_size, hidden_size, bias, device, dtype)
        self.nonlinearity = nonlinearity

    def extra_repr(self) -> str:
        return super().extra_repr() + ("" if self.nonlinearity == "tanh" else f", nonlinearity={self.nonlinearity}")


# ---- sequences ------------------------------------------------------------------------------------------------------------------------

class _Recurrent(_Weights):
    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, batch_first: bool = False, dropout: float = 0.0,
                 bidirectional: bool = False, proj_size: int = 0, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        if proj_size:
            raise AotgradNotImplementedError(f"{type(self).__name__}: proj_size is not there yet; put a Linear behind the module")
        if not 0 <= dropout <= 1:
            raise AotgradValueError("dropout should be a number in range [0, 1] representing the probability of an element being zeroed")
        self.input_size, self.hidden_size, self.num_layers, self.bias = input_size, hidden_size, num_layers, bias
        self.batch_first, self.dropout, self.bidirectional, self.proj_size = batch_first, float(dropout), bidirectional, proj_size
        self._sizes()
        if num_layers <= 0:
            raise AotgradValueError("num_layers must be greater than zero")
        self._suffixes = [f"_l{k}{r}" for k in range(num_layers) for r in (("", "_reverse") if bidirectional else ("",))]
        for i, suffix in enumerate(self._suffixes):
            self._make(suffix, input_size if i < self._ways else hidden_size * self._ways, bias, device, dtype)

    @property
    def _ways(self) -> int:
        return 2 if self.bidirectional else 1

    def flatten_parameters(self) -> None:
        """Does nothing: it is for other devices."""

    def _along(self, x: Any, state: tuple[Any, ...], suffix: str) -> tuple[tuple[Any, ...], Any]:
        """One layer in one direction: the last state, and h of every step."""
        weights = [getattr(self, f"{name}{suffix}") for name in ("weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if self.bias else ()))]
        gates = functional.linear(x, weights[0], weights[2] if self.bias else None)
        given, kind = [gates, weights[1], *weights[3:], *state], dtype_of(gates)
        if kind.itemsize == 2:
            given = [f.astype(v, float32) for v in given]
        *end, out = _sequence(self.mode, suffix.endswith("reverse"), self.bias)(*given)
        if kind.itemsize == 2:
            *end, out = (f.astype(v, kind) for v in (*end, out))
        return tuple(end), out

    def _run(self, input: Any, state: Any) -> tuple[Any, tuple[Any, ...]]:
        """The outputs and the last states, of input and states as the user has them."""
        rank, name = len(input.shape), type(self).__name__
        if rank not in (2, 3):
            raise AotgradValueError(f"{name}: Expected input to be 2D or 3D, got {rank}D instead")
        if input.shape[-1] != self.input_size:
            raise AotgradRuntimeError(f"input.size(-1) must be equal to input_size. Expected {self.input_size}, got {input.shape[-1]}")
        x = f.unsqueeze(input, 1) if rank == 2 else f.transpose(input, 0, 1) if self.batch_first else input
        if x.shape[0] == 0:
            raise AotgradRuntimeError(f"Expected sequence length to be larger than 0 in {name}")
        want = (len(self._suffixes), *([x.shape[1]] if rank == 3 else []), self.hidden_size)
        if state is None:
            state = (zeros(*want, dtype=input.dtype),) * (2 if self.mode == "LSTM" else 1)
        for h in state:
            if tuple(h.shape) != want:
                raise AotgradRuntimeError(f"{name}: Expected hidden size {want}, got {list(h.shape)}")
        if rank == 2:
            state = tuple([f.unsqueeze(h, 1) for h in state])
        ends = []
        for k in range(self.num_layers):
            parts = []
            for i in range(k * self._ways, (k + 1) * self._ways):
                end, out = self._along(x, tuple([h[i] for h in state]), self._suffixes[i])
                ends.append(end)
                parts.append(out)
            x = parts[0] if len(parts) == 1 else f.cat(parts, -1)
            if self.dropout and k < self.num_layers - 1:
                x = functional.dropout(x, self.dropout, self.training)
        last = tuple([f.stack(list(hs)) for hs in zip(*ends)])
        if rank == 2:
            return f.squeeze(x, 1), tuple([f.squeeze(h, 1) for h in last])
        return f.transpose(x, 0, 1) if self.batch_first else x, last

    def forward(self, input: Any, hx: Any = None) -> tuple[Any, Any]:
        """The states of the last layer over the sequence, and the last states of all layers: of ``input`` (L, N, input_size), (N, L, input_size) with ``batch_first``, or
        (L, input_size), and the first states (zeros where there are none)."""
        out, (h,) = self._run(input, None if hx is None else (hx,))
        return out, h

    def extra_repr(self) -> str:
        parts = [f"{self.input_size}, {self.hidden_size}"]
        for name, usual in (("num_layers", 1), ("bias", True), ("batch_first", False), ("dropout", 0), ("bidirectional", False)):
            if getattr(self, name) != usual:
                parts.append(f"{name}={getattr(self, name)}")
        return ", ".join(parts)


class LSTM(_Recurrent):
    """Layers of LSTMs over sequences: ``out, (h, c) = lstm(x, (h, c))``, with torch's arguments and names of weights.

    >>> import aotgrad as ag
    >>> out, (h, c) = ag.nn.LSTM(3, 2, num_layers=2)(ag.ones(7, 5, 3))
    >>> out.shape, h.shape
    (aotgrad.Size([7, 5, 2]), aotgrad.Size([2, 5, 2]))
    """

    mode = "LSTM"

    def forward(self, input: Any, hx: Any = None) -> tuple[Any, Any]:
        """As of ``GRU``, with the pair (h, c) for a state."""
        return self._run(input, hx)


class GRU(_Recurrent):
    """Layers of GRUs over sequences: ``out, h = gru(x, h)``, with torch's arguments and names of weights."""

    mode = "GRU"


class RNN(_Recurrent):
    """Layers of ``h = tanh(x @ weight_ih.T + h @ weight_hh.T + biases)``, or ``relu`` of that, over sequences: ``out, h = rnn(x, h)``."""

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = "tanh", bias: bool = True, batch_first: bool = False,
                 dropout: float = 0.0, bidirectional: bool = False, device: Any = None, dtype: Any = None) -> None:
        object.__setattr__(self, "mode", _mode(nonlinearity))
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, 0, device, dtype)
        self.nonlinearity = nonlinearity
