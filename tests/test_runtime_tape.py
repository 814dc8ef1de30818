"""Tape, engine and grad modes, on a few nodes written by hand over ndarrays: the runtime knows no ops. Error texts are PyTorch's where it has them."""

from __future__ import annotations

import copy
import ctypes
import gc
import threading
import weakref

import numpy as np
import pytest

from aotgrad_runtime import engine, modes, tape
from aotgrad_runtime import memory_format as mf
from aotgrad_runtime import tensor as T
from aotgrad_runtime.errors import AotgradRuntimeError, AotgradTypeError
from aotgrad_runtime.tape import Node, edges_of

t = T.tensor


def record(kind, inputs, data, saved=None):
    if modes.state.grad and any(i._requires_grad for i in inputs):
        return T.make_output(np.asarray(data), kind(edges_of(inputs), saved))
    return T.wrap(np.asarray(data))


class AddBackward0(Node):
    __slots__ = ()

    def apply(self, cts):
        return cts * 2


class MulBackward0(Node):
    __slots__ = ()

    def apply(self, cts):
        a, b = self.saved
        return mul(cts[0], b), mul(cts[0], a)


class ExpBackward0(Node):
    __slots__ = ()

    def apply(self, cts):
        return (mul(cts[0], T.make_output(self.saved, self)),)  # saves its own output, as an array


class SumBackward0(Node):
    __slots__ = ()

    def apply(self, cts):
        return (expand(cts[0], self.saved),)


class ExpandBackward0(Node):
    __slots__ = ()

    def apply(self, cts):
        return (total(cts[0]),)


class SplitBackward0(Node):
    """Two outputs: a and 2a."""

    __slots__ = ()
    outputs = 2
    seen: list = []

    def apply(self, cts):
        type(self).seen.append(tuple(c is None for c in cts))
        a, b = cts
        return (a if b is None else mul(b, t(2.0)) if a is None else add(a, mul(b, t(2.0))),)


def add(a, b):
    return record(AddBackward0, (a, b), a._data + b._data)


def mul(a, b):
    return record(MulBackward0, (a, b), a._data * b._data, (a, b))


def exp(a):
    out = np.exp(a._data)
    return record(ExpBackward0, (a,), out, out)


def total(a):
    return record(SumBackward0, (a,), a._data.sum(), a._data.shape)


def expand(a, shape):
    return record(ExpandBackward0, (a,), np.broadcast_to(a._data, shape), a._data.shape)


def split(a):
    node = SplitBackward0(edges_of((a,)))
    return T.make_output(a._data, node, 0), T.make_output(2 * a._data, node, 1)


@pytest.fixture(autouse=True)
def _our_ops(monkeypatch):
    for name, value in {"add": add, "add_into": None, "cast": None}.items():
        monkeypatch.setattr(tape.installed, name, value)
    yield


def leaf(*values):
    return t([*map(float, values)], requires_grad=True)


# Backward


def test_backward_accumulates_into_leaves():
    a, b = leaf(1, 2), leaf(3, 4)
    y = total(mul(mul(a, b), b))
    y.backward()
    assert a.grad.tolist() == [9, 16] and b.grad.tolist() == [6, 16]
    first = a.grad
    total(mul(a, a)).backward()
    assert a.grad is first and a.grad.tolist() == [11, 20] and a.grad._version == 1
    assert not a.grad.requires_grad and a.grad.is_leaf


def test_shared_use_and_diamonds():
    x = leaf(0.5)
    y = exp(x)
    z = add(mul(y, y), add(y, x))  # e^2x + e^x + x
    z.backward()
    assert np.allclose(x.grad.numpy(), 2 * np.exp(1.0) + np.exp(0.5) + 1)
    w = leaf(2)
    add(w, w).backward()
    assert w.grad.tolist() == [2]


def test_a_gradient_given_to_two_leaves_is_not_shared():
    a, b, seed = leaf(1, 2), leaf(3, 4), t([1.0, 1.0])
    add(a, b).backward(seed)
    assert len({x.data_ptr() for x in (a.grad, b.grad, seed)}) == 3
    c = leaf(1, 2)
    c.backward(seed)
    assert c.grad.tolist() == [1, 1] and c.grad.data_ptr() != seed.data_ptr()
    kept = []
    d = mul(a, b)
    d.register_hook(kept.append)
    a.register_hook(kept.append)
    a.grad = b.grad = None
    d.backward(seed)
    assert all(not np.shares_memory(k.numpy(), g.numpy()) for k in kept for g in (a.grad, b.grad))


