"""Errors that name what was wrong and what helps."""

from __future__ import annotations

import statistics
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy import array

import aotgrad as ag
from aotgrad.cli import ir_tools
from aotgrad.cli.app import main
from aotgrad_runtime.errors import AotgradAttributeError, AotgradOverflowError


def _deviation(x: Any) -> Any:
    return np.linalg.cond([x[:2], x[1:]])


def _filled(x: Any) -> Any:
    out = np.zeros(3)
    out[0] = x[0]
    return out


@pytest.mark.parametrize(("call", "says"), [
    (lambda: ag.cat(ag.ones(2)), "cat: a list or tuple of tensors is needed"), (lambda: ag.stack(ag.ones(2)), "stack: a list or tuple of tensors is needed"),
    (lambda: ag.manual_seed("a"), "manual_seed: the seed is an integer"), (lambda: ag.tensor([True]) - ag.tensor([True]), "bool tensor is not supported.*`~`"),
    (lambda: ag.tensor([True]).relu(), "relu: dtype bool"), (lambda: ag.compile(lambda x: x)(memoryview(bytearray(b"abc"))), "argument x: .*memoryview"),
    (lambda: ag.compile(lambda x: x).prebind(ag.ones(2, 2)), "prebind: x is a Tensor; .*x.numpy"), (lambda: ag.load("absent.npz"), "ag.load takes a library"),
    (lambda: ag.compile(lambda x: array([x[0], x[1]]))(np.ones(3)), "imported by its own name\\)\\. Call np.array"),
    (lambda: ag.compile(lambda a: list(np.nditer(a)))(np.ones(3)), "test_messages.*np.nditer goes over numbers"),
    (lambda: ag.compile(lambda a: setattr(a, "data", 1.0))(np.ones(3)), "test_messages.*.data is set to float"),
    (lambda: ag.compile(lambda a: a.__ipow__(a, a))(np.ones(3)), "test_messages.*__ipow__.. takes 2"),
    (lambda: ag.compile(lambda x, n: x + n[0])(np.ones(3), Decimal(1)), "test_messages.*argument n is Decimal"),
    (lambda: ag.compile(lambda text: np.sum(text))(b"abc"), "test_messages.*argument text is bytes"),
    (lambda: ag.grad(_deviation)(np.ones(3)), r"test_messages.py:\d+: in numpy.*: a plain NumPy array .*a list where NumPy"),
    (lambda: ag.compile(_deviation)(np.ones(3)), r"test_messages.py:\d+: in numpy.*: a traced value"),
    (lambda: ag.grad(lambda x: statistics.fmean([x]))(1.0), r"test_messages.py:\d+: in statistics.fmean: .*those of math and of SciPy do not"),
    (lambda: ag.grad(np.sum, np.ones(3)), r"argnums=array.*integers, not ndarray; the arguments go to"), (lambda: ag.jacobian(np.sum, 1.0), "not float"),
    (lambda: ag.compile(_filled)(np.ones(3)), "ag.zeros\\(..., dtype=x.dtype\\)"),
])
def test_they_say_what_helps(call: Any, says: str) -> None:
    with pytest.raises(ag.AotgradError, match=says):
        call()


def test_flags_are_spoken_of_where_a_flag_was_given() -> None:
    with pytest.raises(ag.AotgradTypeError, match="as a condition") as caught:
        ag.vmap(lambda x: x if x > 0 else -x)(np.ones(3))
    assert "static=" not in str(caught.value)
    with pytest.raises(ag.AotgradTypeError, match="pass bool"):
        ag.compile(lambda x, flag: x if flag else -x)(np.ones(3), np.bool_(True))


def test_numbers_of_numpy_that_overflow_are_said_with_the_line() -> None:
    for x in (np.uint8(3), np.full(2, 3, np.uint8)):
        with pytest.raises(AotgradOverflowError, match="test_messages.*\n.*Python integer 300 out of bounds for uint8"):
            ag.compile(lambda x: x + 300)(x)


def test_an_error_of_the_users_about_a_number_stays_theirs() -> None:
    def f(x: Any, n: int) -> Any:
        if n > 2:
            raise ValueError("n is too large")
        return x

    with pytest.raises(ValueError, match="^n is too large$") as caught:
        ag.compile(f)(np.ones(3), 3)
    assert not isinstance(caught.value, ag.AotgradError)


