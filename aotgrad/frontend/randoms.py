"""Random tensors. The numbers of a draw are a function of the generator's state (see ``ir/ops/random``), the same eagerly and in compiled code.

The state is a tensor. A compiled function reads it at every call and writes it back with the number of draws it made, as any tensor in a variable; so nothing random is
fixed while tracing, and ``manual_seed`` decides what comes next.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from aotgrad.ir import TensorType, Value, build, dims, interp
from aotgrad.ir.transforms.cleanup import standard
from aotgrad_runtime import dtypes, forks
from aotgrad_runtime import tensor as runtime
from aotgrad_runtime.dtypes import DType, as_dtype
from aotgrad_runtime.errors import AotgradArgumentError, AotgradNotImplementedError, AotgradRuntimeError, AotgradTypeError, AotgradValueError
from aotgrad_runtime.tensor import Tensor
from aotgrad_runtime.watched import written

from . import factories, kernels, native
from .front import FrontBuilder
from .trace import Trace, Traced, TracedTensor, current, user_loc

__all__ = ["ABSTRACT", "LOOP", "SHARED", "Generator", "alternatives", "default_generator", "get_rng_state", "initial_seed", "manual_seed", "rand", "rand_like", "randint",
           "randn", "randn_like", "randperm", "repeating", "seed", "set_rng_state", "watch"]

_ODD: Final = 0x9E3779B1
_STATE = TensorType((3,), dtypes.int64)


_generators: Any = weakref.WeakSet()
_listing = forks.safe(threading.Lock())


class Generator:
    """A source of random numbers (Threefry): equal seeds give equal numbers on every machine, eagerly and in compiled code. ``Generator("cpu")`` and ``device=`` are
    taken as torch takes them.

    >>> import aotgrad as ag
    >>> a, b = (ag.rand(2, generator=ag.Generator().manual_seed(3)) for _ in range(2))
    >>> bool((a == b).all())
    True
    """

    def __init__(self, seed: int | str | runtime.Device | None = None, device: Any = None) -> None:
        if isinstance(seed, (str, runtime.Device)):
            seed, device = None, seed
        if device is not None:
            runtime.Device(device)  # which says what is wrong with it
        self._lock = forks.safe(threading.Lock())
        self._seed: Any = None
        self._state: Any = None  # two keys and the number of the next draw
        with _listing:
            _generators.add(self)
        if seed is not None:
            self._start(factories.whole(seed, "Generator"))

    def _start(self, seed: Any) -> None:
        self._seed = np.random.SeedSequence().entropy if seed is None else seed
        keys = np.random.SeedSequence(abs(self._seed)).generate_state(2)
        self._put(np.array([*keys.tolist(), 0], np.int64))

    def _put(self, numbers: Any) -> None:
        if self._state is None:
            self._state = runtime.wrap(numbers)
        else:
            self._state._bump_version()
            self._state._data[:] = numbers
            written(self._state)

    def manual_seed(self, seed: int) -> Generator:
        """Starts again from ``seed``."""
        if current() is not None:
            raise AotgradNotImplementedError(f"{user_loc()}: manual_seed in a compiled function would run once, while it is traced; call it outside")
        with self._lock:
            self._start(factories.whole(seed, "manual_seed", "the seed is an integer"))
        return self

    def seed(self) -> Any:
        """Starts again from a seed of the system's, which it returns."""
        with self._lock:
            self._start(None)
            return self._seed

    def initial_seed(self) -> Any:
        """The seed it started from."""
        self.state()
        return self._seed

    def state(self) -> Any:
        """The tensor that holds the state; seeded at first use, since NumPy's random module is a tenth of the import."""
        if self._state is None:
            with self._lock:
                if self._state is None:
                    self._start(None)
        return self._state

    def get_state(self) -> Any:
        """A copy of the state, for ``set_state``."""
        return self.state().clone()

    def set_state(self, new_state: Any) -> Generator:
        """Goes on from a state that ``get_state`` gave."""
        data = new_state._data if isinstance(new_state, Tensor) else np.asarray(new_state)
        if data.shape != (3,) or data.dtype != np.int64:
            raise AotgradValueError(f"set_state: a state is an int64 tensor of three numbers, as get_state() gives it, not {data.dtype}{list(data.shape)}")
        self.state()
        with self._lock:
            self._put(data)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.initial_seed(), self.get_state()._data)

    def take(self) -> Any:
        """The state of the next draw, which is taken thereby."""
        state = self.state()._data
        with self._lock:
            taken = state.copy()
            state[2] += 1
        return taken


    def _back(self, before: Any) -> None:
        """Where it stood; ``before`` is None where it was not seeded yet."""
        if self._state is None:
            return
        with self._lock:
            if before is None:
                self._start(self._seed)
            else:
                self._put(before)


