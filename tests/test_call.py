"""The call path, over both implementations: argument checks, results, workspaces, errors, interrupts, threads, and the callable as an object."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import gc
import inspect
import pickle
import sys
import types
import typing
import weakref

import numpy as np
import pytest

from aotgrad_runtime import dtypes as dt
from aotgrad_runtime.call import ArgSpec, Attr, Cell, Fixed, Global, Instance, OutSpec, Sym, function, make_callable, prebind
from aotgrad_runtime.errors import AotgradError, AotgradTypeError, AotgradValueError
from aotgrad_runtime.modes import no_grad

HAS_MACHINE = function.machine() is not None
CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
N = Sym(0)
EMPTY = {}


@pytest.fixture(params=["machine", "plain"], autouse=True)
def path(request, monkeypatch):
    if request.param == "plain":
        monkeypatch.setattr(function, "machine", lambda: None)
    elif not HAS_MACHINE:
        pytest.skip("no machine code here")
    return request.param


class Call:
    """A kernel's view of its ag_call."""

    def __init__(self, address):
        self.words = (ctypes.c_int64 * 8).from_address(address)

    def ptr(self, k):
        return ctypes.c_int64.from_address(self.words[0] + 8 * k).value

    def size(self, k):
        return ctypes.c_int64.from_address(self.words[1] + 8 * k).value

    def array(self, k, shape, dtype=np.float64):
        count = int(np.prod(shape))
        return np.frombuffer((ctypes.c_char * (count * np.dtype(dtype).itemsize)).from_address(self.ptr(k)), dtype, count).reshape(shape)


def kernel(body):
    """(address, keepalive) of a kernel written in Python; ``body(Call)`` returns the code (None is 0)."""
    made = CALLBACK(lambda address: body(Call(address)) or 0)
    return ctypes.cast(made, ctypes.c_void_p).value, made


def array(*dims, dtype=dt.float64, **more):
    return ArgSpec("array", dtype, dims, **more)


def build(body, args, outs, nsym=0, fallback=None, **more):
    address, keep = kernel(body)
    f = make_callable("f", fallback or (lambda *a, **k: ("fallback", len(a), sorted(k))))
    f.add_instance(Instance(address, args, outs, nsym, keepalive=keep, **more))
    return f


def negate(call):
    n = call.size(0)
    call.array(1, (n,))[:] = -call.array(0, (n,))


def negation(**more):
    return build(negate, [array(N)], [OutSpec(dt.float64, (N,))], 1, **more)


# Arguments


def test_array_in_new_array_out():
    f = negation()
    x = np.arange(5.0)
    y = f(x)
    assert type(y) is np.ndarray and y.tolist() == [0, -1, -2, -3, -4] and y.base is None and y.flags.owndata and y.flags.writeable
    assert f(np.empty(0)).shape == (0,) and f(np.ones(1)).tolist() == [-1]


class Sub(np.ndarray):
    pass


MISMATCHES = {
    "dtype": np.arange(3, dtype=np.float32), "byte order": np.arange(3.0).astype(">f8"), "rank": np.zeros((3, 1)), "rank 0": np.array(1.0),
    "strided": np.arange(6.0)[::2], "reversed": np.arange(3.0)[::-1], "subclass": np.arange(3.0).view(Sub), "list": [1.0, 2.0], "float": 1.0, "none": None,
    "unaligned": np.frombuffer(b"\0" * 25, np.uint8)[1:].view(np.float64), "longlong": np.arange(3, dtype=np.longlong),
}


@pytest.mark.parametrize("name", MISMATCHES)
def test_what_does_not_fit_goes_to_the_fallback(name):
    assert negation()(MISMATCHES[name]) == ("fallback", 1, [])


def test_wrong_number_and_keywords_go_to_the_fallback():
    f, x = negation(), np.ones(2)
    assert f() == ("fallback", 0, []) and f(x, x) == ("fallback", 2, []) and f(x, k=1) == ("fallback", 1, ["k"]) and f(x, **EMPTY).tolist() == [-1, -1]
    assert f(*[x], b=1, a=2) == ("fallback", 1, ["a", "b"])


