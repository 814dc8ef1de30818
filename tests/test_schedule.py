"""The order of instructions in long loops: nothing but the order changes, operands and memory keep theirs, and results keep their bits."""

from __future__ import annotations

import re

import numpy as np
import pytest
from lowering_harness import Program

from aotgrad.codegen import emit, schedule
from aotgrad.codegen.schedule import scheduled
from aotgrad.codegen.target import Target
from aotgrad.ir import ops, tensor_type
from aotgrad.ir.builder import build
from aotgrad.ir.transforms.cleanup import standard

assert ops


def loop(body: list[str]) -> str:
    head = ["define i64 @f(ptr %p) {", "entry:", "  br label %l", "l:", "  %i = phi i64 [ 0, %entry ], [ %j, %l ]"]
    tail = ["  %j = add i64 %i, 1", "  %c = icmp slt i64 %j, 5", "  br i1 %c, label %l, label %end", "end:", "  ret i64 %i", "}"]
    return "\n".join([*head, *body, *tail])


def chains(n: int) -> list[str]:
    return [f"  %{name}{k} = fadd double {f'%{name}{k - 1}' if k else '1.0'}, 2.0" for name in "ab" for k in range(n)]


def body_of(text: str) -> list[str]:
    lines = text.split("\n")
    return lines[lines.index("l:") + 2:lines.index("end:") - 1]


def test_independent_chains_run_side_by_side_and_operands_come_first() -> None:
    before, after = body_of(loop(chains(80))), body_of(scheduled(loop(chains(80))))
    assert sorted(before) == sorted(after) and before != after
    names = [m.group(1) for m in (re.match(r"\s+(%\w+) =", line) for line in after) if m]
    for name in "ab":
        assert [x for x in names if x.startswith(f"%{name}")] == [f"%{name}{k}" for k in range(80)]
    gap = max(abs(names.index(f"%a{k}") - names.index(f"%b{k}")) for k in range(80))
    assert gap <= 4


def test_short_loops_and_other_blocks_stay() -> None:
    text = loop(chains(20))
    assert scheduled(text) == text
    straight = loop(chains(80)).replace("br i1 %c, label %l, label %end", "br label %end")
    assert scheduled(straight) == straight
    longer = loop(chains(80)).replace("label %l, label %end", "label %l2, label %end")
    assert scheduled(longer) == longer


def test_memory_keeps_its_order() -> None:
    touches = ["  %x = load double, ptr %p", "  store double 1.0, ptr %p", "  %y = load double, ptr %p", "  call void @g(ptr %p)", "  %z = load double, ptr %p"]
    out = body_of(scheduled(loop([*chains(60), *touches])))
    assert [line for line in out if line in touches] == touches


@pytest.mark.parametrize("target", ["native", "x86-64-v3"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_results_keep_their_bits(dtype: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def f(b: object, x: object) -> object:
        y = b.add(b.mul(b.tanh(x), b.exp(b.neg(b.mul(x, x)))), b.log1p(b.mul(x, x)))  # type: ignore[attr-defined]
        return y, b.sum(y, dims=(0,))  # type: ignore[attr-defined]

    func = standard(build("f", [tensor_type(["n"], dtype)], f))
    seen = []

    def watched(text: str) -> str:
        seen.append(schedule.scheduled(text) != text)
        return schedule.scheduled(text)

    monkeypatch.setattr(emit, "scheduled", watched)
    fast = Program(func, Target.named(target))
    monkeypatch.setattr(emit, "scheduled", lambda text: text)
    slow = Program(func, Target.named(target))
    assert seen == [True]
    for n in (0, 1, 7, 9, 1000):
        x = (np.random.default_rng(n).normal(size=n) * 3).astype(dtype)
        for a, b in zip(fast(x), slow(x)):
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
