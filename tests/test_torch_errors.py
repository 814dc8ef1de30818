"""Errors of wrong calls: of the type torch raises, and aotgrad's own. The same lines run in both."""

from __future__ import annotations

import re

import numpy as np
import pytest

import aotgrad as ag

torch = pytest.importorskip("torch")

WRONG = [
    *[f"m.nn.functional.{name}(m.tensor([1, 2]))" for name in ("gelu", "silu", "elu", "mish", "selu", "celu", "softplus", "hardswish", "hardsigmoid", "logsigmoid",
                                                             "leaky_relu", "softshrink", "hardshrink", "glu")],
    "m.nn.functional.smooth_l1_loss(m.tensor([1,2]),m.tensor([1,2]))",
    "1-m.tensor([True])",
    "m.tensor([True])-1",
    "1.5-m.tensor([True])",
    "m.tensor([True])-m.tensor([1])",
    "m.tensor([True])-m.tensor([True])",
    "m.sub(m.tensor([True]),1)",
    "m.rsub(m.tensor([True]),1)",
    "m.tensor([True]).sub_(1)",
    "+m.tensor([True])",
    "m.where(m.tensor([1,0]),m.ones(2),m.ones(2))",
    "m.where(m.tensor([1.,0]),m.ones(2),m.ones(2))",
    "m.ones(2).where(m.tensor([1,0]),m.ones(2))",
    "m.ones(3).index_add(0,m.tensor([0]),m.tensor([1]))",
    "m.ones(3).index_add_(0,m.tensor([0]),m.ones(1,dtype=m.float64))",
    "m.ones(3).scatter_(0,m.tensor([0]),m.tensor([1]))",
    "m.ones(3).scatter(0,m.tensor([0]),m.ones(1,dtype=m.float64))",
    "m.ones(3).scatter_add(0,m.tensor([0]),m.tensor([1]))",
    "m.ones(3).index_copy(0,m.tensor([0]),m.tensor([1]))",
    "m.take(m.ones(3),m.tensor([0.]))",
    "m.ones(3)['a']",
    "m.ones(3)[None,'a']",
    "m.ones(3).__setitem__('a',1.)",
    "m.ones(3)[1.5]",
    "m.ones(3)+m.ones(4)",
    "m.ones(3).add_(m.ones(4))",
    "m.ones(3).add_(m.ones(2,3))",
    "m.ones(3,4)@m.ones(3,4)",
    "m.ones(3,4)@m.ones(3)",
    "m.ones(3)@m.ones(4)",
    "m.matmul(m.ones(3), m.tensor(2.))",
    "m.bmm(m.ones(3,4),m.ones(3,4))",
    "m.nn.functional.linear(m.ones(3,4),m.ones(3,5))",
    "m.nn.functional.linear(m.ones(3,4),m.ones(3,4),m.ones(4))",
    "m.index_copy(m.ones(4,3),0,m.tensor([0,1,2]),m.ones(1,3))",
    "m.index_copy(m.ones(4,3),0,m.tensor([0,1]),m.ones(2,1))",
    "m.index_copy(m.ones(4,3),1,m.tensor([0,2]),m.ones(2))",
    "m.index_copy(m.ones(4,3),0,m.tensor([0]),m.tensor(2.))",
    "m.index_copy(m.ones(4,3),0,m.tensor([[0,1]]),m.ones(2,3))",
    "m.ones(4).index_copy_(0,m.tensor([0,1]),m.ones(1))",
    "m.index_fill(m.ones(4,3),0,m.tensor([0,1]),m.ones(3))",
    "m.index_fill(m.ones(4,3),0,m.tensor([[0,1]]),1.0)",
    "m.ones(6).view(4)",
    "m.ones(6).view(-1,-1)",
    "m.ones(6).view(-1,4)",
    "m.ones(2,3).t().view(6)",
    "m.ones(6).reshape(4)",
    "m.cat([m.ones(2,2),m.ones(3,3)])",
    "m.cat([m.ones(2,2),m.ones(3)])",
    "m.cat([m.tensor(1.),m.tensor(1.)])",
    "m.cat([])",
    "m.stack([m.ones(2),m.ones(3)])",
    "m.ones(3).expand(4)",
    "m.ones(3).expand(-1,3)",
    "m.where(m.ones(3)>0,m.ones(4),m.ones(3))",
    "m.ones(2,3,4).t()",
    "m.ones(2,3).permute(0,0)",
    "m.ones(2,3).permute(0)",
    "m.ones(3).permute(0,1)",
    "m.ones(2,3).permute(0,2)",
    "m.permute(m.ones(3),(0,1))",
    "m.tensor(None)",
    "m.tensor([1.0,None])",
    "m.tensor({})",
    "m.as_tensor(None)",
    "m.tensor(object())",
    "m.ones(3) & m.ones(3)",
    "m.ones(3) | 1",
    "m.ones(3) ^ m.ones(3)",
    "~m.ones(3)",
    "m.ones(3) << 1",
    "m.tensor([1,2]) & 1.0",
    "m.bitwise_and(m.ones(3),m.ones(3))",
    "m.bitwise_not(m.ones(3))",
    "m.softmax(m.tensor([1,2]),0)",
    "m.tensor([1,2]).softmax(0)",
    "m.log_softmax(m.tensor([1,2]),0)",
    "m.nn.functional.softmax(m.tensor([1,2]),0)",
    "abs(m.tensor([True]))",
    "m.tensor([True]).abs()",
    "m.tensor([True]).floor()",
    "m.tensor([True]).ceil()",
    "m.tensor([True]).round()",
    "m.tensor([True]).trunc()",
    "m.tensor([True]).neg()",
    "m.tensor([1+2j]).floor()",
    "m.tensor([1+2j]).round()",
    "m.tensor([1+2j]).max()",
    "m.tensor([1+2j]).sign()",
    "m.tensor([1+2j]) % m.tensor([1+2j])",
    "m.ones(2,3).transpose(0,5)",
    "m.ones(2,3).sum(4)",
    "m.ones(2,3).sum((0,0))",
    "m.ones(0).max()",
    "m.softmax(m.ones(3),2)",
    "m.ones(3).unsqueeze(4)",
    "m.ones(3).squeeze(4)",
    "m.ones(3,2,1).flatten(2,1)",
    "m.ones(3).split([1,1])",
    "m.ones(3).chunk(0)",
    "m.ones(3).narrow(0,2,4)",
    "m.ones(3).select(0,4)",
    "m.ones(3).select(2,4)",
    "m.ones(3)[4]",
    "m.ones(3)[1,2]",
    "m.ones(3)[[4]]",
    "m.ones(3)[m.ones(4)>0]",
    "m.ones(3,3)[[0,1],[0,1,2]]",
    "m.ones(3).__setitem__(slice(0,2), m.ones(3))",
    "m.ones(3).__setitem__(m.ones(3)>0, m.ones(2))",
    "m.gather(m.ones(3,3),0,m.zeros(3).long())",
    "m.gather(m.ones(3,3),0,m.zeros(3,4).long())",
    "m.gather(m.ones(3,3),0,m.zeros(3,3).long()+5)",
    "m.scatter(m.ones(3,3),0,m.zeros(3).long(),m.ones(3))",
    "m.index_select(m.ones(3),0,m.tensor([5]))",
    "m.ones(3).index_add(0,m.tensor([1]),m.ones(2))",
    "m.ones(3).masked_fill(m.ones(3)>0,m.ones(3))",
    "m.masked_select(m.ones(3),m.ones(4)>0)",
    'm.einsum("ij,jk->ik",m.ones(2,3),m.ones(2,3))',
    'm.einsum("ij,jk->ik",m.ones(2,3))',
    "m.ones(2,2)@m.ones(2,2,dtype=m.float64)",
    "m.dot(m.ones(2),m.ones(2,dtype=m.float64))",
    "m.ones(2,2)@m.ones(2,2,dtype=m.int64)",
    "m.nn.functional.linear(m.ones(2,2),m.ones(2,2,dtype=m.float64))",
    "m.ones(3,dtype=m.int64).mean()",
    "m.nn.functional.conv2d(m.ones(1,3,4,4),m.ones(2,4,3,3))",
    "m.nn.functional.conv2d(m.ones(1,3,2,2),m.ones(2,3,3,3))",
    "m.nn.functional.max_pool2d(m.ones(1,3,2,2),3)",
    "m.ones(-1)",
    "m.ones(3).item()",
    "bool(m.ones(3))",
    "float(m.ones(3))",
    "m.arange(3,0,1)",
    "m.linspace(0,1,-1)",
    "m.tensor([[1,2],[3]])",
    "m.cross(m.ones(4),m.ones(4),dim=0)",
    "m.diag(m.ones(2,2,2))",
    "m.trace(m.ones(2))",
    "m.tril(m.ones(2))",
    "m.diagonal(m.ones(2))",
    "m.roll(m.ones(2,2),(1,2),0)",
    "m.flip(m.ones(2,2),[3])",
    "m.clamp(m.ones(2))",
    "m.nn.functional.pad(m.ones(2),(1,))",
    "~m.ones(2)",
    "m.ones(2).copy_(m.ones(3))",
    "m.ones(2).long().add_(0.5)",
    "m.randint(3,3,(2,))",
    "m.ones(3)==m.ones(4)",
    "m.addmm(m.ones(2,2),m.ones(2,3),m.ones(2,3))",
    "m.outer(m.ones(2,2),m.ones(2))",
    'm.ones(2).sum("a")',
    "m.ones(2).mT",
    "m.ones(2).long()//0",
    "m.ones(2).long()**-1",
    'm.tensor("a")',
    "m.tensor([True])@m.tensor([True])",
    "m.ones(2,2).bool()@m.ones(2,2).bool()",
    "m.dot(m.tensor([True]),m.tensor([True]))",
    "m.mv(m.ones(2,2).bool(),m.ones(2).bool())",
    "m.addmm(m.ones(2,2).bool(),m.ones(2,2).bool(),m.ones(2,2).bool())",
    "m.nn.functional.linear(m.ones(2,2).bool(),m.ones(2,2).bool())",
    "m.einsum('ij,jk->ik',m.ones(2,2).bool(),m.ones(2,2).bool())",
    "m.tensor([True,False]).argmax()",
    "m.tensor([[True,False]]).argmin(1)",
    "m.stack([])",
    "m.hstack([])",
    "m.vstack([])",
    "m.dstack([])",
    "m.column_stack([])",
    "m.ones(2).masked_fill(m.ones(2),1)",
    "m.ones(2).masked_fill_(m.ones(2).byte(),1)",
    "m.masked_select(m.ones(2),m.ones(2).long())",
    "-m.tensor([True])",
    "m.tensor([True])-m.tensor([True])",
    "m.tensor([True]).relu()",
    "m.tensor([1]).norm()",
    "m.ones(4).repeat(-1)",
    "m.ones(3).view(m.float64)",
    "m.tensor(1.).view(m.float64)",
    "m.ones(2,2).t().view(m.float64)",
]


