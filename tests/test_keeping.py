"""Compiled functions keep what depends on weights alone: as long as nobody has written to them, however that is done."""

from __future__ import annotations

import copy
import ctypes
import gc
import os
import pickle
import threading
import weakref

import numpy as np
import pytest

import aotgrad as ag
from aotgrad_runtime.watched import watch

F = ag.nn.functional
_libc = ctypes.CDLL(None)


class Net:
    """A convolution with a norm, and a matrix; its weights in attributes."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.w = ag.tensor(rng.standard_normal((24, 16, 3, 3)))
        self.s = ag.tensor(rng.uniform(0.5, 1.5, 24))
        self.v = ag.tensor(rng.standard_normal((24, 40)))

    def __call__(self, x):
        y = F.relu(F.conv2d(x, self.w, None, 1, 1) * ag.exp(self.s).reshape(1, 24, 1, 1))
        return y.mean((2, 3)) @ (self.v * 2.0)


class Module(ag.nn.Module):
    """A convolution, a norm with running statistics, and a layer."""

    def __init__(self) -> None:
        super().__init__()
        rng = np.random.default_rng(0)
        self.w = ag.nn.Parameter(ag.tensor(rng.standard_normal((24, 16, 3, 3))))
        self.mean, self.var = (ag.nn.Buffer(ag.tensor(a)) for a in (np.zeros(24), rng.uniform(0.5, 1.5, 24)))
        self.last = ag.nn.Linear(24, 10, dtype=ag.float64)

    def forward(self, x):
        y = F.batch_norm(F.conv2d(x, self.w, None, 1, 1), self.mean, self.var, training=self.training)
        return self.last(F.relu(y).mean((2, 3)))


def _image(n: int = 2):
    return ag.tensor(np.random.default_rng(1).standard_normal((n, 16, 12, 12)))


def _pair():
    net = Net()
    return net, ag.compile(net.__call__)


def _program(f, k: int = 0):
    return [v for vs in f.trace.__self__.variants.values() for v in vs if v.program is not None][k].program


def _keeps(f) -> bool:
    kept = _program(f).kept
    return kept is not None and kept.good is not None


def _same(f, net, x=None) -> None:
    x = _image() if x is None else x
    with ag.no_grad():
        np.testing.assert_allclose(f(x).numpy(), net(x).numpy(), rtol=1e-10, atol=1e-10)


def _from_view(net):
    net.w[3].mul_(2.0)


def _detached(net):
    net.w.detach().add_(1.0)


def _optimiser(net):
    p = ag.nn.Parameter(net.w)
    p.grad = ag.ones_like(p)
    ag.optim.SGD([p], lr=0.5).step()


def _compiled_writer(net):
    w, s = net.w, net.s

    @ag.compile
    def write():
        w.mul_(1.5)
        s.add_(w.sum())
        return s.sum()

    for _ in range(3):
        write()
        s.fill_(0.25)


def _gradient(net):
    leaf = ag.zeros_like(net.w).requires_grad_()
    leaf.grad = net.w
    (leaf * 2.0).sum().backward()  # adds where the gradient lies


def _out(net):
    ag.compile(lambda x: x * 3.0)(net.s.clone(), out=net.s)


WRITES = {
    "in place": lambda net: net.w.mul_(2.0),
    "item": lambda net: net.s.__setitem__(3, 5.0),
    "view": _from_view,
    "detach": _detached,
    "data": lambda net: net.w.data.add_(1.0),
    "data of data": lambda net: net.w.data.data.add_(1.0),
    "shallow copy": lambda net: copy.copy(net.w).add_(1.0),
    "parameter of it": lambda net: ag.nn.Parameter(net.w).data.add_(1.0),
    "optimiser": _optimiser,
    "gradient": _gradient,
    "copy_": lambda net: net.v.copy_(ag.ones(24, 40, dtype=ag.float64)),
    "new data": lambda net: setattr(net.w, "data", ag.ones(24, 16, 3, 3, dtype=ag.float64)),
    "another tensor": lambda net: setattr(net, "w", ag.ones(24, 16, 3, 3, dtype=ag.float64)),
    "compiled function": _compiled_writer,
    "out=": _out,
}


@pytest.mark.parametrize("how", WRITES)
def test_every_write_is_seen(how: str) -> None:
    net, f = _pair()
    for _ in range(3):
        _same(f, net)
    assert _keeps(f)
    for _ in range(2):
        WRITES[how](net)
        _same(f, net)
        _same(f, net)
    assert _keeps(f)


def _numpy(net):
    return net.w.numpy()


def _asarray(net):
    return np.asarray(net.w)


def _dlpack(net):
    return np.from_dlpack(net.w)


def _address(net):
    return np.ctypeslib.as_array((ctypes.c_double * 100).from_address(net.w.data_ptr()))


def _buffers(net):
    buffers: list[pickle.PickleBuffer] = []
    pickle.dumps(net.w, protocol=5, buffer_callback=buffers.append)
    return np.frombuffer(buffers[0], np.float64) if buffers else net.w.numpy()


def _deep(net):
    """A part of an array that is gone itself."""
    whole = net.w.numpy()
    return whole[1:]


ALIASES = {"numpy": _numpy, "asarray": _asarray, "dlpack": _dlpack, "address": _address, "pickle buffers": _buffers, "part": _deep}


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("how", ALIASES)
def test_whoever_has_the_array_may_write(how: str, before: bool) -> None:
    """Before the first call, or after it: from then on nothing is kept."""
    net, f = _pair()
    if before:
        alias = ALIASES[how](net)
    for _ in range(3):
        _same(f, net)
    if not before:
        assert _keeps(f)
        alias = ALIASES[how](net)
    for k in range(3):
        alias.reshape(-1)[:50] = k
        _same(f, net)
    assert not np.may_share_memory(alias, np.zeros(1)) and watch(net.w) is None


@pytest.mark.parametrize("make", [ag.from_numpy, ag.as_tensor, ag.from_dlpack, lambda a: ag.nn.Parameter(ag.from_numpy(a)), lambda a: ag.from_numpy(a)[:]])
def test_memory_of_arrays(make) -> None:
    net, f = _pair()
    array = np.ones((24, 16, 3, 3), np.float64)
    net.w = make(array)
    for k in range(4):
        array[:, k] = k
        _same(f, net)


def test_arrays_in_variables_are_read_at_every_call() -> None:
    w, x = np.ones((64, 64), np.float64), np.ones((40, 64), np.float64)
    f = ag.compile(lambda x: x @ np.exp(w))
    for k in range(3):
        w[:] = k
        np.testing.assert_allclose(f(x), x @ np.exp(w), rtol=1e-5)


def test_array_that_is_gone_is_no_stranger() -> None:
    net, f = _pair()
    net.w = ag.as_tensor(np.ones((24, 16, 3, 3), np.float64))
    net.w.numpy().sum()
    _same(f, net)
    assert _keeps(f)


def test_training_and_evaluation() -> None:
    """Steps that write weights keep nothing; evaluation between them is right, and keeps what it can although a compiled step holds the arrays."""
    net = Net()
    net.w.requires_grad_()
    optimiser = ag.optim.SGD([net.w], lr=0.1, momentum=0.5)
    x = _image()

    @ag.compile
    def step(x):
        optimiser.zero_grad()
        loss = (net(x) ** 2).mean()
        loss.backward()
        optimiser.step()
        return loss

    f = ag.compile(net.__call__)
    for _ in range(3):
        step(x)
    for _ in range(3):
        _same(f, net)
    assert not any(v.hidden[place - 1][0] is net.w for vs in step.trace.__self__.variants.values() for v in vs if v.program for place in v.program.kept.places)
    assert _keeps(f)
    step(x)
    _same(f, net)
    before = net.w.grad.clone()
    f(x).sum().backward()  # recorded: another program, which packs these weights at every call
    assert not ag.equal(net.w.grad, before) and len(f.trace.__self__.variants) == 2
    _same(f, net)


def test_weights_that_change_at_every_call_are_not_packed_in_vain() -> None:
    net, f = _pair()
    fills = []
    _same(f, net)
    kept = _program(f).kept
    fill, kept.fill = kept.fill, lambda arrays: fills.append(1) or fill(arrays)
    for _ in range(40):
        net.w.mul_(0.99)
        _same(f, net)
    assert 3 <= len(fills) < 12
    with ag.no_grad():
        for _ in range(1100):
            f(_image())
    assert _keeps(f)
    _same(f, net)


def test_two_sets_of_weights_in_turn() -> None:
    nets = [Net(0), Net(1)]
    box = [nets[0]]
    f = ag.compile(lambda x: box[0](x))
    for k in range(12):
        box[0] = nets[k % 2]
        _same(f, box[0])


def test_explain_counts_it() -> None:
    net, f = _pair()
    x = _image()
    found = f.explain(x)
    assert found.kept > 16 * 9 * 24 * 8 and found.peak_memory == found.results + found.workspace + found.copies + found.kept
    assert "computed once" in found and f"{found.kept:,} kept between calls" in found
    net.w.numpy()
    found = f.explain(x)
    assert found.kept == 0 and "computed at every call, though it depends on weights alone" in found
    assert "kept" not in ag.compile(lambda x: x * 2.0).explain(x)


def test_what_is_kept_goes_with_the_function() -> None:
    net, f = _pair()
    _same(f, net)
    block = _program(f).kept.good.block
    owner = weakref.ref(block.base)
    assert block.nbytes == _program(f).kept.kernel.once["bytes"] and block.ctypes.data % 64 == 0
    del block, f
    gc.collect()
    assert owner() is None


def test_old_block_goes_with_the_new_one() -> None:
    net, f = _pair()
    _same(f, net)
    owner = weakref.ref(_program(f).kept.good.block.base)
    net.w.mul_(2.0)
    _same(f, net)
    assert owner() is None


def test_callers_on_threads_and_a_writer() -> None:
    net, f = _pair()
    x = _image()
    with ag.no_grad():
        f(x)
        stop, wrong = threading.Event(), []
        scales = [float(2.0 ** k) for k in range(4)]
        base = (f(x) / net.v.mean()).numpy()
        first = net.v.clone()
        wanted = [(f(x) * s).numpy() for s in scales]

        def call() -> None:
            with ag.no_grad():
                while not stop.is_set():
                    got = f(x).numpy()
                    if not any(np.allclose(got, w, rtol=1e-4, atol=1e-3) for w in wanted) and len(wrong) < 3:
                        wrong.append(got)

        threads = [threading.Thread(target=call) for _ in range(3)]
        for t in threads:
            t.start()
        for k in range(60):
            net.v = first * scales[k % 4]  # replaced as a whole: each call sees one of them
        stop.set()
        for t in threads:
            t.join()
        assert base.shape == wanted[0].shape and not wrong
        for _ in range(20):
            net.w.mul_(1.01)
            _same(f, net)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_child_of_fork() -> None:
    net, f = _pair()
    x = _image()
    with ag.no_grad():
        expected = f(x).numpy()
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            same = np.array_equal(f(x).numpy(), expected)
            net.w.mul_(2.0)
            os.write(write, bytes([same and np.allclose(f(x).numpy(), net(x).numpy(), rtol=1e-4, atol=1e-4)]))
            os._exit(0)
        assert os.read(read, 1) == b"\x01"
        os.waitpid(pid, 0)
        np.testing.assert_array_equal(f(x).numpy(), expected)


def test_modules_in_evaluation() -> None:
    net = Module()
    net.eval()
    f = ag.compile(net)
    with ag.no_grad():
        for _ in range(3):
            _same(f, net)
        assert _keeps(f)
        net.load_state_dict({k: v * 1.5 for k, v in net.state_dict().items()})
        _same(f, net)
        assert _keeps(f)
        net.train()
        for _ in range(2):
            f(_image())  # writes the running statistics
        assert net.mean.sum() != 0
        net.eval()
        _same(f, net)
        _same(f, net)
        assert _keeps(f)


def test_numpy_callers_of_tensors_in_variables() -> None:
    w = ag.tensor(np.random.default_rng(0).standard_normal((64, 64)))
    f = ag.compile(lambda x: ag.sin(x) @ ag.exp(w))
    x = np.ones((3, 64))
    for k in range(4):
        np.testing.assert_allclose(f(x), np.sin(x) @ np.exp(np.array(w.tolist())), rtol=1e-12)
        if k == 2:
            assert _keeps(f)
        w.mul_(0.5)


def test_watching_counts_references() -> None:
    x = ag.ones(3)
    assert watch(x) is not None and watch(x) is watch(x)
    for make in (lambda: ag.from_numpy(np.ones(3)), lambda: ag.from_numpy(np.ones(4)[1:]), lambda: ag.ones(2, 3).T.clone(),
                 lambda: ag.ones(2, 3, 4, 5).to(memory_format=ag.channels_last)):
        x = make()
        assert watch(x) is not None, "nobody else has it"
    array = np.ones(3)
    assert watch(ag.from_numpy(array)) is None and watch(ag.from_numpy(array[1:])) is None
    assert watch(ag.from_numpy(np.frombuffer(bytearray(24)))) is None
    x = ag.ones(3)
    y = x.numpy()
    assert watch(x) is None
    del y
    assert watch(x) is not None
    x.requires_grad_()
    kept = (x * x).sum()  # holds the numbers for a backward pass, and only reads them
    assert watch(x) is not None and kept.requires_grad
    x = ag.ones(3)
    x.data_ptr()
    assert watch(x) is None
