"""``ag.save`` and ``ag.load``: what comes back is what was saved; other formats by content; nothing in a file runs; damaged files say so."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aotgrad as ag

DTYPES = ("float64", "float32", "float16", "bfloat16", "complex64", "complex128", "int64", "int32", "int16", "int8", "uint8", "bool")


def again(obj: Any) -> Any:
    file = io.BytesIO()
    ag.save(obj, file)
    file.seek(0)
    return ag.load(file)


def test_values_and_containers() -> None:
    obj = {"a": [1, 2.5, None, True, "x", (), (1, [2])], 3: {"nan": float("nan"), "inf": -float("inf")}, (1, "t"): np.arange(3), "n": np.float32(2.5),
           "o": OrderedDict(z=1, y=2), "c": Counter([1, 1, 2]), "d": ag.float16, "s": ag.ones(2, 0).shape, "big": 1 << 70}
    found = again(obj)
    assert repr(found) == repr(obj) and found[(1, "t")].dtype == np.int64 and type(found["n"]) is np.float32


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors(dtype: str) -> None:
    for x in (ag.tensor([[1.0, 0.0, 3.5], [2.0, 0.0, 1.0]]).to(getattr(ag, dtype)), ag.zeros(0, 2, dtype=getattr(ag, dtype)), ag.ones((), dtype=getattr(ag, dtype))):
        for y in (x, x.t() if x.ndim == 2 else x, x[..., ::2] if x.ndim else x):
            found = again(y)
            assert found.dtype is y.dtype and found.shape == y.shape and found.tolist() == y.tolist() and not found.requires_grad


def test_what_a_tensor_is() -> None:
    w, p = ag.ones(2, requires_grad=True), ag.nn.Parameter(ag.ones(2), requires_grad=False)
    found = again([w, p, w, ag.nn.Parameter(ag.ones(1))])
    assert [type(x).__name__ for x in found] == ["Tensor", "Parameter", "Tensor", "Parameter"] and [x.requires_grad for x in found] == [True, False, True, True]
    assert found[0] is found[2]
    found[0].data.add_(1)  # of memory of its own, that can be written
    assert w.tolist() == [1.0, 1.0]


def test_training_goes_on(tmp_path: Path) -> None:
    def begin() -> Any:
        ag.manual_seed(0)
        net = ag.nn.Sequential(ag.nn.Linear(2, 4), ag.nn.BatchNorm1d(4), ag.nn.Linear(4, 1))
        opt = ag.optim.Adam(net.parameters(), lr=0.1)
        return net, opt, ag.optim.lr_scheduler.MultiStepLR(opt, [3, 5])

    def steps(net: Any, opt: Any, schedule: Any, count: int) -> list[float]:
        x, out = ag.arange(6.0).view(3, 2), []
        for _ in range(count):
            opt.zero_grad()
            loss = (net(x) ** 2).mean()
            loss.backward()
            opt.step()
            schedule.step()
            out.append(loss.item())
        return out

    whole = steps(*begin(), 8)
    first = begin()
    assert steps(*first, 4) == whole[:4]
    ag.save({name: part.state_dict() for name, part in zip(("net", "opt", "schedule"), first)}, tmp_path / "state.ag")
    later = begin()
    found = ag.load(str(tmp_path / "state.ag"))
    for name, part in zip(("net", "opt", "schedule"), later):
        part.load_state_dict(found[name])
    assert steps(*later, 4) == whole[4:]
    assert [p.name for p in tmp_path.iterdir()] == ["state.ag"]


def test_other_formats(tmp_path: Path) -> None:
    a, b = np.arange(6.0).reshape(2, 3), np.array([1, 2], np.int8)
    np.savez(tmp_path / "x.npz", a=a, b=b, f=np.asfortranarray(a))
    found = ag.load(tmp_path / "x.npz")
    assert found["a"].tolist() == a.tolist() == found["f"].tolist() and found["b"].dtype is ag.int8
    np.savez_compressed(tmp_path / "y.npz", a=a)
    assert ag.load(tmp_path / "y.npz")["a"].tolist() == a.tolist()
    (tmp_path / "z").write_bytes(safe(a))
    found = ag.load(tmp_path / "z")
    assert found["w"].tolist() == a.tolist() and found["h"].dtype is ag.bfloat16 and found["h"].tolist() == [1.0, -2.0]


def safe(a: Any, shape: Any = (2, 3), end: int = 48) -> bytes:
    head = json.dumps({"__metadata__": {"by": "hand"}, "w": {"dtype": "F64", "shape": shape, "data_offsets": [0, end]},
                       "h": {"dtype": "BF16", "shape": [2], "data_offsets": [48, 52]}}).encode()
    return struct.pack("<Q", len(head)) + head + a.astype("<f8").tobytes() + struct.pack("<HH", 0x3F80, 0xC000)


class Mine:
    """Of a class of the user's."""

    def __reduce__(self) -> Any:
        raise AssertionError("pickled")


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    for obj, text in ((Mine(), "obj is a Mine"), ({"a": [1, Mine()]}, r"obj\['a'\]\[1\] is a Mine, which cannot be saved, as files hold no code"),
                      ({1, 2}, "obj is a set"), (ag.nn.Linear(1, 1), r"save its state_dict\(\)"), (np.array(["a"]), "array of"), (np.array([None]), "array of object")):
        with pytest.raises(ag.AotgradTypeError, match=text):
            ag.save(obj, tmp_path / "x")
    with pytest.raises(ag.AotgradRuntimeError, match=r"obj\['y'\].detach\(\)"):
        ag.save({"y": ag.ones(1, requires_grad=True) * 2}, tmp_path / "x")
    held: list[Any] = []
    held.append(held)
    with pytest.raises(ag.AotgradValueError, match="holds itself"):
        ag.save(held, tmp_path / "x")
    with pytest.raises(ag.AotgradTypeError, match="a path or a file"):
        ag.save(1, 3)
    with pytest.raises(ag.AotgradRuntimeError, match="cannot write"):
        ag.save(1, tmp_path / "no" / "x")
    assert list(tmp_path.iterdir()) == []