def _error(m, line):
    try:
        made = eval(line, {"m": m})
    except Exception as error:
        return error
    return AssertionError(f"no error, but {made!r}")


@pytest.mark.parametrize("line", WRONG)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_the_type_is_torchs(line):
    theirs, ours = _error(torch, line), _error(ag, line)
    kind = next(c for c in type(theirs).__mro__ if c.__module__ == "builtins")
    if kind is AssertionError:
        assert not isinstance(ours, Exception) or isinstance(ours, AssertionError), ours
        return
    assert isinstance(ours, kind), (theirs, ours)
    assert isinstance(ours, ag.AotgradError), ours


@pytest.mark.parametrize(("line", "kind"), [("m.ones(3) + m.ones(4)", ValueError), ("m.ones(2, 3).sum(5)", ValueError),
                                            ("m.ones(3).index_select(0, m.tensor([7]))", IndexError)])
def test_numpys_type_too(line, kind):
    assert isinstance(_error(ag, line), kind)


@pytest.mark.parametrize("line", ["m.ones(3) + m.ones(4)", "m.ones(3, 4) @ m.ones(3, 4)", "m.ones(3, 4) @ m.ones(4, 3, dtype=m.float64)"])
def test_in_compiled_code_too(line):
    error = _error(ag, f"m.compile(lambda: {line})()")
    assert isinstance(error, RuntimeError)
    assert isinstance(error, ag.AotgradError)