@pytest.mark.parametrize("place", [ag, ag.nn, ag.nn.functional, ag.nn.init, ag.optim, ag.autograd, ag.aot, ag.nn.Linear(2, 2)])
def test_names_that_are_not_there(place: Any) -> None:
    with pytest.raises(AotgradAttributeError, match="nosuch"):
        _ = place.nosuch
    assert not hasattr(place, "nosuch") and getattr(place, "nosuch", 1) == 1


def test_a_name_that_a_module_does_not_have_cannot_be_imported() -> None:
    with pytest.raises(ImportError, match="nosuch"):
        exec("from aotgrad.optim import nosuch")


def _product(x: Any, y: Any) -> Any:
    """The *product* of ``x``
    and ``y``, summed. More of it.
    """
    return (x * y).sum()


def test_built_libraries_and_their_files(tmp_path: Path) -> None:
    built = ag.aot.build(_product, ["x: f64[n]", "y: f64[n]"], out=tmp_path, name="product")
    library = ag.load(built.library)
    with pytest.raises(ag.AotgradTypeError, match="missing a required argument: 'x'; it is product"):
        library.product(y=np.ones(3))
    with pytest.raises(AotgradAttributeError, match="has no function 'nope'; it has product"):
        _ = library.nope
    assert "\nDescription: The product of x and y, summed.\n" in (tmp_path / "product.pc").read_text()


def test_load_says_what_it_takes(tmp_path: Path) -> None:
    (tmp_path / "x.so").write_text("no library")
    with pytest.raises(ag.AotgradValueError, match="no ELF header; a library that aotgrad build has made"):
        ag.load(tmp_path / "x.so")


@pytest.mark.parametrize("command", [["build", "m:f"], ["cache"]])
def test_a_wrong_flag_shows_how_the_command_is_used(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*command, "--nope"])
    assert f"usage: aotgrad {command[0]} " in capsys.readouterr().err


def test_run_says_how_a_function_is_chosen(tmp_path: Path) -> None:
    built = ag.aot.build(_product, ["x: f64[n]", "y: f64[n]"], out=tmp_path, name="product", grad="x", emit=("mlir",))
    with pytest.raises(ag.AotgradValueError, match="--function NAME.; it has product, product_grad"):
        ir_tools.run(str(built.files["mlir"]), [], None)


def test_shapes_that_do_not_fit_name_the_function_once() -> None:
    with pytest.raises(ag.AotgradError) as caught:
        ag.compile(lambda x, y: x @ y)(np.ones((3, 4)), np.ones((5, 2)))
    assert str(caught.value).count("matmul") == 1


@pytest.mark.parametrize("make", [ag.tensor, ag.as_tensor])
def test_lists_of_values_that_are_differentiated_keep_no_gradient_and_say_so(make: Any) -> None:
    with pytest.raises(ag.AotgradTypeError, match="test_messages.*its derivative would be lost; use np.stack"):
        ag.grad(lambda x: make([[x[0]], [x[1]]]).sum())(np.ones(3))
    assert ag.grad(lambda x: (make([x[0].detach(), x[1].detach()]) * x[:2]).sum())(np.full(3, 2.0)).tolist() == [2.0, 2.0, 0.0]
    t = ag.ones(2, requires_grad=True)
    assert not make([t[0], t[1]]).requires_grad  # as in torch


class _Pair(NamedTuple):
    a: Any
    b: Any


def test_a_named_tuple_is_a_tuple_of_arguments() -> None:
    def f(p: Any) -> Any:
        return p.a * p.a * p.b

    x, v = _Pair(2.0, 3.0), _Pair(1.0, 0.0)
    for transform in (ag.hvp, ag.jvp):
        with pytest.raises(ag.AotgradTypeError, match=r"write \(_Pair\(...\),\)"):
            transform(f, x, v)
    assert ag.hvp(f, (x,), (v,)) == (_Pair(6.0, 4.0),)
    assert ag.hvp(lambda a, b: a * a * b, x, v) == (6.0, 4.0)