def test_an_unshared_gradient_is_taken_over_without_a_copy():
    made = []

    class Fresh(Node):
        __slots__ = ()

        def apply(self, cts):
            data = np.ones(2, np.float32)
            made.append(data.ctypes.data)
            return (T.wrap(data),)

    a = leaf(1, 2)
    T.make_output(a._data, Fresh(edges_of((a,)))).backward(t([1.0, 1.0]))
    assert a.grad.data_ptr() == made[0]


@pytest.mark.parametrize("strides", [(60, 1, 15, 3), (60, 20, 5, 1), (1, 2, 6, 24)])
def test_gradients_have_the_layout_of_their_leaf(strides):
    a = T.wrap(mf.copy_to_strides(np.ones((2, 3, 4, 5)), strides)).requires_grad_()
    total(mul(a, T.wrap(np.ones((2, 3, 4, 5))))).backward()
    assert a.grad.stride() == strides
    total(a).backward()
    assert a.grad.stride() == strides and (a.grad.numpy() == 2).all()


def test_gradient_of_a_leaf_with_gaps_is_row_major():
    a = T.wrap(np.ones((4, 3)).T[:, ::2]).requires_grad_()
    total(mul(a, T.wrap(np.ones((2, 3)).T))).backward()
    assert a.grad.stride() == (2, 1)


def test_gradient_of_a_broadcast_leaf_is_dense():
    a = T.wrap(np.broadcast_to(np.ones(1), (3,))).requires_grad_()
    total(a).backward()
    total(a).backward()
    assert a.grad.stride() == (1,) and a.grad.tolist() == [2, 2, 2]


def test_several_outputs_and_structural_zeros():
    for pick, want, zeros in ((0, 1, (False, True)), (1, 2, (True, False))):
        SplitBackward0.seen.clear()
        a = leaf(1)
        split(a)[pick].backward()
        assert a.grad.tolist() == [want] and SplitBackward0.seen == [zeros]
    a = leaf(1)
    first, second = split(a)
    assert second.output_nr == 1 and first.grad_fn is second.grad_fn
    add(mul(first, second), second).backward()  # 2a^2 + 2a
    assert a.grad.tolist() == [6]


def test_none_stops_and_runs_nothing_behind_it():
    class Stop(Node):
        __slots__ = ()

        def apply(self, cts):
            return (None,)

    ran = []

    class Behind(Node):
        __slots__ = ()

        def apply(self, cts):
            ran.append(cts)
            return cts

    a = leaf(1)
    mid = T.make_output(a._data, Behind(edges_of((a,))))
    T.make_output(a._data, Stop(edges_of((mid,)))).backward()
    assert a.grad is None and not ran
    with pytest.raises(AotgradRuntimeError, match="index 0 appears to not have been used"):
        engine.grad(T.make_output(a._data, Stop(edges_of((a,)))), a)


def test_seeds():
    a = leaf(1, 2)
    mul(a, a).backward(T.wrap(np.array([1.0, 10.0])))  # float64 is cast to the output's float32
    assert a.grad.tolist() == [2, 40] and a.grad.dtype.name == "float32"
    b = leaf(3)
    mul(b, b).backward()  # one element counts as a scalar
    assert b.grad.tolist() == [6]
    y = total(mul(a, a))
    assert engine.grad([y, y], a, [t(1.0), t(2.0)])[0].tolist() == [6, 12]


# Errors: none leaves a gradient half added