@pytest.mark.parametrize("line", ["m.ones(2).to('cuda')", "m.device('cuda')", "m.ones(2).to(device='mps')"])
def test_other_devices_are_told(line):
    with pytest.raises(RuntimeError, match="runs on the CPU"):
        eval(line, {"m": ag})


@pytest.mark.parametrize("line", [
    "m.ones(2).to('cpu').device", "m.ones(2).cpu().device", "m.device('cpu')", "str(m.ones(2).device)", "m.ones(2).to(m.device('cpu'), m.float64).dtype.itemsize",
    "m.device('cpu') == m.ones(2).device", "m.pi, m.inf, m.nan, m.e, m.newaxis", "m.finfo(m.float32)", "m.finfo(m.float64).eps", "m.finfo(m.float16)", "m.finfo()",
    "m.iinfo(m.int8)", "m.iinfo(m.int64).max", "m.iinfo(m.uint8)", "m.finfo(m.bfloat16).max, m.finfo(m.bfloat16).eps", "m.ones(2, 3)[m.newaxis].shape == (1, 2, 3)"])
def test_constants_and_limits_print_alike(line):
    assert repr(eval(line, {"m": torch})) == repr(eval(line, {"m": ag}))


@pytest.mark.parametrize("line", [
    "m.div(x, y, rounding_mode='floor')", "m.div(x, y, rounding_mode='trunc')", "x.div(y, rounding_mode='trunc')", "m.div(i, j, rounding_mode='floor')",
    "m.div(i, j, rounding_mode='trunc')", "m.div(i, j)", "m.div(i, 2, rounding_mode='trunc')", "x.clone().div_(y, rounding_mode='floor')", "m.round(x, decimals=1)",
    "x.round(decimals=2)", "m.round(1000 * x, decimals=-2)", "m.where(x > 0)", "m.where(x)", "m.where(x > 0, x, y)", "x[x > 0]", "x[(x > 0) & (y < 0)]",
    "m.masked_select(x, x > 0)", "m.masked_select(x, x[0] > 0)", "x[x[:, 0] > 0]", "x[:, x[0] > 0]", "x[m.tensor([True, False, True]), 1]", "x[None, x > 0]",
    "x[m.tensor(True)]", "x[m.zeros(3, 4) > 0]", "x.to('cpu') is x", "x.cpu() is x", "m.nn.functional.relu(x.clone(), inplace=True)",
])
def test_options_and_masks_as_torch(line):
    made = []
    for m in (torch, ag):
        x = m.tensor([[1.25, -2.75, 3.5, -0.15], [-1.5, 2.5, 0.35, 7.0], [0.0, 4.25, -9.0, 1.125]])
        y = m.tensor([[0.5, 2.0, -3.0, 4.0], [2.0, -2.0, 0.5, 3.0], [1.0, -1.5, 4.0, -8.0]])
        made.append(repr(eval(line, {"m": m, "x": x, "y": y, "i": m.tensor([7, -7, 8, -8]), "j": m.tensor([2, 2, -3, -3])})))
    assert made[0] == made[1]


