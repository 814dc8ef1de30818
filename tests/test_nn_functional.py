"""``ag.nn.functional`` beside torch's: values, gradients and layouts of the same lines, eagerly and compiled; errors; what is written in place."""

from __future__ import annotations

import numpy as np
import pytest

import aotgrad as ag

F = ag.nn.functional
_rng = np.random.default_rng(3)


def _n(*shape):
    return _rng.normal(size=shape)


X, Y, IMG, V3, P = _n(4, 6), _n(4, 6), _n(2, 6, 4, 5), _n(6), _rng.uniform(0.05, 0.95, (4, 6))
PROB = np.abs(Y) / np.abs(Y).sum(1, keepdims=True)
KINKS = np.array([[-7.0, -3.0, -1.0, -0.5, 0.0, 0.5], [1.0, 2.0, 3.0, 6.0, 7.0, 25.0]])
CLASSES, DENSE, IGNORED = np.array([0, 5, 2, 2]), _rng.integers(0, 6, (2, 4, 5)), np.array([0, -100, 2, -100])
W6, IDX = np.abs(_n(6)), np.array([[0, 3, 1], [3, 3, 2]])

# (the line, its float inputs, its integer inputs)
LINES = [
    *((f"F.{name}(x)", (KINKS,), ()) for name in (
        "relu", "relu6", "elu", "selu", "celu", "leaky_relu", "silu", "mish", "gelu", "hardtanh", "hardswish", "hardsigmoid", "logsigmoid", "softplus", "softsign",
        "tanhshrink", "hardshrink", "softshrink", "sigmoid", "tanh")),
    ("F.gelu(x, approximate='tanh')", (X,), ()), ("F.glu(x)", (X,), ()), ("F.glu(x, 0)", (X,), ()), ("F.softmin(x, 1)", (X,), ()),
    ("F.elu(x, 0.7)", (KINKS,), ()), ("F.celu(x, 0.7)", (KINKS,), ()), ("F.leaky_relu(x, 0.3)", (KINKS,), ()), ("F.hardtanh(x, -0.5, 2.0)", (KINKS,), ()),
    ("F.softplus(x, beta=2, threshold=5)", (KINKS,), ()), ("F.softplus(x, 0.5)", (KINKS,), ()), ("F.threshold(x, 0.5, -1.0)", (KINKS,), ()),
    ("F.softshrink(x, 1.0)", (KINKS,), ()), ("F.prelu(x, y)", (IMG, V3), ()), ("F.prelu(x, y)", (X, _n(1)), ()),
    *((f"F.{loss}(x, y, reduction='{r}')", (X, Y), ()) for loss in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss") for r in ("mean", "sum", "none")),
    ("F.smooth_l1_loss(x, y, beta=0.3)", (X, Y), ()), ("F.smooth_l1_loss(x, y, beta=0.0)", (X, Y), ()), ("F.huber_loss(x, y, delta=0.4)", (X, Y), ()),
    *((f"F.binary_cross_entropy(x, y, reduction='{r}')", (P, PROB), ()) for r in ("mean", "sum", "none")),
    ("F.binary_cross_entropy(x, y, w)", (P, PROB, W6), ()),
    *((f"F.binary_cross_entropy_with_logits(x, y, reduction='{r}')", (50 * X, PROB), ()) for r in ("mean", "sum", "none")),
    ("F.binary_cross_entropy_with_logits(x, y, w, pos_weight=w)", (X, PROB, W6), ()),
    *((f"F.kl_div(x, y, reduction='{r}')", (X, PROB), ()) for r in ("batchmean", "sum", "none")), ("F.kl_div(x, y, reduction='sum', log_target=True)", (X, Y), ()),
    *((f"F.nll_loss(x, i, reduction='{r}')", (X,), (IGNORED,)) for r in ("mean", "sum", "none")), ("F.nll_loss(x, i, w)", (X, W6), (CLASSES,)),
    ("F.nll_loss(x, i)", (IMG,), (DENSE,)), ("F.nll_loss(x, i)", (V3,), (np.array(4),)), ("F.nll_loss(x, i, w, ignore_index=2)", (X, W6), (CLASSES,)),
    *((f"F.cross_entropy(x, i, w, reduction='{r}', label_smoothing={s})", (X, W6), (IGNORED,)) for r in ("mean", "sum", "none") for s in (0.0, 0.2)),
    ("F.cross_entropy(x, i, label_smoothing=0.1)", (IMG,), (DENSE,)), ("F.cross_entropy(x, i, w)", (IMG, W6), (DENSE,)), ("F.cross_entropy(x, i)", (V3,), (np.array(4),)),
    *((f"F.cross_entropy(x, y, reduction='{r}')", (X, PROB), ()) for r in ("mean", "sum", "none")),
    ("F.cross_entropy(x, y, w, label_smoothing=0.2)", (X, PROB, W6), ()),
    ("F.normalize(x)", (X,), ()), ("F.normalize(x, 1.0, 0)", (X,), ()), ("F.normalize(x, dim=1)", (np.zeros((2, 3)),), ()),
    ("F.cosine_similarity(x, y)", (X, Y), ()), ("F.cosine_similarity(x, y, dim=0)", (X, Y[:1]), ()), ("F.pairwise_distance(x, y)", (X, Y), ()),
    ("F.one_hot(i, 7)", (), (CLASSES,)), ("F.embedding(i, x)", (X,), (IDX,)), ("F.embedding(i, x, padding_idx=3)", (X,), (IDX,)),
    ("F.layer_norm(x, (6,))", (X,), ()), ("F.layer_norm(x, (6,), y, z)", (X, V3, W6), ()), ("F.layer_norm(x, (4, 5), eps=0.1)", (IMG,), ()),
    ("F.rms_norm(x, (6,))", (X,), ()), ("F.rms_norm(x, (6,), y, 0.1)", (X, V3), ()),
    ("F.group_norm(x, 3)", (IMG,), ()), ("F.group_norm(x, 2, y, z, 0.1)", (IMG, V3, W6), ()), ("F.group_norm(x, 2)", (X,), ()),
    ("F.instance_norm(x)", (IMG,), ()), ("F.instance_norm(x, None, None, y, z)", (IMG, V3, W6), ()),
    ("F.batch_norm(x, None, None, y, z, True)", (IMG, V3, W6), ()), ("F.batch_norm(x, None, None, training=True, eps=0.1)", (X,), ()),
    ("F.batch_norm(x, w, w, y, z)", (IMG, V3, V3, W6), ()),
    ("F.dropout(x, 0.3, False)", (X,), ()), ("F.dropout(x, 1.0)", (X,), ()), ("F.linear(x, y, z)", (X, _n(3, 6), _n(3)), ()),
]
NAMES = {0: (), 1: ("x",), 2: ("x", "y"), 3: ("x", "y", "z")}


def _call(m, line, floats, ints):
    names = NAMES[len(floats)] if "w" not in line.replace("swish", "").split("(")[1] else ("x", "y", "z")[:len(floats) - 1] + ("w",)

    def fn(*given):
        return eval(line, {"F": m.nn.functional, **dict(zip((*names, "i"), given))})

    return fn, [m.tensor(a, requires_grad=n != "w") for n, a in zip(names, floats)], [m.tensor(a) for a in ints]


def _results(out, leaves, m):
    found = [np.array(out.detach().tolist())]
    if out.requires_grad:
        ct = np.random.default_rng(5).normal(size=tuple(out.shape))
        out.backward(m.tensor(ct))
        found += [np.array(a.grad.tolist()) if a.grad is not None else np.zeros(tuple(a.shape)) for a in leaves]
    return found


@pytest.mark.parametrize(("line", "floats", "ints"), LINES, ids=[f"{k}-{line[2:]}" for k, (line, _, _) in enumerate(LINES)])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_as_torch(line, floats, ints):
    torch = pytest.importorskip("torch")
    found = []
    for m, how in ((torch, lambda f: f), (ag, lambda f: f), (ag, ag.compile)):
        fn, leaves, whole = _call(m, line, floats, ints)
        found.append(_results(how(fn)(*leaves, *whole), leaves, m))
    want, eager, compiled = found
    for got in (eager, compiled):
        assert len(got) == len(want)
        for a, b in zip(got, want):
            coarse = line.startswith(("F.hardsigmoid", "F.celu"))  # torch's kernels hold their constants in float32
            np.testing.assert_allclose(a, b, rtol=1e-7 if coarse else 1e-9, atol=1e-11)


@pytest.mark.parametrize("line", ["F.gelu(x)", "F.layer_norm(x, (6,))", "F.cross_entropy(x, i)", "F.elu(x)", "F.normalize(x)"])
def test_second_derivatives(line):
    fn, leaves, whole = _call(ag, line, (X,), (CLASSES,) if "i)" in line else ())
    assert ag.autograd.gradcheck(lambda x: fn(x, *whole), leaves)
    assert ag.autograd.gradgradcheck(lambda x: fn(x, *whole), leaves)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("line", [
    "F.batch_norm(x, None, None, w, w, True)", "F.batch_norm(x, w, w, w, w)", "F.batch_norm(x, w, w)", "F.relu(x)", "F.gelu(x)", "F.silu(x)", "F.hardtanh(x)",
    "F.leaky_relu(x)", "F.group_norm(x, 3, w, w)", "F.dropout(x, 0.5)", "F.dropout2d(x, 0.5)", "F.mse_loss(x, x, reduction='none')", "F.prelu(x, w)", "F.elu(x)",
    "F.softplus(x)", "F.mish(x)", "F.hardswish(x)"])
def test_layouts_as_torch(line, last):
    torch = pytest.importorskip("torch")
    strides = []
    for m in (torch, ag):
        x = m.tensor(IMG)
        x = x.contiguous(memory_format=m.channels_last) if last else x
        strides.append(eval(line, {"F": m.nn.functional, "x": x, "w": m.tensor(W6)}).stride())
    assert strides[0] == strides[1]


@pytest.mark.parametrize("call", ["batch_norm", "instance_norm"])
def test_running_stats_are_written_in_place(call):
    torch = pytest.importorskip("torch")
    kept = []
    for m in (torch, ag):
        mean, var, x = m.tensor(V3), m.tensor(W6), m.tensor(IMG, requires_grad=True)
        rest = (True,) if call == "instance_norm" else (True,)
        out = getattr(m.nn.functional, call)(x, mean, var, None, None, *rest, 0.3)
        out.sum().backward()
        kept.append((mean, var, mean.requires_grad, mean._version))
    for a, b in zip(kept[0][:2], kept[1][:2]):
        np.testing.assert_allclose(np.array(a.tolist()), np.array(b.tolist()), rtol=1e-12)
    assert kept[1][2] is False
    assert kept[1][3] >= 1


def test_numpy_arrays_and_compiled_numpy():
    want = F.layer_norm(ag.tensor(X), (6,)).numpy()
    np.testing.assert_allclose(F.layer_norm(X, (6,)), want)
    np.testing.assert_allclose(ag.compile(lambda x: F.layer_norm(x, (6,)))(X), want)
    running = np.zeros(6)
    F.batch_norm(X, running, np.ones(6), training=True)
    np.testing.assert_allclose(running, 0.1 * X.mean(0))


@pytest.mark.parametrize("name", ["relu", "relu6", "elu", "selu", "leaky_relu", "silu", "mish", "hardtanh", "hardswish", "dropout"])
def test_inplace_writes_into_the_input(name):
    x = ag.tensor(X)
    want = getattr(F, name)(x.clone()) if name != "dropout" else None
    out = getattr(F, name)(x, inplace=True)
    assert out is x
    assert x._version == 1
    if want is not None:
        assert x.tolist() == want.tolist()


def test_dropout_keeps_the_mean_and_repeats_with_the_seed():
    ag.manual_seed(7)
    first = F.dropout(ag.ones(1000), 0.25)
    assert set(np.unique(first.numpy().round(6))) == {0.0, np.float32(1.333333)}
    assert abs(first.mean().item() - 1) < 0.1
    ag.manual_seed(7)
    assert F.dropout(ag.ones(1000), 0.25).tolist() == first.tolist()
    whole = F.dropout2d(ag.ones(4, 8, 3, 3), 0.5).numpy()
    assert all(len(np.unique(c)) == 1 for image in whole for c in image)


WRONG = [
    "F.cross_entropy(m.ones(3, 4), m.tensor([0, 1, 7]))", "F.cross_entropy(m.ones(3, 4), m.tensor([0, 1, -3]))", "F.nll_loss(m.ones(3, 4), m.tensor([0, 1, 4]))",
    "F.cross_entropy(m.ones(3, 4), m.tensor([0, 1]))", "F.cross_entropy(m.ones(3, 4), m.ones(3, 5))", "F.cross_entropy(m.ones(3, 4), m.tensor([0, 1, 2]), m.ones(5))",
    "F.cross_entropy(m.ones(3, 4), m.tensor([0, 1, 2]), reduction='x')", "F.cross_entropy(m.ones(3, 4), m.tensor([0, 1, 2]), label_smoothing=1.5)",
    "F.nll_loss(m.ones(3, 4), m.ones(3))", "F.mse_loss(m.ones(3), m.ones(4))", "F.binary_cross_entropy(m.ones(3) * 2, m.ones(3))",
    "F.binary_cross_entropy(m.ones(3), m.ones(4))", "F.binary_cross_entropy_with_logits(m.ones(3), m.ones(4))", "F.huber_loss(m.ones(3), m.ones(3), delta=0)",
    "F.smooth_l1_loss(m.ones(3), m.ones(3), beta=-1.0)", "F.glu(m.ones(3))", "F.gelu(m.ones(3), approximate='x')", "F.layer_norm(m.ones(2, 3), (4,))",
    "F.layer_norm(m.ones(2, 3), (3,), m.ones(2))", "F.group_norm(m.ones(2, 3, 4), 2)", "F.batch_norm(m.ones(1, 3), None, None, training=True)",
    "F.batch_norm(m.ones(2, 3), m.ones(4), m.ones(3))", "F.dropout(m.ones(3), 1.5)", "F.one_hot(m.tensor([0, 3]), 2)", "F.one_hot(m.tensor([-1]))",
    "F.one_hot(m.tensor([1.0]))", "F.embedding(m.tensor([9]), m.ones(3, 2))", "F.embedding(m.tensor([1.0]), m.ones(3, 2))",
    "F.embedding(m.tensor([1]), m.ones(3, 2), padding_idx=5)", "F.instance_norm(m.ones(2, 3, 1))", "F.relu(m.ones(2), True, 3)",
]


@pytest.mark.parametrize("line", WRONG)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_errors_are_of_torchs_types(line):
    torch = pytest.importorskip("torch")
    seen = []
    for m in (torch, ag):
        try:
            eval(line, {"m": m, "F": m.nn.functional})
            seen.append(None)
        except Exception as error:
            seen.append(error)
    theirs, ours = seen
    assert theirs is not None
    kind = next(c for c in type(theirs).__mro__ if c.__module__ == "builtins")
    kind = {AssertionError: RuntimeError, NotImplementedError: RuntimeError}.get(kind, kind)  # asserts of torch's Python code; kernels that are not there
    assert isinstance(ours, kind), (theirs, ours)


def test_the_bad_target_is_named():
    for target, name in (([0, 1, 7], "7"), ([0, -3, 1], "-3")):
        with pytest.raises(IndexError, match=f"Target {name} is out of bounds") as info:
            F.cross_entropy(ag.ones(3, 4), ag.tensor(target))
        assert "test_nn_functional.py" in str(info.value)


def test_targets_that_a_compiled_function_reads_by_name():
    """Labels beside the function are inputs of the program, read at every call."""
    x, w = np.random.default_rng(3).normal(size=(5, 3)), np.array([1.0, 2.0, 3.0])
    target = np.array([0, 2, 1, 0, 2])
    for loss in (lambda x: F.cross_entropy(x, target, weight=w), lambda x: F.nll_loss(x, ag.tensor(target))):
        compiled = ag.compile(ag.value_and_grad(loss))
        for first in (0, 1, -100):
            target[0] = first
            for got, want in zip(compiled(x), ag.value_and_grad(loss)(x)):
                np.testing.assert_allclose(got, want, rtol=1e-13)
        target[0] = 7
        with pytest.raises(ag.AotgradError, match="out of (range|bounds)"):
            compiled(x)


def test_one_value_has_no_variance() -> None:
    """Known when it is traced, or when it is called."""
    f = ag.compile(lambda x: ag.nn.functional.batch_norm(x, None, None, training=True))
    assert f(np.ones((3, 2, 1))).shape == (3, 2, 1) and f(np.ones((0, 2, 1))).shape == (0, 2, 1)
    for call in (f, lambda x: ag.nn.functional.batch_norm(x, None, None, training=True)):
        with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
            call(np.ones((1, 2, 1)))
    assert f(np.ones((5, 2, 1))).shape == (5, 2, 1)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "softmin"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 3, 4), (2, 3, 4, 5)])