def test_errors_of_backward():
    a = leaf(1, 2)
    cases = [
        (lambda: mul(a, a).backward(), AotgradRuntimeError, "grad can be implicitly created only for scalar outputs"),
        (lambda: t(1.0).backward(), AotgradRuntimeError, "element 0 of tensors does not require grad and does not have a grad_fn"),
        (lambda: mul(a, a).backward(t([1.0])), AotgradRuntimeError, r"Mismatch in shape: grad_output\[0\] has a shape of \[1\] and output\[0\] has a shape of \[2\]"),
        (lambda: mul(a, a).backward("x"), AotgradTypeError, "gradients can be either Tensors or None, but got str"),
        (lambda: engine.backward("x"), AotgradTypeError, "tensors must be a Tensor or a sequence of Tensors, but got str"),
        (lambda: engine.backward([mul(a, a)] * 2, [t([1.0, 1.0])]), AotgradRuntimeError, "got 2 tensors and 1 gradients"),
        (lambda: total(a).backward(inputs=[]), AotgradRuntimeError, r"`inputs` argument to `backward\(\)` cannot be empty"),
        (lambda: engine.grad(total(a), t(1.0)), AotgradRuntimeError, "One of the differentiated Tensors does not require grad"),
        (lambda: engine.grad(total(a), leaf(1)), AotgradRuntimeError, "The differentiated Tensor at index 0 appears to not have been used in the graph"),
        (lambda: engine.grad(total(a), a, allow_unused=False, materialize_grads=True), AotgradRuntimeError, "allow_unused"),
        (lambda: T.tensor(1j, requires_grad=True).backward(), AotgradRuntimeError, "only for real scalar outputs but got aotgrad.complex64"),
        (lambda: total(a).backward(t(1j)), AotgradRuntimeError, "same dtype"),
    ]
    for call, error, text in cases:
        with pytest.raises(error, match=text):
            call()
        assert a.grad is None


def test_freed_graph():
    a, b = leaf(1, 2), leaf(1, 1)
    shared = mul(a, a)
    total(shared).backward()
    with pytest.raises(AotgradRuntimeError, match="Trying to backward through the graph a second time.*Specify retain_graph=True"):
        total(add(shared, b)).backward()
    assert b.grad is None  # found before anything was added
    with pytest.raises(AotgradRuntimeError, match="already been freed"):
        shared.grad_fn(t([1.0, 1.0]))
    with pytest.raises(AotgradRuntimeError, match="already been freed"):
        _ = shared.grad_fn.saved
    y = add(a, b)  # saved nothing: may run again
    y.backward(t([1.0, 1.0]))
    y.backward(t([1.0, 1.0]))
    assert b.grad.tolist() == [2, 2]
    z = total(mul(a, a))
    z.backward(retain_graph=True)
    z.backward()


def test_a_graph_freed_by_a_hook_while_it_is_walked():
    class Raw(Node):
        __slots__ = ()

        def apply(self, cts):
            return (self._saved[0],)  # does not look whether it was freed

    a = leaf(1, 2)
    inner = T.make_output(a._data, Raw(edges_of((a,)), (t([1.0, 1.0]),)))
    y = add(inner, inner)
    y.register_hook(lambda g: engine.grad(inner, a, t([1.0, 1.0])) and None)
    with pytest.raises(AotgradRuntimeError, match="a second time"):
        y.backward(t([1.0, 1.0]))


def test_freed_behind_an_unneeded_branch_is_no_error():
    a = leaf(1, 2)
    b = mul(a, a)
    z = total(mul(b, b))
    assert engine.grad(z, b)[0].tolist() == [2, 8]
    assert engine.grad(total(b), a)[0].tolist() == [2, 4]  # b's own node had not run


@pytest.mark.parametrize(("returned", "text"), [
    ((None, None), "Bad returned 2 gradients but has 1 inputs"), ((), "Bad returned 0 gradients but has 1 inputs"), (None, "Bad returned a NoneType"),
    (t([1.0]), "Bad returned a Tensor; its backward must return a tuple"),
])
def test_wrong_number_of_gradients(returned, text):
    class Bad(Node):
        __slots__ = ()

        def apply(self, cts):
            return returned

    a = leaf(1)
    y = T.make_output(a._data, Bad(edges_of((a,))))
    for run in (lambda: y.backward(), lambda: engine.grad(y, a), lambda: y.grad_fn(t([1.0]))):
        with pytest.raises(AotgradRuntimeError, match=text):
            run()
    assert modes.is_grad_enabled() and a.grad is None


def test_wrong_shape_of_a_gradient():
    class Bad(Node):
        __slots__ = ()

        def apply(self, cts):
            return (t([1.0, 2.0, 3.0]),)

    a = leaf(1, 2)
    with pytest.raises(AotgradRuntimeError, match=r"a gradient of shape \[3\] reached a tensor of shape \[2\]"):
        T.make_output(a._data, Bad(edges_of((a,)))).backward(t([1.0, 1.0]))
    assert a.grad is None