def test_a_mask_is_written_as_in_torch():
    made = []
    for m in (torch, ag):
        leaf = m.tensor([[1.0, -2.0], [-3.0, 4.0]], requires_grad=True)
        x = leaf * 2
        x[x < 0] = 0.5
        x[x > 3] *= x[x > 3]
        x[m.tensor([True, False])] += m.tensor([1.0, 2.0])
        x.sum().backward()
        made.append((x.tolist(), leaf.grad.tolist()))
    assert made[0] == made[1]


def test_an_unknown_rounding_mode_is_told():
    with pytest.raises(RuntimeError, match="rounding_mode='up' must be None, 'trunc' or 'floor'"):
        ag.div(ag.ones(2), ag.ones(2), rounding_mode="up")


INDICES = {
    "m.nn.functional.cross_entropy(m.ones(3, 4), m.tensor([0, 7, 1]))": "Target 7 is out of bounds. There are 4 classes",
    "m.nn.functional.cross_entropy(m.ones(3, 4), m.tensor([0, -3, 1]))": "Target -3 is out of bounds",
    "m.nn.functional.nll_loss(m.ones(3, 4, requires_grad=True), m.tensor([0, 9, 1]))": "Target 9 is out of bounds",
    "m.gather(m.ones(3, 4), 1, m.tensor([[0, 9]]))": "index 9 is out of bounds for dimension 1 with size 4",
    "m.index_select(m.ones(3, 4), 1, m.tensor([0, 9]))": "index 9 is out of bounds for dimension 1 with size 4",
    "m.ones(3, 4)[m.tensor([0, -7])]": "index -7 is out of bounds for dimension 0 with size 3",
    "m.ones(3, 4)[m.tensor([0, -7]), m.tensor([0, 1])]": "index -7 is out of bounds for dimension 0 with size 3",
    "m.nn.functional.one_hot(m.tensor([0, 9]), 3)": "one_hot: class value 9 is out of range for num_classes 3",
    "m.nn.functional.one_hot(m.tensor([0, -1]), 3)": "one_hot: class value -1 is out of range",
    "m.nn.functional.embedding(m.tensor([0, 9]), m.ones(3, 4))": "embedding: index 9 is out of range; weight has 3 rows",
    "m.nn.functional.cross_entropy(m.ones(3, 4), m.tensor([0, 1]))": "an input of shape .3, 4. needs a target of shape .3., not .2.",
}