def test_fallback_errors_pass_through():
    f = negation(fallback=lambda x: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        f(3)
    partial = negation(fallback=type("C", (), {"__call__": lambda self, *a: a})())
    assert partial(3, 4) == (3, 4)


def test_unpickled_dtype_is_accepted():
    x = pickle.loads(pickle.dumps(np.arange(3.0)))
    assert negation()(x).tolist() == [0, -1, -2]


def test_const_dims_and_equal_symbols():
    f = build(lambda c: c.array(2, (1,)).fill(c.size(0) * 10 + c.size(1)), [array(N, 3), array(Sym(1), N, source=1)], [OutSpec(dt.float64, (1,))], 2)
    assert f(np.ones((4, 3)), np.ones((5, 4)))[0] == 45
    for a, b in (((4, 2), (5, 4)), ((4, 3), (5, 5)), ((3, 3), (5, 4))):
        assert f(np.ones(a), np.ones(b))[0] == "fallback"


@pytest.mark.parametrize("dtype", [d for d in dt.ALL if d is not dt.bfloat16], ids=str)
def test_every_dtype(dtype):
    def copy_it(call):
        ctypes.memmove(call.ptr(1), call.ptr(0), 3 * dtype.itemsize)

    f = build(copy_it, [array(3, dtype=dtype)], [OutSpec(dtype, (3,))])
    x = np.array([1, 0, 1]).astype(dtype.np)
    y = f(x)
    assert y.dtype == dtype.np and y.tolist() == x.tolist()
    scalar = build(lambda c: ctypes.memmove(c.ptr(1), c.ptr(0), dtype.itemsize) and 0, [ArgSpec("npscalar", dtype)], [OutSpec(dtype, as_scalar=True)])
    value = dtype.np.type(1)
    assert type(scalar(value)) is dtype.np.type and scalar(value) == value
    assert scalar(np.array(value))[0] == "fallback" and scalar(1)[0] == "fallback" and scalar(1.0)[0] == "fallback"


# Layouts

NHWC = (0, 2, 3, 1)


def channels_last(shape, dtype=np.float64):
    n, c, h, w = shape
    return np.arange(n * c * h * w, dtype=dtype).reshape(n, h, w, c).transpose(0, 3, 1, 2)


def test_channels_last_in_and_out():
    dims = (N, 3, Sym(1), 2)
    f = build(lambda c: ctypes.memmove(c.ptr(1), c.ptr(0), c.size(0) * c.size(1) * 48) and 0, [array(*dims, order=NHWC)], [OutSpec(dt.float64, dims, order=NHWC)], 2)
    x = channels_last((2, 3, 4, 2))
    y = f(x)
    assert y.strides == x.strides and np.array_equal(x, y)
    assert f(np.ascontiguousarray(x))[0] == "fallback" and f(x[:, :, ::-1])[0] == "fallback" and f(x.astype(np.float32))[0] == "fallback"
    assert f(channels_last((0, 3, 4, 2))).shape == (0, 3, 4, 2)


def test_strides_of_dims_of_size_one_do_not_matter():
    f = build(lambda c: 0, [array(N, Sym(1), Sym(2), Sym(3), order=NHWC)], [], 4)
    x = np.lib.stride_tricks.as_strided(np.zeros(8), (1, 1, 2, 4), (999 * 8, 777 * 8, 32, 8))
    assert f(x) is None
    assert f(np.lib.stride_tricks.as_strided(np.zeros(16), (1, 1, 2, 4), (8, 8, 64, 8)))[0] == "fallback"


def test_fortran_order_and_identity_order():
    f = build(lambda c: 0, [array(N, Sym(1), order=(1, 0))], [OutSpec(dt.float32, (N, Sym(1)), order=(1, 0))], 2)
    assert f(np.ones((3, 2), order="F")).strides == (4, 12) and f(np.ones((3, 2)))[0] == "fallback"
    g = build(lambda c: 0, [array(N, 2, order=(0, 1))], [], 1)
    assert g(np.ones((3, 2))) is None and g(np.ones((3, 2), order="F"))[0] == "fallback"


# Scalars and other kinds


def test_float_and_int_kinds():
    def add(call):
        call.array(2, ()).fill(call.array(0, ())[()] + call.array(1, (), np.int64)[()])

    f = build(add, [ArgSpec("float"), ArgSpec("int", source=1)], [OutSpec(dt.float64, as_scalar=True)])
    assert f(1.5, 2) == 3.5 and type(f(1.5, 2)) is np.float64 and f(0.0, -(1 << 62)) == -float(1 << 62)
    for bad in ((1, 2), (1.5, 2.0), (1.5, True), (np.float64(1), 2), (1.5, 1 << 63), (1.5, np.int64(2)), (1.5, -(1 << 63) - 1), (type("F", (float,), {})(1), 2)):
        assert f(*bad)[0] == "fallback"


def test_is_kind_takes_no_pointer():
    marker = object()
    f = build(negate, [ArgSpec("is", value=marker), array(N, source=1)], [OutSpec(dt.float64, (N,))], 1)
    assert f(marker, np.ones(1)).tolist() == [-1] and f(object(), np.ones(1))[0] == "fallback" and f(None, np.ones(1))[0] == "fallback"
    g = build(lambda c: 0, [ArgSpec("is", value=int)], [])
    assert g(int) is None and g(3)[0] == "fallback"


def test_what_stays_at_one_address_is_compared_there():
    """A closure cell and a function's code, in front of and behind an argument that needs a pointer; no object gains a reference that stays."""
    def owner():
        return seen

    seen = first = types.SimpleNamespace()
    cell, code = owner.__closure__[0], owner.__code__
    slot = next(8 * i for i in range(sys.getsizeof(owner) // 8) if ctypes.c_size_t.from_address(id(owner) + 8 * i).value == id(code))
    args = [ArgSpec("is", source=Cell(cell), value=first), array(N), ArgSpec("is", source=Fixed(owner), value=code, unwrap=(types.FunctionType, slot))]
    f = build(negate, args, [OutSpec(dt.float64, (N,))], 1)
    before = sys.getrefcount(first), sys.getrefcount(code)
    for change, restore in [(lambda: setattr(cell, "cell_contents", None), lambda: setattr(cell, "cell_contents", first)),
                            (lambda: delattr(cell, "cell_contents"), lambda: setattr(cell, "cell_contents", first)),
                            (lambda: setattr(owner, "__code__", code.replace()), lambda: setattr(owner, "__code__", code))]:
        assert f(np.ones(2)).tolist() == [-1, -1]
        change()
        assert f(np.ones(2))[0] == "fallback"
        restore()
    assert f(np.ones(2)).tolist() == [-1, -1] and (sys.getrefcount(first), sys.getrefcount(code)) == before


def test_unwrap_reads_a_slot():
    class Box:
        __slots__ = ("pad", "data")

    offset = ctypes.c_ssize_t.from_address(ctypes.c_int64.from_address(id(Box.__dict__["data"]) + 40).value + 16).value
    f = build(negate, [array(N, unwrap=(Box, offset))], [OutSpec(dt.float64, (N,))], 1)
    box = Box()
    assert f(box)[0] == "fallback"
    box.data = np.ones(2)
    before = sys.getrefcount(box.data)
    results = [f(box).tolist(), f(box.data)[0], f(type("B", (Box,), {})())[0]]
    after = sys.getrefcount(box.data)  # not inside the assert: its rewriting holds one more
    assert after == before and results == [[-1, -1], "fallback", "fallback"]


# Hidden inputs


def sum_of_two(source):
    return build(lambda c: c.array(2, (2,)).__setitem__(..., c.array(0, (2,)) + c.array(1, (2,))), [array(2), array(2, source=source)], [OutSpec(dt.float64, (2,))])


def test_cell_global_fixed_are_read_at_every_call():
    space, fixed = {"w": np.ones(2)}, np.full(2, 7.0)
    w = np.full(2, 5.0)
    cell = (lambda: w).__closure__[0]
    for source, value in ((Global(space, "w"), 1), (Cell(cell), 5), (Fixed(fixed), 7)):
        assert sum_of_two(source)(np.zeros(2)).tolist() == [value] * 2
    f, g = sum_of_two(Global(space, "w")), sum_of_two(Cell(cell))
    space["w"], w = np.full(2, 2.0), np.full(2, 3.0)
    assert f(np.zeros(2))[0] == 2 and g(np.zeros(2))[0] == 3
    del space["w"], cell.cell_contents
    assert f(np.zeros(2))[0] == "fallback" and g(np.zeros(2))[0] == "fallback"


def test_attribute_paths():
    class Raises:
        @property
        def w(self):
            raise KeyError("no")

    model = types.SimpleNamespace(layer=types.SimpleNamespace(w=np.ones(2)))
    f = sum_of_two(Attr(Fixed(model), ("layer", "w")))
    assert f(np.zeros(2))[0] == 1
    model.layer.w = np.full(2, 4.0)
    assert f(np.zeros(2))[0] == 4
    model.layer = Raises()
    assert f(np.zeros(2))[0] == "fallback"
    model.layer = None
    assert f(np.zeros(2))[0] == "fallback"
    g = build(negate, [array(N, source=Attr(0, ("w",)))], [OutSpec(dt.float64, (N,))], 1)
    assert g(types.SimpleNamespace(w=np.ones(1))).tolist() == [-1] and g(np.ones(1))[0] == "fallback"


def test_a_hidden_input_rebound_during_the_call_stays_alive():
    space = {}
    alive = []

    def body(call):
        ref = weakref.ref(space["w"])
        space["w"] = None
        gc.collect()
        alive.append(ref() is not None)

    f = build(body, [array(N, source=Global(space, "w"))], [], 1)
    space["w"] = np.ones(3)
    assert f() is None and alive == [True]
    assert f()[0] == "fallback"


# Results


def test_several_outputs_and_none():
    def body(call):
        call.array(1, ()).fill(2.5)
        call.array(2, (3,), np.float32)[:] = 1
        call.array(3, (), np.bool_).fill(True)

    outs = [OutSpec(dt.float64, as_scalar=True), OutSpec(dt.float32, (N,)), OutSpec(dt.bool_)]
    a, b, c = build(body, [array(N)], outs, 1)(np.ones(3))
    assert type(a) is np.float64 and a == 2.5 and b.dtype == np.float32 and b.tolist() == [1, 1, 1] and c.shape == () and c.dtype == bool and c[()]
    assert build(lambda c: 0, [], [])() is None


@CALLBACK
def doubled_shape(_):
    return 0


SHAPES = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_int64))


@SHAPES
def shapes_twice(sizes, dims):
    dims[0], dims[1], dims[2] = 2 * sizes[0], 7, sizes[0]


def test_computed_shapes():
    outs = [OutSpec(dt.float64, (None, 7)), OutSpec(dt.int64, (N,))]
    f = build(lambda c: 0, [array(N)], outs, 1, shapes=ctypes.cast(shapes_twice, ctypes.c_void_p).value)
    a, b = f(np.ones(4))
    assert a.shape == (8, 7) and b.shape == (4,) and b.dtype == np.int64


# Workspace


def workspace_function(sizes):
    return 8 * ctypes.c_int64.from_address(sizes).value


@pytest.mark.parametrize("n", [1, 100, 2048, 2049, 100_000])
def test_workspace_is_large_and_aligned(n):
    seen = []

    def body(call):
        seen.append(call.words[2])
        ctypes.memset(call.words[2], 255, 8 * n)

    size = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(workspace_function)
    f = build(body, [array(N)], [], 1, workspace=ctypes.cast(size, ctypes.c_void_p).value, release_bytes=None)
    g = build(body, [array(N)], [], 1, workspace_bytes=8 * n)
    for h in (f, g, f, g):
        assert h(np.ones(n)) is None
    assert all(address and address % 64 == 0 for address in seen)


def test_no_workspace_is_null():
    seen = []
    build(lambda c: seen.append(c.words[2]), [], [])()
    assert seen in ([0], [None])


def test_reentrant_calls_have_their_own_workspace():
    seen = []

    def body(call):
        seen.append(call.words[2])
        if len(seen) < 3:
            ctypes.memset(call.words[2], len(seen), 40_000)
            mine = len(seen)
            f()
            assert ctypes.string_at(call.words[2], 40_000) == bytes([mine]) * 40_000

    f = build(body, [], [], workspace_bytes=40_000)
    f()
    assert len(set(seen)) == 3


def test_no_memory_is_memory_error():
    f = build(lambda c: 0, [array(N)], [OutSpec(dt.float64, (N,))], 1, workspace_bytes=1 << 60)
    with pytest.raises(MemoryError):
        f(np.ones(2))


def test_output_too_large_is_an_error_and_releases_the_others():
    f = build(lambda c: 0, [array(N)], [OutSpec(dt.float64, (N,)), OutSpec(dt.float64, (1 << 40, 1 << 40))], 1)
    with pytest.raises((MemoryError, ValueError)):
        f(np.ones(2))


# Errors


def failing(code, on_error, **more):
    def body(call):
        call.words[4], call.words[7] = 11, -4
        return code

    return build(body, [array(N)], [OutSpec(dt.float64, (N,)), OutSpec(dt.float64, as_scalar=True)], 1, on_error=on_error, **more)


def test_on_error_gets_code_and_info():
    seen = []

    def on_error(code, info):
        seen.append((code, info[0], info[3]))
        raise IndexError("out")

    with pytest.raises(IndexError, match="out"):
        failing(2, on_error)(np.ones(3))
    assert seen == [(2, 11, -4)]
    assert failing(6, lambda code, info: "instead")(np.ones(3)) == "instead"


def test_not_implemented_means_the_next_instance_then_the_fallback():
    f = failing(1, lambda code, info: NotImplemented)
    assert f(np.ones(3)) == ("fallback", 1, [])
    address, keep = kernel(negate)
    f.add_instance(Instance(address, [array(N)], [OutSpec(dt.float64, (N,))], 1, keepalive=keep))
    assert f(np.ones(3)).tolist() == [-1, -1, -1]


@pytest.mark.parametrize("code, error", [(2, IndexError), (3, AotgradError), (4, MemoryError), (5, KeyboardInterrupt), (6, AotgradError)])
def test_default_errors(code, error):
    f = build(lambda c: code, [], [])
    with pytest.raises(error):
        f()


# Instances


def test_instances_are_tried_in_order_and_can_be_cleared():
    f = make_callable("f", lambda *a: "fallback")
    assert f(1.0) == "fallback"
    made = []
    for value, dims in ((1, (2,)), (2, (N,))):
        address, keep = kernel(lambda c, value=value: c.array(1, ()).fill(value))
        made.append(Instance(address, [array(*dims)], [OutSpec(dt.float64, as_scalar=True)], int(dims == (N,)), keepalive=keep))
        f.add_instance(made[-1])
    assert f(np.ones(2)) == 1 and f(np.ones(3)) == 2 and f(np.ones((1, 1))) == "fallback" and f.instances() == tuple(made)
    f.add_instance(made[1], first=True)
    assert f(np.ones(2)) == 2
    f.clear_instances()
    assert f(np.ones(2)) == "fallback" and f.instances() == ()


def test_calls_leave_nothing_for_the_collector():
    address, keep = kernel(lambda call: 0)
    f = make_callable("f", lambda *a: None)
    f.add_instance(Instance(address, [array(N)], [OutSpec(dt.float64, (N,))], 1, keepalive=keep))
    x = np.ones(2)
    gc.collect()
    gc.disable()
    try:
        f(x)
        before = len(gc.get_objects())
        for _ in range(300):
            f(x)
        assert len(gc.get_objects()) - before < 20
    finally:
        gc.enable()


def test_finish_makes_the_result():
    """Python has the last word on a call; NotImplemented gives it to the next instance, and another grad mode anywhere passes such an instance over."""
    seen = []

    def finish(result, x, flag):
        seen.append(result)
        if flag is not True:
            return NotImplemented
        if len(x) == 1:
            raise KeyError("one")
        return result, x

    f = build(negate, [array(N), ArgSpec("is", source=1, value=True)], [OutSpec(dt.float64, (N,))], 1, npos=2, finish=finish)
    x = np.ones(2)
    made, given = f(x, True)
    assert made.tolist() == [-1.0, -1.0] and given is x
    gc.collect()
    counts = [sys.getrefcount(o) for o in (x, True, None, made)]
    for _ in range(500):
        f(x, True)
        with pytest.raises(KeyError):
            f(np.ones(1), True)
    seen.clear()
    gc.collect()
    moved = [sys.getrefcount(o) - n for o, n in zip((x, True, None, made), counts)]
    assert all(abs(n) < 100 for n in moved), moved  # one for each call would be 500; other tests and threads hold True and None too
    with no_grad():
        assert f(x, True) == ("fallback", 2, []) and not seen
    g = build(negate, [array(N)], [OutSpec(dt.float64, (N,))], 1, npos=2, finish=finish)
    assert g(x, False) == ("fallback", 2, []) and len(seen) == 1
    assert sys.getrefcount(seen.pop()) <= 2  # the result was given back
    with pytest.raises(AotgradTypeError, match="finish"):
        Instance(1, [], [], finish=print)


def test_a_fallback_may_add_the_instance_it_needs():
    address, keep = kernel(negate)

    def fallback(x):
        f.add_instance(Instance(address, [array(N)], [OutSpec(dt.float64, (N,))], 1, keepalive=keep))
        return "compiled"

    f = make_callable("f", fallback)
    assert f(np.ones(1)) == "compiled" and f(np.ones(1)).tolist() == [-1]


BAD = {
    "kind": (lambda: ArgSpec("thing"), {}), "no dtype": (lambda: ArgSpec("array"), {}), "dims of a scalar": (lambda: ArgSpec("float", dims=(1,)), {}),
    "order": (lambda: array(2, 3, order=(0, 0)), {}), "negative": (lambda: array(-2), {}), "unbound symbol": (lambda: array(N), {}),
    "npos": (lambda: array(2, source=3), {"npos": 2}),
    "computed without shapes": (lambda: array(2), {"outs": [OutSpec(dt.float64, (None,))]}),
    "scalar of rank 1": (lambda: array(2), {"outs": [OutSpec(dt.float64, (1,), as_scalar=True)]}),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_specs_are_named(name):
    spec, more = BAD[name]
    with pytest.raises(AotgradError):
        Instance(1, [spec()], **{"outs": [], **more})


# The callable as an object


def module_level(x: float, *, k: int = 2) -> float:
    """Doc of module_level."""
    return x


named = make_callable("named", module_level, wrapped=module_level, qualname="named")


def test_attributes_doc_signature():
    f = make_callable("f", lambda *a: a, wrapped=module_level)
    assert f.__name__ == "f" and f.__doc__ == "Doc of module_level." and f.__wrapped__ is module_level and f.__qualname__ == "module_level" and f.__module__ == __name__
    assert str(inspect.signature(f)) == str(inspect.signature(module_level))
    assert str(inspect.signature(make_callable("g", lambda a, b=1: a))) == "(a, b=1)"
    assert typing.get_type_hints(f) == {"x": float, "k": int, "return": float}
    f.grad = 3
    assert f.grad == 3 and vars(f)["grad"] == 3 and callable(f) and "module_level" in repr(f)
    del f.grad
    assert not hasattr(f, "grad")
    with pytest.raises(AotgradTypeError):
        make_callable("f", 3)


def test_binds_as_a_method():
    class C:
        f = make_callable("f", lambda self, x, **k: (self, x, k))

    c = C()
    assert c.f(3) == (c, 3, {}) and C.f(c, 3) == (c, 3, {}) and c.f(x=4) == (c, 4, {})
    bound = c.f
    assert bound(5) == (c, 5, {}) and bound.__self__ is c and bound.__func__ is C.__dict__["f"]


def test_pickle_copy_weakref_hash():
    assert pickle.loads(pickle.dumps(named)) is named and copy.copy(named) is named and copy.deepcopy([named])[0] is named
    f = make_callable("f", lambda: 1, reduce=lambda self: (str, ("rebuilt",)))
    assert pickle.loads(pickle.dumps(f)) == "rebuilt"
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(make_callable("nowhere", lambda: 1))
    ref = weakref.ref(f)
    assert ref() is f and {f: 1}[f] == 1
    del f
    gc.collect()
    assert ref() is None


def test_cycles_are_collected():
    def cycle():
        def fallback():
            return f

        f = make_callable("f", fallback)
        f.me = f
        address, keep = kernel(lambda c: 0)
        f.add_instance(Instance(address, [], [], on_error=lambda code, info: f, keepalive=keep))
        return weakref.ref(f)

    ref = cycle()
    gc.collect()
    assert ref() is None


def test_calls_from_a_finalizer_during_collection_do_no_harm():
    class Caller:
        def __del__(self):
            try:
                seen.append(self.f(np.ones(2)))
            except RuntimeError as error:
                seen.append(error)

    seen = []
    f = negation()
    f.caller = caller = Caller()
    caller.f = f
    del f, caller
    gc.collect()
    assert len(seen) == 1


def test_the_type_makes_no_broken_instances(path):
    if path == "plain":
        return
    kind = type(make_callable("f", lambda: 1))
    with pytest.raises(TypeError):
        kind()
    with pytest.raises(TypeError):
        type("Sub", (kind,), {})
    with pytest.raises(TypeError):
        object.__new__(kind)


# No leaks


def counts(*objects):
    return [sys.getrefcount(o) for o in objects]


def test_reference_counts_are_exact():
    space = {"w": np.ones(2)}
    x, descr, marker = np.ones(2), np.dtype(np.float64), object()
    args = [array(2), array(2, source=Global(space, "w")), ArgSpec("float", source=1)]

    def on_error(code, info):
        if code == 3:
            raise AotgradValueError("three")
        return marker

    good = build(lambda c: 0, args, [OutSpec(dt.float64, (2,)), OutSpec(dt.float64, as_scalar=True)])
    bad = [build(lambda c, k=k: k, args, [OutSpec(dt.float64, (2,)), OutSpec(dt.float64, as_scalar=True)], on_error=on_error) for k in (3, 6)]
    quiet = build(lambda c: 0, args, [])

    def once():
        good(x, 1.5)
        quiet(x, 1.5)
        good(x, 1)
        bad[1](x, 2.5)
        with contextlib.suppress(AotgradValueError):
            bad[0](x, 2.5)

    for _ in range(1200):  # fills free lists and ctypes' caches
        once()
    gc.collect()
    before, blocks = counts(x, space["w"], descr, marker, good, bad[0], None), sys.getallocatedblocks()
    for _ in range(3000):
        once()
    gc.collect()
    after = counts(x, space["w"], descr, marker, good, bad[0], None)
    assert after[:-1] == before[:-1] and abs(after[-1] - before[-1]) < 50
    assert abs(sys.getallocatedblocks() - blocks) < 1500  # one lost block a round would be 3000


def test_made_and_dropped_callables_leave_nothing():
    def once():
        f = build(lambda c: 0, [array(N)], [OutSpec(dt.float64, (N,))], 1, workspace_bytes=20_000)
        f(np.ones(2))
        prebind(f.instances()[0], [np.ones(2)], [np.ones(2)])()

    def growth():
        blocks = sys.getallocatedblocks()
        for _ in range(60):
            once()
        gc.collect()
        return sys.getallocatedblocks() - blocks

    growth()  # fills free lists
    kind_count = sys.getrefcount(type(make_callable("f", lambda: 1)))
    assert any(growth() < 40 for _ in range(8))  # what is lost is lost in every span: one block a round would be 60
    assert abs(sys.getrefcount(type(make_callable("f", lambda: 1))) - kind_count) < 5


# Prebound calls


def test_prebind():
    f = negation()
    x, y = np.arange(3.0), np.empty(3)
    run = prebind(f.instances()[0], [x], [y])
    assert run() is None and y.tolist() == [0, -1, -2]
    x[:] = 5
    run()
    assert y.tolist() == [-5, -5, -5]
    with pytest.raises(TypeError):
        run(1)
    ref = weakref.ref(x)
    del x, f
    gc.collect()
    assert ref() is not None
    run()
    del run
    gc.collect()
    assert ref() is None


def test_prebind_names_what_does_not_fit():
    instance = negation().instances()[0]
    x, y = np.arange(3.0), np.empty(3)
    read_only = np.empty(3)
    read_only.flags.writeable = False
    for arrays, outs, text in (
        ([x, x], [y], "takes 1"), ([np.arange(3)], [y], "argument 0"), ([x], [], "1 results"), ([x], [np.empty(4)], r"outs\[0\]"), ([x], [x], "shares memory"),
        ([x], [np.empty(3, np.float32)], "float32"), ([x], [read_only], "writeable"), ([x], [np.empty(6)[::2]], "dense"), ([x], [[0.0] * 3], "list"),
    ):
        with pytest.raises(AotgradError, match=text):
            prebind(instance, arrays, outs)


def test_prebind_errors_workspace_and_scalars():
    address, keep = kernel(lambda c: c.array(1, ()).fill(c.array(0, ())[()] * 2) or int(c.words[2] % 64 != 0) * 3)
    run = prebind(Instance(address, [ArgSpec("float")], [OutSpec(dt.float64, as_scalar=True)], workspace_bytes=50_000, keepalive=keep), [1.5], [y := np.empty(())])
    run()
    assert y[()] == 3
    for code, error in ((1, RuntimeError), (2, IndexError)):
        address, keep = kernel(lambda c, code=code: code)
        with pytest.raises(error):
            prebind(Instance(address, [], [], keepalive=keep), [], [])()
    address, keep = kernel(lambda c: 6)
    assert prebind(Instance(address, [], [], on_error=lambda c, i: (c, i[3]), keepalive=keep), [], [])()[0] == 6
