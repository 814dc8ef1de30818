"""Whatever a public function is given, the error is aotgrad's, names the function or the argument, and is of the kind that NumPy or PyTorch raises too."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aotgrad as ag
import aotgrad.nn.functional as F

RAGGED = [[1, 2], [3]]
X = ag.ones(3)


def _holding_itself(times: int = 1) -> list[Any]:
    out: list[Any] = []
    out += [out] * times
    return out


LISTS: tuple[Callable[[Any], Any], ...] = (
    ag.sin, ag.tensor, lambda v: ag.add(X, v), lambda v: ag.cond(v, lambda a: a, lambda a: a, X), lambda v: X.at[v].set(1.0), lambda v: X.at[0].set(v), lambda v: X[v],
    lambda v: ag.where(v, X, X), lambda v: ag.fill_(ag.ones(3), v), ag.as_tensor, lambda v: ag.allclose(v, X))


@pytest.mark.parametrize("call", LISTS)
@pytest.mark.parametrize("given", [RAGGED, _holding_itself(), _holding_itself(2)], ids=["ragged", "itself", "itself twice"])
def test_lists_that_are_no_arrays(call: Any, given: Any) -> None:
    with pytest.raises(ag.AotgradError) as caught:
        call(given)
    assert isinstance(caught.value, ValueError)


def test_deep_lists_that_are_arrays() -> None:
    deep: Any = [1.0, 2.0]
    for _ in range(10):
        deep = [deep, deep]
    assert ag.tensor(deep).shape == (2,) * 11 and np.array_equal(ag.sin(deep), np.sin(np.array(deep)))


WRONG_CALLS: tuple[tuple[str, Callable[[], Any]], ...] = (
    ("column_stack", ag.column_stack), ("diff", lambda: ag.diff(X, bogus=1)), ("diff", lambda: ag.diff(X, 1, 2, 3, 4)), ("allclose", lambda: ag.allclose(X)),
    ("cosine_similarity", lambda: ag.cosine_similarity(X)), ("detach_", ag.detach_), ("abs_", ag.abs_), ("debug_print", ag.debug_print), ("diag", ag.diag),
    ("diag", lambda: ag.diag(X, 1, 2)), ("arange", ag.arange), ("arange", lambda: ag.arange(1, 2, 3, 4)), ("as_tensor", lambda: ag.as_tensor(1, foo=2)),
    ("zeros_like", ag.zeros_like), ("meshgrid", lambda: ag.meshgrid(X, foo=1)), ("layer_norm", F.layer_norm), ("map", lambda: ag.map(X)), ("scan", ag.scan))


@pytest.mark.parametrize(("name", "call"), WRONG_CALLS)
def test_wrong_calls_name_the_signature(name: str, call: Any) -> None:
    with pytest.raises(ag.AotgradTypeError, match=rf"{name}\(\) .*its signature is {name}\("):
        call()


WRONG: tuple[tuple[str, type[Exception], Callable[[], Any]], ...] = (
    ("alpha", TypeError, lambda: ag.add(X, X, alpha=[1])), ("alpha", TypeError, lambda: ag.add(X, X, alpha=object())),
    ("value", ValueError, lambda: ag.addcmul(X, X, X, value=np.ones((2, 2)))), ("alpha", TypeError, lambda: F.celu(X, alpha=None)),
    ("range", IndexError, lambda: F.glu(ag.ones(3, 3), 2)), ("input", TypeError, lambda: ag.arctan_([])), ("input", TypeError, lambda: ag.abs_(2.0)),
    ("input", TypeError, lambda: ag.celu_(2.0)), ("input", TypeError, lambda: ag.threshold_((), 0.1, 2.0)),
    ("detach_", TypeError, lambda: ag.detach_(None)), ("detach", TypeError, lambda: ag.detach(np.ones(3))), ("x1", TypeError, lambda: ag.cosine_similarity(None, X)),
    ("rtol", TypeError, lambda: ag.allclose(X, X, rtol=ag.tensor([0, 1]))), ("rtol", TypeError, lambda: ag.allclose(X, X, rtol=None)),
    ("NoneType", TypeError, lambda: ag.allclose(None, X)),
    ("str", TypeError, lambda: ag.allclose(X, "a")), ("a list of tensors", TypeError, lambda: ag.column_stack(None)),
    ("bound", TypeError, lambda: ag.fori_loop(0, np.ones(2), lambda i, c: c, 1.0)), ("bound", TypeError, lambda: ag.fori_loop(0, int, lambda i, c: c, 1.0)),
    ("map", TypeError, lambda: ag.map(lambda: 1, X)), ("map", TypeError, lambda: ag.map(lambda a, b: 1, X)))


@pytest.mark.parametrize(("word", "kind", "call"), WRONG)
def test_wrong_values_name_the_argument(word: str, kind: type[Exception], call: Any) -> None:
    with pytest.raises(ag.AotgradError, match=word) as caught:
        call()
    assert isinstance(caught.value, kind)


HUGE: tuple[Callable[[], Any], ...] = (
    lambda: ag.zeros(10**15), lambda: ag.ones(2**32, 2**32), lambda: ag.zeros(10**30), lambda: ag.arange(10**15), lambda: ag.arange(10**30),
    lambda: ag.arange(float("nan")), lambda: ag.arange(float("inf")), lambda: ag.eye(10**9), lambda: ag.tile(X, 10**15), lambda: ag.outer(ag.ones(10**8), ag.ones(10**8)),
    lambda: ag.ones(1, 1).expand(2**62, 8), lambda: np.pad(X, 2**61), lambda: ag.broadcast_to(X, -10**12), lambda: ag.diagonal(ag.ones(3, 3), offset=-10**12),
    lambda: F.conv1d(ag.ones(1, 1, 5), ag.ones(1, 1, 3), stride=2**63), lambda: F.conv1d(ag.ones(1, 1, 5), ag.ones(1, 1, 3), padding=2**44),
    lambda: F.adaptive_avg_pool1d(ag.ones(1, 1, 5), 10**30))


@pytest.mark.parametrize("call", HUGE)
def test_sizes_that_no_memory_holds(call: Any) -> None:
    with pytest.raises(ag.AotgradError):
        call()


def test_memory_that_is_not_there_is_what_numpy_and_torch_raise() -> None:
    with pytest.raises(MemoryError, match=r"zeros\(\) cannot use size=.*make the sizes smaller"):
        ag.zeros(10**15)
    with pytest.raises(RuntimeError, match="tile"):
        ag.tile(X, 10**15)


@pytest.mark.parametrize("given", [None, object(), range(3), memoryview(b"abc"), sum])
def test_arguments_that_nothing_can_be_computed_with(given: Any) -> None:
    def double(first: Any, second: Any) -> Any:
        return second * 2 + first

    f = ag.compile(double)
    for call in (f, f.prebind, f.trace):
        with pytest.raises(ag.AotgradTypeError, match="argument second is "):
            call(1.0, given)
    assert ag.compile(lambda x, how: x if how is None else x * 2)(1.0, None) == 1.0  # they may decide


def test_a_host_call_says_how_its_function_is_called() -> None:
    for f in (lambda: 1.0, lambda a, b: a):
        given = ag.host_call(f, lambda *xs: xs[0])
        for call in (given, ag.compile(lambda x, g=given: g(x) * 2.0)):
            with pytest.raises(ag.AotgradTypeError, match=r"host_call: <lambda>.* is called with 1 argument"):
                call(np.ones(2))
    assert ag.host_call(lambda *xs: xs[0] * 2.0, lambda x: x)(2.0) == 4.0


class Refused(ValueError):
    """An error of the user's."""