@pytest.mark.parametrize("line", INDICES)
def test_compiled_code_tells_what_an_index_was(line):
    parts = []
    source = line.replace("m.ones(3, 4, requires_grad=True)", "m.ones(3, 4)")
    names = iter("abc")
    text, at = "", 0
    for found in re.finditer(r"m\.(ones\([^)]*\)|tensor\(\[.*?\]\)(?=[\])]|, |$)|tensor\(\[\[.*?\]\]\))", source):
        parts.append(eval(found.group(), {"m": ag}))
        text += source[at:found.start()] + next(names)
        at = found.end()
    f = ag.compile(eval(f"lambda {', '.join('abc'[:len(parts)])}: {text + source[at:]}", {"m": ag}))
    with pytest.raises(ValueError if "shape" in INDICES[line] else IndexError, match=INDICES[line]):
        f(*parts)


TEXTS = [
    "m.ones(3) + m.ones(4)", "m.ones(2, 3) * m.ones(2, 1, 4)", "m.ones(3).add_(m.ones(4))", "m.where(m.ones(3) > 0, m.ones(4), m.ones(3))",
    "m.addcmul(m.ones(3), m.ones(3), m.ones(2))",
    "m.ones(2, 3) @ m.ones(2, 3)", "m.ones(2, 3) @ m.ones(4)", "m.ones(3) @ m.ones(4)", "m.ones(5, 2, 3) @ m.ones(2, 3)", "m.ones(5, 2, 3) @ m.ones(5, 2, 3)",
    "m.ones(5, 2, 3) @ m.ones(4, 3, 2)", "m.ones(5, 2, 3) @ m.ones(4, 2, 3)", "m.ones(5, 1, 2, 3) @ m.ones(4, 2, 3)", "m.ones(2, 3) @ m.ones(5, 4, 2, 3)",
    "m.nn.functional.linear(m.ones(3, 4), m.ones(5, 3))",
    "m.ones(2, 3).view(4)", "m.ones(2, 3).reshape(-1, 4)", "m.ones(6).view(-1, -1)", "m.ones(2).expand(3)", "m.ones(2, 3).expand(2, 2, 4)",
    "m.cat([m.ones(2, 3), m.ones(2, 2)])", "m.cat([m.ones(2, 3), m.ones(2, 3), m.ones(3, 3)], 1)", "m.cat([m.ones(2, 2), m.ones(3)])",
    "m.stack([m.ones(2), m.ones(3)])", "m.stack([m.ones(2), m.ones(2), m.ones(2, 2)])", "m.ones(2, 3).sum(5)", "m.ones(2, 3).transpose(0, -3)", "m.ones(3).select(2, 0)",
    "m.ones(2)[0, 0]", "m.gather(m.ones(3, 3), 1, m.zeros(3, 1))", "m.nn.functional.cross_entropy(m.ones(3, 4), m.tensor([0, 1]))",
    "m.nn.functional.batch_norm(m.ones(2, 3), m.zeros(4), m.ones(4), training=True)", "m.ones(2, 3).item()", "m.ones(2, 3).t().view(6)",
]


