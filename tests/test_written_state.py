"""Compiled functions that write: tensors in variables, gradients, attributes, and what Python code changes. Each against the same lines run eagerly."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aotgrad as ag

CAP = np.arange(3.0)
COUNT = 0
LOG: list[int] = []


class Box:
    w: Any
    n: Any
    v: Any
    items: list[int]


def t(*values: float, **options: Any) -> Any:
    return ag.tensor(list(values), **options)


def same(a: Any, b: Any) -> None:
    assert (a is None) == (b is None)
    if a is not None:
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=2e-6, atol=1e-7)
        assert a.requires_grad == b.requires_grad


def both(make: Callable[[], tuple[Any, list[Any], list[Any]]], steps: int = 3) -> None:
    """``make()`` gives a function, tensors it uses, and its arguments: all of them must be equal after some calls, eager and compiled."""
    got = []
    for compiled in (False, True):
        f, tensors, args = make()
        g = ag.compile(f) if compiled else f
        outs = [g(*args) for _ in range(steps)]
        got.append(([x for out in outs for x in (out if isinstance(out, tuple) else (out,))], [*tensors, *args]))
    (eager, held), (compiled_outs, compiled_held) = got
    for a, b in zip(eager, compiled_outs):
        same(a, b)
    for a, b in zip(held, compiled_held):
        same(a, b)
        same(a.grad, b.grad)
        assert bool(a._version) == bool(b._version)


# ---- memory -----------------------------------------------------------------------------------------------------------------------------

def test_writes_through_views() -> None:
    def make() -> Any:
        w = ag.tensor([[1.0, 2.0], [3.0, 4.0]])

        def f(x: Any) -> Any:
            w.T[0].add_(x)
            w[1] = w[0] * 2
            v = w.view(-1)
            v[2:] *= 2
            d = w.detach()
            d[0, 0] = 7.0
            w.data[0, 1] -= 1
            w.data = w.data * 0.5
            return w.sum()

        return f, [w], [t(1.0, 2.0)]

    both(make)


def test_writes_by_name_and_attribute() -> None:
    def make() -> Any:
        w, b = t(1.0, 2.0), Box()
        b.w, b.n = t(3.0, 4.0), ag.tensor(0.0)

        def f(x: Any) -> Any:
            b.w -= x
            b.w.copy_(b.w * 2)
            b.n += 1
            b.n.mul_(1.5)
            w.zero_()
            w.fill_(3.0)
            w[0] = x[0]
            return b.w.sum() * w.sum()

        return f, [w, b.w, b.n], [t(1.0, 2.0)]

    both(make)


def test_memory_is_shared_with_numpy_and_the_tape_keeps_old_numbers() -> None:
    data = np.array([1.0, 2.0])
    w = ag.from_numpy(data)
    f = ag.compile(lambda x: w.mul_(x).sum())
    a = t(1.0, 1.0, dtype=ag.float64, requires_grad=True)
    y = (a * w).sum()
    f(t(3.0, 4.0, dtype=ag.float64))
    y.backward()
    assert data.tolist() == [3.0, 8.0] and a.grad.tolist() == [1.0, 2.0]


def test_a_failing_call_changes_nothing() -> None:
    w = t(1.0, 2.0)

    def f(i: Any) -> Any:
        w.add_(1.0)
        return w[i]

    g = ag.compile(f)
    assert g(ag.tensor([1])).tolist() == [3.0]
    with pytest.raises(IndexError):
        g(ag.tensor([5]))
    assert w.tolist() == [2.0, 3.0]


def test_a_name_bound_to_another_tensor_is_written_there() -> None:
    b = Box()
    b.w = first = t(0.0)

    def f(x: Any) -> Any:
        b.w.add_(x)
        return b.w * 1.0

    g = ag.compile(f)
    g(t(1.0))
    b.w = t(10.0)
    assert g(t(1.0)).tolist() == [11.0] and first.tolist() == [1.0] and g.cache_info().traces == 1


@pytest.mark.parametrize("case", ["one tensor twice", "a view", "a captured view"])
def test_aliased_memory(case: str) -> None:
    def make() -> Any:
        z = t(1.0, 2.0, 3.0)
        v = z[1:]

        def f(a: Any, b: Any) -> Any:
            a.add_(1)
            b.mul_(2)
            return a.sum() * b

        def g(b: Any) -> Any:
            v.add_(1)
            b.mul_(2)
            z.mul_(b.sum())
            return z.sum() * b

        return (g, [z, v], [t(1.0, 1.0)]) if case == "a captured view" else (f, [], [z, z if case == "one tensor twice" else z[1:]])

    both(make)


# ---- gradients --------------------------------------------------------------------------------------------------------------------------

def test_gradients_accumulate() -> None:
    def make() -> Any:
        w, x = t(1.0, 2.0, requires_grad=True), t(3.0, 4.0, requires_grad=True)

        def f(x: Any) -> Any:
            loss = (w * x).sum() ** 2
            loss.backward(retain_graph=True)
            loss.backward()
            return w.grad * 1, x.grad * 1

        return f, [w], [x]

    both(make)


def test_gradients_set_to_none_and_to_zero() -> None:
    def make() -> Any:
        w = t(1.0, 2.0, requires_grad=True)

        def f(x: Any) -> Any:
            w.grad = None
            (w * x).exp().sum().backward()
            g = w.grad.clone()
            w.grad.zero_()
            (w * w * x).sum().backward()
            with ag.no_grad():
                w.sub_(w.grad * 0.1)
            return g

        return f, [w], [t(0.3, 0.4)]

    both(make)


def test_gradients_of_gradients() -> None:
    def make() -> Any:
        w = t(1.0, 2.0, requires_grad=True)

        def f(x: Any) -> Any:
            (g,) = ag.autograd.grad((w ** 3 * x).sum(), w, create_graph=True)
            (g ** 2).sum().backward()
            return g.detach()

        return f, [w], [t(0.3, 0.4)]

    both(make)


def test_gradients_of_intermediates_and_new_leaves() -> None:
    def make() -> Any:
        w = t(1.0, 2.0, requires_grad=True)

        def f(x: Any) -> Any:
            y = w * x
            z = y.exp()
            a, b = ag.autograd.grad((z * y).sum(), [y, z], retain_graph=True)
            c = ag.autograd.grad((z * y).sum(), [w, y, z])
            u = x.detach().requires_grad_()
            (u * u).sum().backward()
            return a, b, *c, u.grad

        return f, [w], [t(0.3, 0.4)]

    both(make)


def test_unused_inputs() -> None:
    w, v = t(1.0, 2.0, requires_grad=True), t(1.0, requires_grad=True)
    f = ag.compile(lambda x, **k: ag.autograd.grad((w * x).sum(), [w, v], **k), static=("allow_unused", "materialize_grads"))
    assert f(t(1.0, 1.0), allow_unused=True)[1] is None
    assert f(t(1.0, 1.0), materialize_grads=True)[1].tolist() == [0.0]
    with pytest.raises(RuntimeError, match="not have been used"):
        f(t(1.0, 1.0))


def test_several_steps_in_one_call() -> None:
    def make() -> Any:
        w = t(1.0, 2.0, requires_grad=True)

        def f(x: Any) -> Any:
            for _ in range(3):
                w.grad = None
                loss = ((w * x - 1) ** 2).sum()
                loss.backward()
                with ag.no_grad():
                    w.sub_(0.1 * w.grad)
            return loss

        return f, [w], [t(0.3, 0.4)]

    both(make)


def test_hooks_of_leaves_and_intermediates() -> None:
    seen: list[Any] = []

    def make() -> Any:
        w = t(1.0, 2.0, requires_grad=True)
        w.register_hook(lambda g: (seen.append(g.tolist()), g * 2)[1])

        def f(x: Any) -> Any:
            y = w * x
            y.register_hook(lambda g: g + 1)
            (y * y).sum().backward()
            return w.grad * 1

        return f, [w], [t(0.3, 0.4)]

    both(make)
    assert len(seen) == 6 and seen[:3] == seen[3:]


def test_a_hook_that_is_registered_later_is_called() -> None:
    w = t(1.0, 2.0, requires_grad=True)

    def f(x: Any) -> Any:
        w.grad = None
        (w * x).sum().backward()
        return w.grad * 1

    g = ag.compile(f)
    assert g(t(1.0, 1.0)).tolist() == [1.0, 1.0]
    w.register_hook(lambda ct: ct * 5)
    assert g(t(1.0, 1.0)).tolist() == [5.0, 5.0]


def test_requires_grad_reaches_the_real_tensor() -> None:
    def make() -> Any:
        def f(x: Any) -> Any:
            x.requires_grad_(True)
            (x * x).sum().backward()
            return x * 2

        return f, [], [t(0.3, 0.4)]

    both(make)


def test_a_loop_is_run_once() -> None:
    def make() -> Any:
        w = t(0.5, 0.6, requires_grad=True)

        def f(x: Any) -> Any:
            c, _ = ag.scan(lambda c, i: (c * w + x, c), x, ag.arange(5))
            loss = c.sum()
            loss.backward()
            return loss

        return f, [w], [t(0.3, 0.4)]

    both(make)
    f, _, args = make()
    assert str(ag.compile(f).trace(*args)).count('"ag.scan"') == 2  # forward, and backward


def test_the_outer_tape_goes_on() -> None:
    def make() -> Any:
        w, m = t(1.0, 2.0, requires_grad=True), t(0.0, 0.0)

        def f(x: Any) -> Any:
            y = w * x
            with ag.no_grad():
                m.mul_(0.9)
                m.add_(0.1 * y)
            return y

        return f, [w, m], [t(0.3, 0.4)]

    both(make)
    f, (w, _), (x,) = make()
    ag.compile(f)(x).sum().backward()
    np.testing.assert_allclose(w.grad.numpy(), x.numpy())


def test_errors_of_backward() -> None:
    w, x = t(1.0, 2.0, requires_grad=True), t(1.0, 2.0)

    def twice(x: Any) -> Any:
        loss = (w * w * x).sum()
        loss.backward()
        loss.backward()
        return loss

    def in_place(x: Any) -> Any:
        w.add_(x)
        return w

    def used_up(x: Any) -> Any:
        loss = (w * w * x).sum()
        loss.backward()
        return loss

    for f, what in ((twice, "second time"), (in_place, "leaf"), (lambda x: x.sum().backward(), "does not require grad"), (lambda x: (w * x).backward(), "scalar")):
        with pytest.raises(RuntimeError, match=what):
            ag.compile(f)(x)
    assert w.tolist() == [1.0, 2.0] and w.grad is None
    with pytest.raises(RuntimeError, match="second time"):
        ag.compile(used_up)(x).backward()
    outside = (w * 2).sum()
    with pytest.raises(TypeError, match="outside"):
        ag.compile(lambda x: outside.backward())(x)


# ---- Python -----------------------------------------------------------------------------------------------------------------------------

def test_a_numpy_array_that_is_written_is_refused_with_the_line() -> None:
    def f(x: Any) -> Any:
        CAP[1] += 1
        return x * CAP

    g = ag.compile(f)
    for _ in range(2):
        with pytest.raises(TypeError, match=r"CAP\[1\] \+= 1(.|\n)*array CAP"):
            g(np.ones(3))
    assert CAP.tolist() == [0, 1, 2]


def test_a_counter_that_matters_is_counted_at_every_call() -> None:
    b = Box()
    b.n, b.items = 0, []

    def f(x: Any) -> Any:
        global COUNT
        b.n += 1
        COUNT += 1
        b.items.append(1)
        LOG.append(b.n)
        return x * b.n

    g = ag.compile(f)
    with pytest.warns(ag.AotgradWarning, match="traced again at every call"):
        assert g(2.0) == 2.0
    assert g(2.0) == 4.0 and g(2.0) == 6.0 and b.n == 3 == COUNT and b.items == [1] * 3 and LOG == [1, 2, 3]


def test_a_counter_that_does_not_matter_is_listed() -> None:
    b = Box()
    b.n = 0

    def f(x: Any, k: int) -> Any:
        b.n += 1
        return x * len(range(k))

    g = ag.compile(f)
    assert g(2.0, 3) == 6.0 and g(2.0, 3) == 6.0 and b.n == 1
    assert "changed while tracing only: " in g.explain(2.0, 3) and g.cache_info().variants == 1
    assert g(2.0, 4) == 8.0 and b.n == 2


def test_attributes_bound_to_computed_values() -> None:
    class Rnn(ag.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.h = ag.zeros(2)
            self.w = ag.nn.Parameter(ag.ones(2) * 0.5)

        def forward(self, x: Any) -> Any:
            with ag.no_grad():
                self.h = (self.h * self.w + x).tanh()
            self.last = self.h * 2
            return self.h.sum()

    a, b, x = Rnn(), Rnn(), t(0.1, 0.2)
    f = ag.compile(b)
    for _ in range(4):
        same(a(x), f(x))
        same(a.h, b.h)
        same(a.last, b.last)
    assert f.cache_info().traces <= 2
    box = Box()
    box.v = np.zeros(2)

    def g(x: Any) -> Any:
        box.v = box.v + x
        return box.v * 2

    h = ag.compile(g)
    for k in range(3):
        assert h(np.ones(2)).tolist() == [2.0 * (k + 1)] * 2
        assert type(box.v) is np.ndarray and box.v.tolist() == [k + 1.0] * 2


def test_integers_as_keys_and_defaults_bound_anew() -> None:
    f = ag.compile(lambda x, n: x * {2: 10.0}.get(n, 0.0))
    assert f(1.0, 2) == 10.0 and f(1.0, 3) == 0.0 and f(2.0, 2) == 20.0

    def g(x: Any, k: float = 2.0, *, m: float = 3.0) -> Any:
        return x * k * m

    h = ag.compile(g)
    assert h(1.0) == 6.0 and h(1.0) == 6.0
    g.__defaults__ = (5.0,)
    assert h(1.0) == 15.0 and h(1.0) == 15.0
    g.__kwdefaults__ = {"m": 1.0}
    assert h(1.0) == 5.0 and h(1.0) == 5.0


# ---- the short way ----------------------------------------------------------------------------------------------------------------------

def training() -> tuple[Any, Any, Any, Any]:
    net = ag.nn.Sequential(ag.nn.Linear(3, 4), ag.nn.Tanh(), ag.nn.Linear(4, 1))
    opt = ag.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def step(x: Any, y: Any) -> Any:
        opt.zero_grad()
        loss = ag.nn.functional.mse_loss(net(x), y)
        loss.backward()
        opt.step()
        return loss

    return net, opt, step, ag.compile(step)


def test_the_short_way_sees_what_changes() -> None:
    ag.manual_seed(0)
    net, opt, step, f = training()
    rng = np.random.default_rng(0)
    x, y = ag.tensor(rng.normal(size=(8, 3)).astype("f4")), ag.tensor(rng.normal(size=(8, 1)).astype("f4"))

    def check(a: Any, b: Any, run: Any = f) -> None:
        before = {k: v.clone() for k, v in net.state_dict().items()}
        kept = [opt.state[p]["momentum_buffer"].clone() for p in net.parameters()] if opt.state else []
        got = [run(a, b), *(p.clone() for p in net.parameters()), *(p.grad.clone() for p in net.parameters())]
        net.load_state_dict(before)
        with ag.no_grad():
            for p, m in zip(net.parameters(), kept):
                opt.state[p]["momentum_buffer"].copy_(m)
        if not kept:
            opt.state.clear()
        wanted = [step(a, b), *net.parameters(), *(p.grad for p in net.parameters())]
        for u, v in zip(got, wanted):
            np.testing.assert_allclose(u.detach().numpy(), v.detach().numpy(), rtol=1e-5, atol=1e-6)

    for _ in range(4):
        check(x, y)
    traces = f.cache_info().traces
    opt.param_groups[0]["lr"] = 0.01
    check(x, y)
    check(x[:4], y[:4])  # other sizes
    check(x.t().contiguous().t(), y)  # other strides
    net[0].weight = ag.nn.Parameter(net[0].weight.detach().clone())
    opt.param_groups[0]["params"][0] = net[0].weight
    opt.state.clear()
    for _ in range(3):
        check(x, y)
    net[2].bias.data = net[2].bias.detach() + 1.0  # other memory
    check(x, y)
    check(x, y)
    assert traces <= 4
    net[0].weight.register_hook(lambda g: g * 2)
    check(x, y)
    net[1].register_forward_hook(lambda mod, args, out: out * 0.5)
    check(x, y)
    opt.param_groups[0]["momentum"] = 0.0
    check(x, y)
    net[0].weight.requires_grad_(False)
    f(x, y)
    assert net[0].weight.grad is None


def test_the_short_way_copies_what_the_tape_needs_and_shares_memory() -> None:
    w = t(2.0)
    seen = w.numpy()
    f = ag.compile(lambda x: w.add_(x).sum())
    for k in range(3):
        a = t(1.0, requires_grad=True)
        y = (a * w).sum()
        f(t(1.0))
        y.backward()
        assert a.grad.tolist() == [2.0 + k] and seen.tolist() == [3.0 + k] and w._version == k + 1


def test_memory_that_overlaps_goes_the_general_way() -> None:
    def make() -> Any:
        w = t(1.0, 2.0, 3.0)

        def f(x: Any) -> Any:
            w.mul_(2)
            return w.sum() + x.sum()

        return f, w

    got = []
    for compiled in (False, True):
        f, w = make()
        g = ag.compile(f) if compiled else f
        got.append([g(x).item() for x in (t(1.0, 1.0), t(1.0, 1.0), w[:2], w[1:], t(1.0, 1.0))])
    assert got[0] == got[1]


# ---- what is made inside ------------------------------------------------------------------------------------------------------------------

def test_tensors_made_inside_are_no_state() -> None:
    def f(x: Any) -> Any:
        a = ag.tensor([1.0, 2.0])
        a[0] = x[0]
        a += 1
        b = ag.tensor([1.0, 2.0], requires_grad=True)
        c = ag.ones(2, requires_grad=True)
        (b * c * x).sum().backward()
        return a, b.grad, c.grad, c, ag.ones(2, requires_grad=True), (a.clone() + b.detach().to(ag.float64).float())

    def make() -> Any:
        return f, [], [t(3.0, 4.0)]

    both(make)


def test_copies_of_tensors_in_variables() -> None:
    def make() -> Any:
        w = t(1.0, 2.0)

        def f(x: Any) -> Any:
            u = w.clone()
            u.mul_(3.0)
            w.add_(1.0)
            return u * x + w.to(ag.float64).sum() + w.contiguous()

        return f, [w], [t(3.0, 4.0)]

    both(make)


def test_tensors_come_out_of_functions_of_no_arrays() -> None:
    c = ag.tensor(0.0)
    f = ag.compile(lambda: c.add_(1.0).clone())
    assert [type(f()) for _ in range(3)] == [ag.Tensor] * 3 and c.item() == 3.0
    w = t(1.0, 2.0, requires_grad=True)
    g = ag.compile(lambda k: (w * k).sum())
    g(2.0).backward()
    assert w.grad.tolist() == [2.0, 2.0]


def test_verify_looks_before_the_call() -> None:
    w = t(1.0, 2.0)
    f = ag.compile(lambda x: w.add_(x) * 2, verify=2)
    assert f(ag.ones(2)).tolist() == [4.0, 6.0] and f(ag.ones(2)).tolist() == [6.0, 8.0] and w.tolist() == [3.0, 4.0]


# ---- history ------------------------------------------------------------------------------------------------------------------------------

def _data(x: Any, new: Any) -> None:
    x.data = new


UNRECORDED: dict[str, Callable[[Any], Any]] = {
    "fill_": lambda y: y.fill_(0.5), "copy_": lambda y: y.copy_(ag.ones(2)), "x[i] = v": lambda y: y.__setitem__(0, 0.5), "mul_": lambda y: y.mul_(2),
    "data.copy_": lambda y: y.data.copy_(ag.ones(2)), "data = new": lambda y: _data(y, ag.ones(2, 2) * 2), "detach().copy_": lambda y: y.detach().copy_(ag.ones(2)),
}


@pytest.mark.parametrize("permuted", [False, True])
@pytest.mark.parametrize("how", UNRECORDED)
def test_an_unrecorded_write_keeps_the_history_in_every_memory_order(how: str, permuted: bool) -> None:
    got = []
    for wrapped in (lambda f: f, ag.compile):
        x = ag.tensor([[1.0, -2.0], [3.0, -4.0]])
        x = (x.t() if permuted else x).requires_grad_()

        def f(x: Any) -> Any:
            y = x * 3
            with ag.no_grad():
                UNRECORDED[how](y)
            return (y * y).sum(), y

        out, y = wrapped(f)(x)
        out.backward()
        got.append((out.item(), x.grad.tolist(), y.tolist(), y.requires_grad, how == "data = new" or y.stride()))  # that one is a copy in compiled code
    assert got[0] == got[1]


def test_a_recorded_write_keeps_the_memory_order() -> None:
    x = ag.ones(2, 3).t()
    assert ag.compile(lambda x: (x * 2).copy_(ag.zeros(2)))(x).stride() == (1, 3)


def _cut_intermediate(x: Any, w: Any) -> Any:
    y = x * 3
    z = y * 2
    y.detach_()
    return (y * x + z).sum()


def _cut_new_leaf(x: Any, w: Any) -> Any:
    y = x.detach().requires_grad_()
    z = y * 2
    y.detach_()
    return (z * y + x).sum()


def _cut_argument(x: Any, w: Any) -> Any:
    return (x.detach_() * 2 + w).sum()


def _cut_variable(x: Any, w: Any) -> Any:
    w.detach_()
    return (x * w).sum()


@pytest.mark.parametrize("f", [_cut_intermediate, _cut_new_leaf, _cut_argument, _cut_variable])
def test_detach_in_place(f: Any) -> None:
    got = []
    for wrapped in (lambda f: f, ag.compile):
        x, w = t(1.0, 2.0, requires_grad=True), t(5.0, 7.0, requires_grad=True)
        out = wrapped(lambda x, w=w: f(x, w))(x)
        out.backward()
        got.append((out.item(), *[(v.requires_grad, None if v.grad is None else v.grad.tolist()) for v in (x, w)]))
    assert got[0] == got[1]


def test_detach_in_place_of_what_cannot_be_cut_is_refused() -> None:
    x = t(1.0, 2.0, requires_grad=True) * 2
    with pytest.raises(ag.AotgradRuntimeError, match=r"graph that was made outside; use x = x\.detach\(\)"):
        ag.compile(lambda x: x.detach_() * 2)(x)
    with pytest.raises(ag.AotgradRuntimeError, match="Can't detach views in-place"):
        ag.compile(lambda x: (x * 2)[0].detach_())(x)
    assert ag.compile(lambda x: (x * 2).detach_())(ag.tensor([1, 2])).tolist() == [2, 4]


@pytest.mark.parametrize("read", [lambda u: float(u.numpy().sum()), lambda u: np.from_dlpack(u).sum(), lambda u: u.data.numpy().sum(), lambda u: copy.deepcopy(u).sum(),
                                  lambda u: copy.copy(u).sum(), lambda u: pickle.loads(pickle.dumps(u)).sum(), lambda u: np.asarray(u).sum(), lambda u: u[0].item()],
                         ids=["numpy", "dlpack", "data", "deepcopy", "copy", "pickle", "asarray", "item"])
def test_numbers_of_what_was_made_and_written_in_the_call(read: Any) -> None:
    """Its numbers are computed when it is called: they are no constants of the trace, before the write as after it where the memory is shared."""
    def after(k: Any) -> Any:
        u = ag.tensor([1.0, 2.0, 3.0])
        u[0] = k
        return read(u) * k

    def through_a_view(k: Any) -> Any:
        u = ag.tensor([1.0, 2.0, 3.0])
        u[:2].mul_(k)
        return read(u) * k

    for f in (after, through_a_view):
        with pytest.raises(ag.AotgradError, match="numbers"):
            ag.compile(f)(0.5)


def test_a_copy_of_a_captured_tensor_is_made_anew() -> None:
    w = ag.tensor([1.0, 2.0])
    f = ag.compile(lambda k: copy.deepcopy(w).sum() * k)
    assert f(2.0).item() == 6.0
    w.add_(1.0)
    assert f(2.0).item() == 10.0


MADE_INSIDE: dict[str, Callable[[Any], Any]] = {
    "grad": ag.grad, "jacfwd": ag.jacfwd, "hessian": ag.hessian, "vmap": lambda f: lambda k: ag.vmap(f)(ag.stack([k, 2 * k])),
    "jvp": lambda f: lambda k: ag.jvp(f, (k,), (k,))[1], "scan": lambda f: lambda k: ag.scan(lambda s, x: (s + f(x * k), s), k * 0, np.arange(3.0))[0],
    "cond": lambda f: lambda k: ag.cond(k > 0, f, lambda k: k, k), "grad of map": lambda f: ag.grad(lambda k: ag.map(lambda x: f(x * k), np.arange(1.0, 3.0)).sum()),
}


@pytest.mark.parametrize("name", MADE_INSIDE)
def test_tensors_made_inside_a_transform_or_a_loop_are_written_there(name: str) -> None:
    """Each run of the body begins with the numbers it was made with; what reads it later in the body sees what was written, through views too."""
    start = np.array([1.0, 2.0, 3.0, 4.0])

    def f(k: Any) -> Any:
        u = ag.tensor(start)
        before = u.sum()
        u[3] = k * 2
        v = u[:2]
        v.mul_(k)
        return np.sum(u ** 2) + before * k + ag.as_tensor(u)[0]

    def plain(k: Any) -> Any:
        u = ag.stack([k * 1.0, k * 2.0, k * 0 + 3.0, k * 2])
        return np.sum(u ** 2) + 10.0 * k + u[0]

    transform = MADE_INSIDE[name]
    for k in (0.3, 1.5):
        for run in (ag.compile(transform(f)), ag.compile(lambda k: transform(f)(k) * 1.0)):
            np.testing.assert_allclose(np.asarray(run(k)), np.asarray(transform(plain)(ag.tensor(k, dtype=ag.float64)).detach()), rtol=1e-13)
    assert start.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_numbers_of_what_was_made_and_written_inside_a_transform() -> None:
    def f(k: Any) -> Any:
        u = ag.tensor([1.0, 2.0])
        u[0] = k
        return k * float(u.numpy().sum())

    with pytest.raises(ag.AotgradRuntimeError, match="numbers of a tensor that it writes to are also read"):
        ag.compile(ag.grad(f))(0.5)