# grad and inputs


def test_grad_of_leaves_and_intermediates():
    a, b = leaf(1, 2), leaf(3, 4)
    mid = mul(a, b)
    y = total(mul(mid, mid))
    got = engine.grad(y, [mid, a, y], retain_graph=True)
    assert [g.tolist() for g in got] == [[6, 16], [18, 64], 1.0]
    assert a.grad is None and b.grad is None
    assert engine.grad(y, [a, leaf(1)], allow_unused=True, retain_graph=True)[1] is None
    assert engine.grad(y, [a, leaf(1)], materialize_grads=True)[1].tolist() == [0]


def test_backward_into_inputs_only():
    a, b = leaf(1, 2), leaf(3, 4)
    mid = mul(a, b)
    total(mul(mid, mid)).backward(inputs=[a, mid, a])
    assert a.grad.tolist() == [18, 64] and b.grad is None and mid.grad.tolist() == [6, 16]


def test_double_backward():
    x = leaf(0.5, 2)
    (g,) = engine.grad(total(exp(mul(x, x))), x, create_graph=True)  # 2x e^(x^2)
    assert g.requires_grad
    (h,) = engine.grad(total(g), x, create_graph=True)
    (third,) = engine.grad(total(h), x)
    e, v = np.exp(x.detach().numpy() ** 2), x.detach().numpy()
    assert np.allclose(g.numpy(force=True), 2 * v * e, rtol=1e-6)
    assert np.allclose(h.numpy(force=True), (2 + 4 * v**2) * e, rtol=1e-6)
    assert np.allclose(third.numpy(), (12 * v + 8 * v**3) * e, rtol=1e-6) and not third.requires_grad


def test_create_graph_accumulates_recorded_gradients():
    x = leaf(1, 2)
    total(mul(mul(x, x), x)).backward(create_graph=True)
    before = x.grad
    assert before.grad_fn is not None and before.tolist() == [3, 12]
    total(x.grad).backward()
    assert x.grad.tolist() == [9, 24] and x.grad is not before
    x.grad = None  # the gradient of a leaf that is part of a graph holds the leaf


# Hooks


def test_hook_order_is_torchs():
    log = []
    a = leaf(1, 2)
    b = mul(a, t([2.0, 2.0]))
    b.register_hook(lambda g: log.append(("first", g.tolist())))
    b.retain_grad()
    b.register_hook(lambda g: mul(g, t([10.0, 10.0])))
    b.grad_fn.register_prehook(lambda gs: log.append(("pre", gs[0].tolist())))
    b.grad_fn.register_hook(lambda gi, go: log.append(("post", gi[0].tolist(), go[0].tolist())))
    total(b).backward()
    assert log == [("first", [1, 1]), ("pre", [10, 10]), ("post", [20, 20], [10, 10])]
    assert b.grad.tolist() == [10, 10] and a.grad.tolist() == [20, 20] and b.retains_grad


def test_retained_gradients_add_up_in_a_new_tensor():
    a = leaf(1, 2)
    b = mul(a, a)
    b.retain_grad()
    b.retain_grad()
    y = total(b)
    y.backward(retain_graph=True)
    first = b.grad
    y.backward()
    assert first.tolist() == [1, 1] and b.grad.tolist() == [2, 2]


def test_leaf_hooks():
    a, log = leaf(1, 2), []
    handle = a.register_hook(lambda g: mul(g, t([3.0, 3.0])))
    a.register_post_accumulate_grad_hook(lambda x: log.append(x.grad.tolist()))
    total(a).backward()
    assert a.grad.tolist() == [3, 3] and log == [[3, 3]]
    assert engine.grad(total(a), a)[0].tolist() == [3, 3] and len(log) == 1
    handle.remove()
    handle.remove()
    a.grad = None
    total(a).backward()
    assert a.grad.tolist() == [1, 1]
    with a.register_hook(lambda g: mul(g, t([5.0, 5.0]))):
        assert engine.grad(total(a), a)[0].tolist() == [5, 5]
    assert engine.grad(total(a), a)[0].tolist() == [1, 1]
    with pytest.raises(AotgradRuntimeError, match="non-leaf"):
        total(a).register_post_accumulate_grad_hook(print)