@pytest.mark.parametrize("line", TEXTS)
def test_the_text_is_torchs(line):
    """The whole of torch's first sentence stands in ours, in eager and in compiled code, so that what looks for it finds it."""
    theirs = str(_error(torch, line)).splitlines()[0].rstrip(". ").replace("torch.Size(", "").replace("])", "]").removeprefix("torch.cat(): ").replace("  ", " ")
    for ours in (_error(ag, line), _error(ag, f"m.compile(lambda: {line})()")) if "item" not in line and ").view(6)" not in line else (_error(ag, line),):
        assert theirs in str(ours).replace("  ", " "), (theirs, str(ours))


def test_who_asks_for_the_gradient_of_an_intermediate_is_warned():
    texts = []
    for m in (torch, ag):
        x = m.ones(2, requires_grad=True)
        y, kept, given = x * 2, x * 3, x * 4
        with pytest.warns(UserWarning, match="not a leaf Tensor is being accessed") as seen:
            assert y.grad is None
        assert [w.filename for w in seen] == [__file__]
        texts.append(str(seen[0].message).partition(" See ")[0])
        kept.retain_grad()
        given.grad = m.ones(2)
        assert (x.grad, kept.grad, given.grad.tolist(), y.detach().grad) == (None, None, [1.0, 1.0], None)  # without one: warnings are errors here
        (y + kept).sum().backward()
        assert kept.grad.tolist() == [1.0, 1.0]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("line", ["m.lerp(a, b, 0.5)", "a.lerp(b, 0.5)", "a.clone().lerp_(b, 0.5)", "m.lerp(a, a, b)", "m.lerp(a, i, 0.5)", "m.lerp(i, i, 0.5)",
                                  "F.prelu(i, a[:1])", "F.prelu(i, i[:1])", "F.prelu(a, b[:1])", "F.prelu(b, a[:1])"])
def test_what_is_not_promoted(line):
    def run(m, wrap):
        a, b, i = m.tensor([0.5, 0.25]), m.tensor([0.5, 0.25], dtype=m.float64), m.tensor([1, 2])
        return wrap(lambda a, b, i: eval(line, {"m": m, "F": m.nn.functional, "a": a, "b": b, "i": i}))(a, b, i)

    for m, wrap in ((torch, lambda f: f), (ag, lambda f: f), (ag, ag.compile)):
        with pytest.raises(RuntimeError):
            run(m, wrap)
    assert ag.lerp(np.float32([0.5]), np.float64([1.5]), 0.5).tolist() == [1.0]  # NumPy's arrays keep NumPy's rule