def test_the_dim_that_is_left_out_is_torchs(name, shape):
    torch, x = pytest.importorskip("torch"), np.random.default_rng(0).normal(size=shape)
    with pytest.warns(UserWarning, match="Implicit dimension choice"):
        want = getattr(torch.nn.functional, name)(torch.tensor(x)).numpy()
    for how in (lambda f: f, ag.compile):
        with pytest.warns(UserWarning, match=f"Implicit dimension choice for {name}") as seen:
            got = how(lambda x: getattr(ag.nn.functional, name)(x))(ag.tensor(x))
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-12)
        assert {w.filename for w in seen} == {__file__}
    getattr(ag.nn.functional, name)(ag.tensor(x), dim=-1)  # without a warning: those are errors here


@pytest.mark.parametrize("name", ["mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"])
def test_a_target_of_another_shape_is_warned_of(name):
    f = getattr(ag.nn.functional, name)
    for run in (lambda a, b: f(a, b), ag.compile(lambda a, b: f(a, b))):
        with pytest.warns(UserWarning, match=r"target size \(\[.*\]\) that is different to the input size") as seen:
            run(ag.ones(3, 1), ag.ones(3))
        assert [w.filename for w in seen] == [__file__]
        assert run(ag.ones(3), ag.ones(3)).item() == 0.0