def test_leaves_finish_before_the_rest_of_the_graph():
    late, early, log = leaf(1), leaf(1), []
    early_use = mul(late, late)
    y = mul(early_use, early)
    early.register_post_accumulate_grad_hook(lambda x: log.append("early leaf"))
    early_use.register_hook(lambda g: log.append("inner node"))
    y.backward()
    assert log == ["early leaf", "inner node"]


@pytest.mark.parametrize(("value", "error", "text"), [
    (lambda: t([1.0, 1.0, 1.0]), AotgradRuntimeError, "hook 'bad' has changed the size of value"),
    (lambda: T.wrap(np.ones(2)), AotgradRuntimeError, "hook 'bad' has changed the type of value"),
    (lambda: 3, AotgradTypeError, "expected Tensor, but hook 'bad' returned 'int'"),
])
def test_bad_hooks(value, error, text):
    def bad(g):
        return value()
    for on_leaf in (True, False):
        a = leaf(1, 2)
        y = mul(a, a)
        (a if on_leaf else y).register_hook(bad)
        with pytest.raises(error, match=text):
            total(y).backward()
        assert a.grad is None and modes.is_grad_enabled()
    with pytest.raises(AotgradTypeError, match="callable"):
        leaf(1).register_hook(3)
    with pytest.raises(AotgradRuntimeError, match="doesn't require gradient"):
        t([1.0]).register_hook(print)
    with pytest.raises(AotgradRuntimeError, match="can't retain_grad"):
        t([1.0]).retain_grad()


def test_node_hooks_may_replace_and_are_checked():
    a = leaf(1, 2)
    y = mul(a, t([1.0, 1.0]))
    y.grad_fn.register_prehook(lambda gs: (mul(gs[0], t([2.0, 2.0])),))
    y.grad_fn.register_hook(lambda gi, go: (mul(gi[0], t([3.0, 3.0])), None))
    total(y).backward()
    assert a.grad.tolist() == [6, 6]
    z = mul(a, a)
    z.grad_fn.register_hook(lambda gi, go: (None,))
    with pytest.raises(AotgradRuntimeError, match="returned 1 values for 2 grad_inputs"):
        total(z).backward()
    for register in ("register_prehook", "register_hook"):
        w = mul(a, t([1.0, 1.0]))
        getattr(w.grad_fn, register)(lambda *gs: gs[0][0])
        with pytest.raises(TypeError, match="expected tuple, but hook '<lambda>' returned 'Tensor'"):
            total(w).backward()
    z.grad_fn.metadata["mine"] = 1
    assert z.grad_fn.metadata == {"mine": 1}


def test_hooks_see_the_grad_mode_and_may_run_backward():
    a, seen = leaf(1, 2), []

    def hook(g):
        seen.append(modes.is_grad_enabled())
        with modes.enable_grad():
            x = leaf(3)
            mul(x, x).backward()
            seen.append(x.grad.item())

    y = mul(a, a)
    y.register_hook(hook)
    total(y).backward(create_graph=True)
    z = mul(a, a)
    z.register_hook(hook)
    with modes.no_grad():
        engine.backward(z, t([1.0, 1.0]))
    assert seen == [True, 6, False, 6]
    a.grad = None


# Nodes


def test_names_and_next_functions():
    a, b = leaf(1, 2), t([1.0, 1.0])
    y = mul(exp(a), b)
    node = y.grad_fn
    assert node.name() == node.name == "MulBackward0" and type(node).__name__ == "MulBackward0"
    assert repr(y) == "tensor([2.7183, 7.3891], grad_fn=<MulBackward0>)" and repr(node).startswith("<MulBackward0 object at 0x")
    (inner, index), other = node.next_functions
    assert inner.name() == "ExpBackward0" and index == 0 and other == (None, 0) and not y.is_leaf and y.requires_grad
    end = inner.next_functions[0][0]
    assert end.name() == "AccumulateGrad" and end.variable is a and end is mul(a, a).grad_fn.next_functions[1][0]
    with pytest.raises(AotgradRuntimeError, match="you can only change requires_grad flags of leaf variables"):
        y.requires_grad = False
    assert y.detach().is_leaf and y.detach().grad_fn is None and y.detach().numpy() is y.numpy(force=True)