def _restored(seed: Any, numbers: Any) -> Generator:
    made = Generator()
    made._seed = seed
    made._put(numbers)
    return made


def repeating() -> Callable[[], None]:
    """For what runs a function several times as if once: a function that has every generator draw again what it has drawn since."""
    with _listing:
        marks = [(g, None if g._state is None else g._state._data.copy()) for g in _generators]

    def again() -> None:
        for g, before in marks:
            g._back(before)

    return again


default_generator = Generator()


def _source(generator: Generator | None, name: str) -> Generator:
    if generator is not None and not isinstance(generator, Generator):
        raise AotgradTypeError(f"{name}: generator is {type(generator).__name__}; give an ag.Generator, or none")
    return generator or default_generator


def manual_seed(seed: int) -> Generator:
    """Seeds the generator that random functions use unless given another."""
    return default_generator.manual_seed(seed)


def seed() -> Any:
    """Seeds the default generator from the system; gives the seed."""
    return default_generator.seed()


def initial_seed() -> Any:
    """The seed that the default generator started from."""
    return default_generator.initial_seed()


def get_rng_state() -> Any:
    """A copy of the state of the default generator."""
    return default_generator.get_state()


def set_rng_state(new_state: Any) -> None:
    """Sets the state of the default generator to one that ``get_rng_state`` gave."""
    default_generator.set_state(new_state)


# ---- eager ----------------------------------------------------------------------------------------------------------------------------

@functools.lru_cache(maxsize=16)
def _kernel(op: str, dtype: DType | None) -> Callable[..., Any]:
    """``draw(state, room)``: as many numbers as ``room`` has bytes."""
    attrs = {} if dtype is None else {"dtype": dtype}
    room = TensorType((dims.symbol("n"),), dtypes.uint8)
    func = build(f"eager_{op}", [_STATE, room], lambda b, state, room: b.emit(op, [state], {"shape": room.type.shape, **attrs})[0])
    return kernels.build(standard(func), func.name).flat


def _numbers(op: str, dtype: DType | None, shape: tuple[int, ...], generator: Generator) -> Any:
    """The numbers of the next draw."""
    state = generator.take()
    count = int(np.prod(shape, dtype=object))
    if native.available():
        return _kernel(op, dtype)(state, np.empty(count, np.uint8)).reshape(shape)
    attrs = {"shape": shape} if dtype is None else {"shape": shape, "dtype": dtype}
    with np.errstate(all="ignore"):
        return interp.run(build(op, [_STATE], lambda b, state: b.emit(op, [state], attrs)[0]), state)[0]


def _random(name: str, op: str, shape: tuple[Any, ...], generator: Generator | None, dtype: DType | None, requires_grad: bool,
            after: Callable[[Any, Any], Any] | None) -> Any:
    """``after(b, numbers)``: what is made of them, with a builder (None: with NumPy)."""
    source = _source(generator, name)
    if current() is not None:
        b, numbers = _traced(name, op, shape, dtype, source)
        return factories.traced(b.trace, numbers if after is None else after(b, numbers), requires_grad)
    data = _numbers(op, dtype, factories.fixed(shape, name), source)
    return factories.finish(data if after is None else after(None, data), requires_grad)


# ---- in a trace -----------------------------------------------------------------------------------------------------------------------

# ``Trace.draws``: None (a draw is made once a run), the text of the error that a draw is, ``ABSTRACT``, or the number of the example under ``vmap``, a traced value.