def test_damaged_files(tmp_path: Path) -> None:
    file = io.BytesIO()
    ag.save({"a": ag.ones(50), "b": [1]}, file)
    whole = file.getvalue()
    bad = [whole[:40], whole[:-30], whole[:200] + b"\x00" * 50 + whole[250:]]
    bad += [safe(np.ones((2, 3)), (2, 4)), safe(np.ones((2, 3)), (2, 3), 4800), safe(np.ones((2, 3)))[:20]]
    for structure in ({"version": 1, "content": {"tensor": 9, "dtype": "float32", "grad": False, "parameter": False}}, {"version": 99, "content": 1}, {}, [],
                      {"version": 1, "content": {"call": ["os.system", "true"]}}, {"version": 1, "content": [1]}, {"version": 1, "content": {"list": 3}},
                      {"version": 1, "content": {"list": [], "dict": []}}):
        other = io.BytesIO()
        with zipfile.ZipFile(other, "w") as archive:
            archive.writestr("structure.json", json.dumps(structure))
        bad.append(other.getvalue())
    for shape, kind in (("(10**12,)", "<f8"), ("(3,)", "|O"), ("(-1,)", "<f8")):
        head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape.replace('10**12', '1' + '0' * 12)}, }}".ljust(117) + "\n"
        other = io.BytesIO()
        with zipfile.ZipFile(other, "w") as archive:
            archive.writestr("a.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + b"\x80\x04." * 8)
        bad.append(other.getvalue())
    for k, data in enumerate(bad):
        (tmp_path / "x").write_bytes(data)
        with pytest.raises(ag.AotgradValueError):
            print(k, ag.load(tmp_path / "x"))
        with pytest.raises(ag.AotgradValueError):
            ag.load(io.BytesIO(data))
    for given in (io.StringIO("a"), 3):
        with pytest.raises(ag.AotgradTypeError):
            ag.load(given)


def test_places_are_the_processor(tmp_path: Path) -> None:
    ag.save(ag.ones(2), tmp_path / "x")
    assert ag.load(tmp_path / "x", map_location="cpu", weights_only=True).tolist() == ag.load(tmp_path / "x", ag.device("cpu")).tolist() == [1.0, 1.0]
    with pytest.raises(ag.AotgradArgumentError, match="cuda"):
        ag.load(tmp_path / "x", map_location="cuda")
    with pytest.raises(ag.AotgradValueError, match="weights_only=False: files of ag.save hold values"):
        ag.load(tmp_path / "x", weights_only=False)