def test_walking_the_graph_by_hand():
    w1, w2, x = leaf(0.1, 0.2), leaf(0.3, 0.4), t([1.0, 2.0])
    loss = total(exp(mul(w2, exp(mul(w1, x)))))
    want = [g.tolist() for g in engine.grad(loss, [w1, w2], retain_graph=True)]
    queue = [(loss.grad_fn, t(1.0))]
    while queue:
        node, ct = queue.pop(0)
        if node.name() == "AccumulateGrad":
            node.variable.total = ct if not hasattr(node.variable, "total") else add(node.variable.total, ct)
            continue
        cts = node(ct)
        for (child, _), part in zip(node.next_functions, cts if isinstance(cts, tuple) else (cts,)):
            if child is not None:
                queue.append((child, part))
    assert np.allclose([w1.total.tolist(), w2.total.tolist()], want, rtol=1e-6)


def test_calling_nodes():
    a = leaf(1, 2)
    node = mul(a, a).grad_fn
    one = t([1.0, 1.0])
    assert [g.tolist() for g in node(one)] == [[1, 2], [1, 2]] and node(one)[0].requires_grad
    assert node(None) == (None, None) and isinstance(exp(a).grad_fn(one), T.Tensor)
    assert node.next_functions[0][0](one) == () and a.grad.tolist() == [1, 1]
    with pytest.raises(AotgradTypeError, match="takes 1 gradient, one per output, but got 2"):
        node(one, one)
    with pytest.raises(AotgradTypeError, match="must be a Tensor or None, but got int"):
        node(3)


def test_copies_of_recorded_tensors():
    y = mul(leaf(1), leaf(2))
    with pytest.raises(AotgradRuntimeError, match="Only Tensors created explicitly by the user"):
        copy.deepcopy(y)
    assert copy.copy(y).is_leaf and copy.copy(y).requires_grad


# Memory and size


def test_no_reference_cycles():
    while gc.collect():  # what others left, and what that held
        pass
    gc.disable()
    try:
        a = leaf(1, 2)
        for step in range(3):
            y = exp(mul(a, a))
            y.retain_grad()
            y.register_hook(lambda g: None)
            refs = [weakref.ref(y), weakref.ref(y.grad_fn), weakref.ref(y.grad_fn.next_functions[0][0])]
            if step:
                total(y).backward(retain_graph=step == 1)
            a.grad = None
            del y
            assert [r() for r in refs] == [None] * 3
        a_ref, end = weakref.ref(a), weakref.ref(tape.accumulator_of(a))
        assert end() is None
        del a
        assert a_ref() is None
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_a_leaf_lives_as_long_as_its_graph():
    y = mul(leaf(3), leaf(4))
    leaves = [n.variable for n, _ in y.grad_fn.next_functions]
    y.backward()
    assert [x.grad.tolist() for x in leaves] == [[4], [3]]


def _in_small_thread(work):
    """Runs ``work`` on a stack far too small for recursion over the graph."""
    failed = []

    def guarded():
        try:
            work()
        except BaseException as error:
            failed.append(error)

    before = threading.stack_size(1024 * 1024)
    try:
        thread = threading.Thread(target=guarded)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    if failed:
        raise failed[0]


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("count", [30_000, pytest.param(100_000, marks=pytest.mark.thorough)])  # whose frames would take several times the stack
def test_long_graphs_run_and_free_without_recursion(create_graph, count):
    result = []

    def work():
        x = leaf(1.0)
        y, one = x, t([1.0])
        for _ in range(count):
            y = mul(y, one) if create_graph else add(y, x)
        (g,) = engine.grad(y, x, create_graph=create_graph)
        result.append(g.item())
        del y, g
        z = x
        for _ in range(count):
            z = mul(z, one)
        del z  # freed without ever having run

    _in_small_thread(work)
    assert result == [1.0 if create_graph else count + 1]


# Modes