LOOP: Final = "in the body of a loop the numbers would be the same in every round; draw them before it, with a dim for the rounds, and take each round's part"
SHARED: Final = "vmap: called random operation while in randomness error mode. Please either use the 'same' or 'different' randomness flags on vmap or perform the " \
    "randomness operation out of vmap"
ABSTRACT: Final = ("abstract",)  # a trace for types alone


def _traced(name: str, op: str, shape: tuple[Any, ...], dtype: DType | None, generator: Generator) -> tuple[FrontBuilder, Value]:
    trace: Any = current()
    b = FrontBuilder(trace, True, user_loc())
    around: Any = trace
    while around is not None:
        if isinstance(around.draws, str):
            raise (AotgradRuntimeError if around.draws is SHARED else AotgradNotImplementedError)(f"{user_loc()}: {name}: {around.draws}")
        around = around.parent
    state, around = trace.value_of(_state(name, trace, generator)), trace
    while around is not None:
        if isinstance(around.draws, Traced):
            state = _mixed(b, state, trace.value_of(around.draws))
        around = around.parent
    attrs = {"shape": shape} if dtype is None else {"shape": shape, "dtype": dtype}
    return b, b.emit(op, [b.refresh(state)], attrs)[0]


def _mixed(b: Any, state: Value, example: Value) -> Value:
    """The state with a first key of the example's own; nested levels differ by the powers of a constant."""
    moved = b.mul(b.add(example, b.scalar(1, dtypes.int64)), b.scalar(_ODD, dtypes.int64))
    parts = [b.broadcast(moved, shape=(1,), dims=()), b.full(shape=(2,), value=0, dtype=dtypes.int64)]
    return b.add(b.mul(state, b.array([_ODD, 1, 1], dtypes.int64)), b.concatenate(*parts, dim=0))  # type: ignore[no-any-return]


def _state(name: str, trace: Any, generator: Generator) -> Any:
    """The state of the next draw as a traced tensor of the outermost trace: read and written at every call of a compiled function."""
    root = trace
    while root.parent is not None:
        root = root.parent
    if root.ledger is None:
        if root.draws is ABSTRACT:
            return TracedTensor._of(root, root.builder.constant(value=np.zeros(3, np.int64)))
        if not root.can_fix:
            raise AotgradNotImplementedError(f"{user_loc()}: {name}: a built library has no generator; make the random numbers outside and pass them as an argument")
        return TracedTensor._of(root, root.builder.constant(value=generator.take()))  # a trace for this call alone
    twin = root.ledger.twin(generator.state())
    before = twin._value
    twin._value = _further(root.builder, before, 1)
    for drawn in getattr(_branches, "drawn", ()):
        _, first, count = drawn.get(id(twin), (twin, before, 0))
        drawn[id(twin)] = twin, first, count + 1
    return TracedTensor._of(root, before)


def _further(b: Any, state: Value, count: int) -> Value:
    return b.add(state, b.constant(value=np.array([0, 0, count], np.int64)))  # type: ignore[no-any-return]


_branches: Any = threading.local()  # ``drawn``: for every branch that is being traced, by generator: its state, that before the branch, and the number of draws


def alternatives(traces: Sequence[Callable[[], Any]]) -> tuple[list[Any], Callable[[Trace, Value], None]]:
    """What the two ``traces`` give, of which one will run: both draw from the same state. Then ``join(trace, pred)``: generators go on from where the one that runs
    leaves them. Inside a function that is differentiated or mapped, where ``pred`` is not known outside, they pass over the draws of the branch that has more."""
    counts, found = list[dict[int, Any]](), []
    around = _branches.__dict__.setdefault("drawn", [])
    for run in traces:
        around.append({})
        try:
            found.append(run())
        finally:
            counts.append(around.pop())
        for twin, before, _ in counts[-1].values():
            twin._value = before

    def join(trace: Trace, pred: Value) -> None:
        for key, (twin, before, _) in {**counts[0], **counts[1]}.items():
            b: Any = twin._trace.builder
            one, other = (c[key][2] if key in c else 0 for c in counts)
            twin._value = _further(b, before, max(one, other))
            if one != other and trace is twin._trace:
                twin._value = b.where(b.broadcast(pred, shape=(3,), dims=()), _further(b, before, one), _further(b, before, other))
            for drawn in around:
                drawn[key] = *drawn[key][:2], drawn[key][2] - min(one, other)

    return found, join