def test_errors_of_the_users_own_code_pass_as_they_are() -> None:
    def refuse(*_: Any) -> Any:
        raise Refused("mine")

    def ill_shaped(x: Any) -> Any:
        return np.concatenate([np.ones((2, 2)), np.ones(3)])

    for call in (lambda: ag.map(refuse, X), lambda: ag.fori_loop(0, 2, refuse, 1.0), lambda: ag.cond(True, refuse, refuse, 1.0), lambda: ag.scan(refuse, 1.0, X)):
        with pytest.raises(Refused, match="mine"):
            call()
    with pytest.raises(ValueError, match="number of dimensions") as caught:
        ag.map(ill_shaped, X)
    assert not isinstance(caught.value, ag.AotgradError)
    with ag.autograd.graph.saved_tensors_hooks(refuse, refuse) if hasattr(ag.autograd, "graph") else ag.autograd.saved_tensors_hooks(refuse, refuse):
        x = ag.ones(2, requires_grad=True)
        with pytest.raises(Refused, match="mine"):
            ag.exp(x)
        with pytest.raises(Refused, match="mine"):
            F.softplus(x)


@pytest.mark.parametrize("start", [lambda f: f(ag.ones(2)), lambda f: ag.compile(f)(1.0), lambda f: ag.grad(f)(1.0)], ids=["eager", "compiled", "grad"])
def test_a_function_that_calls_itself_without_end_is_pythons_error(start: Callable[..., Any]) -> None:
    """Not an error of the op that happened to be called last."""
    def endless(x: Any) -> Any:
        return endless(ag.sin(x))

    with pytest.raises(RecursionError, match="recursion"):
        start(endless)


def test_functions_keep_their_names_and_signatures() -> None:
    for name in ("diff", "detach", "arctan_", "column_stack", "allclose", "fill_", "tensordot"):
        f = getattr(ag, name)
        assert f.__name__ == name and f.__doc__ and pickle.loads(pickle.dumps(f)) is f
    assert pickle.loads(pickle.dumps(F.layer_norm)) is F.layer_norm
    assert [*inspect.signature(ag.diff).parameters] == ["input", "n", "dim"]