def test_modes():
    a = leaf(1)
    assert modes.is_grad_enabled()
    with modes.no_grad():
        assert not modes.is_grad_enabled() and not mul(a, a).requires_grad and mul(a, a).is_leaf
        with modes.enable_grad():
            assert mul(a, a).requires_grad
        assert not modes.is_grad_enabled()
    with pytest.raises(KeyError), modes.no_grad():
        raise KeyError
    assert modes.is_grad_enabled() and not modes.flags.restricted


def test_set_grad_enabled():
    mode = modes.set_grad_enabled(False)
    assert not modes.is_grad_enabled() and repr(mode) == "aotgrad.autograd.grad_mode.set_grad_enabled(mode=False)"
    modes.set_grad_enabled(True)
    with modes.set_grad_enabled(False):
        assert not modes.is_grad_enabled()
    assert modes.is_grad_enabled()
    decorated = modes.set_grad_enabled(False)(modes.is_grad_enabled)
    assert modes.is_grad_enabled() and not decorated() and modes.is_grad_enabled()


def test_modes_decorate():
    @modes.no_grad()
    def plain():
        return modes.is_grad_enabled()

    @modes.no_grad
    def bare():
        """Doc."""
        return modes.is_grad_enabled()

    @modes.inference_mode
    def inferring():
        return modes.is_inference_mode_enabled(), modes.is_grad_enabled()

    assert not plain() and not bare() and inferring() == (True, False) and bare.__doc__ == "Doc."
    with modes.inference_mode(), modes.inference_mode(False):
        assert modes.is_grad_enabled() and not modes.is_inference_mode_enabled()
    with modes.no_grad(), modes.enable_grad():
        assert inferring() == (True, False) and modes.is_grad_enabled()


def test_modes_of_generators():
    inside = []

    @modes.no_grad()
    def numbers():
        try:
            got = yield modes.is_grad_enabled()
            inside.append((got, modes.is_grad_enabled()))
            try:
                yield 2
            except KeyError:
                yield modes.is_grad_enabled()
        finally:
            inside.append(modes.is_grad_enabled())
        return "end"

    g = numbers()
    assert next(g) is False and modes.is_grad_enabled()
    assert g.send("sent") == 2 and modes.is_grad_enabled() and inside == [("sent", False)]
    assert g.throw(KeyError()) is False and modes.is_grad_enabled()
    with pytest.raises(StopIteration) as stop:
        next(g)
    assert stop.value.value == "end" and inside[-1] is False
    h = numbers()
    next(h)
    h.close()
    assert inside[-1] is False and modes.is_grad_enabled()


def test_modes_are_per_thread_and_the_shared_byte_counts_them():
    byte = ctypes.c_uint8.from_address(modes.restricted_address())
    seen = []

    def other():
        seen.append(modes.is_grad_enabled())
        modes.set_grad_enabled(False)  # left off: the thread ends
        seen.append((modes.is_grad_enabled(), byte.value))

    assert byte.value == 0
    with modes.no_grad():
        assert byte.value == 1
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert seen == [True, (False, 1)] and byte.value == 0 and not modes.flags.restricted


# The same script against torch


def test_engine_matches_torch():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    for _ in range(30):
        start = [rng.standard_normal(3) * 0.3 for _ in range(3)]
        plan = [(rng.integers(0, 3), rng.integers(0, 3 + i), rng.integers(0, 3 + i)) for i in range(8)]

        def play(values, ops, plan=plan):
            for kind, i, j in plan:
                values.append(ops[kind](values[i], values[j]) if kind < 2 else ops[2](values[i]))
            return values

        ours = play([T.tensor(s, requires_grad=True) for s in start], (add, mul, lambda x: exp(mul(x, t(np.float64(0.1))))))
        theirs = play([torch.tensor(s, requires_grad=True) for s in start], (torch.add, torch.mul, lambda x: torch.exp(x * 0.1)))
        log, their_log = [], []
        for k, (a, b) in enumerate(zip(ours[3:-1], theirs[3:-1])):
            a.register_hook(lambda g, k=k, log=log: log.append(k))
            b.register_hook(lambda g, k=k, log=their_log: log.append(k))
        total(ours[-1]).backward()
        theirs[-1].sum().backward()
        assert log == their_log
        for a, b in zip(ours[:3], theirs[:3]):
            assert (a.grad is None) == (b.grad is None)
            if a.grad is not None:
                assert np.allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-12, atol=0)