# ---- the functions --------------------------------------------------------------------------------------------------------------------

def _float_kind(dtype: Any, name: str) -> DType:
    kind = factories.kind_of(dtype)
    if not kind.is_floating_point:
        raise AotgradTypeError(f"{name}: dtype {kind.name} is not a floating-point dtype")
    return kind


@factories.on_cpu
def rand(*size: Any, generator: Generator | None = None, dtype: Any = None, requires_grad: bool = False) -> Any:
    """Uniform in [0, 1)."""
    return _random("rand", "random_uniform", factories.shape_of(size, "rand"), generator, _float_kind(dtype, "rand"), requires_grad, None)


@factories.on_cpu
def randn(*size: Any, generator: Generator | None = None, dtype: Any = None, requires_grad: bool = False) -> Any:
    """Normal with mean 0 and variance 1."""
    return _random("randn", "random_normal", factories.shape_of(size, "randn"), generator, _float_kind(dtype, "randn"), requires_grad, None)


@factories.on_cpu
def randint(low: Any = None, high: Any = None, size: Any = None, *, generator: Generator | None = None, dtype: Any = dtypes.int64, requires_grad: bool = False) -> Any:
    """Integers from ``low`` (0 if left out) up to ``high``, not reached: ``randint(high, size)`` or ``randint(low, high, size)``."""
    if size is None:
        low, high, size = 0, low, high
    low = 0 if low is None else low
    if not isinstance(size, (tuple, list)):
        raise AotgradTypeError("randint: size must be a tuple: randint(low, high, (2, 3))")
    low, high = factories.whole(low, "randint"), factories.whole(high, "randint")
    if high <= low:
        raise AotgradArgumentError(f"randint: low={low} must be less than high={high}")
    kind = as_dtype(dtype)

    def after(b: Any, bits: Any) -> Any:
        if b is None:
            return np.asarray(low + bits % (high - low), kind.np)
        return b.to_dtype(b.add(b.remainder(bits, b.full_like(bits, high - low)), b.full_like(bits, low)), kind)

    return _random("randint", "random_bits", factories.shape_of((tuple(size),), "randint"), generator, None, requires_grad, after)


@factories.on_cpu
def randperm(n: int, *, generator: Generator | None = None, dtype: Any = dtypes.int64) -> Any:
    """0 to ``n - 1`` in random order."""
    if current() is not None:
        raise AotgradNotImplementedError(f"{user_loc()}: randperm: not available in a traced function; draw it outside and pass it as an argument")
    keys = _numbers("random_bits", None, (factories.whole(n, "randperm"),), _source(generator, "randperm"))
    return factories.finish(np.asarray(np.argsort(keys, kind="stable"), as_dtype(dtype).np), False)


@factories.on_cpu
def rand_like(input: Any, *, generator: Generator | None = None, dtype: Any = None, requires_grad: bool = False, memory_format: Any = None) -> Any:
    """``rand`` with the shape, dtype and memory format of ``input``."""
    input = factories.tensor_of(input)
    out = rand(tuple(input.shape), generator=generator, dtype=input._dtype if dtype is None else dtype, requires_grad=requires_grad)
    return factories.placed_like(out, input, memory_format)


@factories.on_cpu
def randn_like(input: Any, *, generator: Generator | None = None, dtype: Any = None, requires_grad: bool = False, memory_format: Any = None) -> Any:
    """``randn`` with the shape, dtype and memory format of ``input``."""
    input = factories.tensor_of(input)
    out = randn(tuple(input.shape), generator=generator, dtype=input._dtype if dtype is None else dtype, requires_grad=requires_grad)
    return factories.placed_like(out, input, memory_format)


def watch(around: Callable[..., Any] | None) -> None:
    """As ``factories.watch``."""
    globals()["_random"] = _plain_random if around is None else functools.partial(around, _plain_random)


_plain_random = _random
