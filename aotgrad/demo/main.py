"""``aotgrad demo``: trains, fits, checks the gradient, times it, and ships it as a shared library."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aotgrad.codegen import llvm
from aotgrad_runtime.errors import AotgradRuntimeError, AotgradValueError

from . import fit, plot, ship, timing
from .data import digits, one_hot, split
from .models import hand_written, initial, loss, peak
from .progress import Progress
from .timing import loss_and_gradient
from .train import BATCH, Trained, predict, train

__all__ = ["run_demo"]

GOAL = 0.95
# Central differences in float64 are good to ten digits where no ReLU switches within the step; float32 results agree to a few roundings of the sums.
DIFFERENCE_STEP, DIFFERENCE_TOLERANCE, AGREEMENT = 1e-5, 1e-8, 2e-6


def run_demo(out: str | None = None, epochs: int = 40) -> int:
    """Runs everything and gives the exit code. Files stay in ``out``; without it they are made in a temporary folder and removed.

    Raises ``AotgradValueError`` for a bad argument, ``AotgradRuntimeError`` where llvmlite is missing or a result is not what it must be.
    """
    if epochs < 1:
        raise AotgradValueError(f"--epochs must be at least 1, not {epochs}")
    llvm.binding()  # without llvmlite nothing below could be compiled: said before anything else is
    if out is None:
        with tempfile.TemporaryDirectory(prefix="aotgrad-demo-") as folder:
            return _run(Path(folder), epochs, kept=False)
    folder_path = Path(out)
    try:
        folder_path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AotgradValueError(f"--out {out}: no folder can be made there ({error.strerror})") from error
    return _run(folder_path, epochs, kept=True)


def _run(folder: Path, epochs: int, kept: bool) -> int:
    start = time.perf_counter()
    images, labels = digits()
    rows, held_back = split(len(images))
    print(f"{len(images)} scanned digits of 8x8 pixels (UCI, CC BY 4.0): {len(rows)} to train on, {len(held_back)} held back\n")
    trained = _train(images, labels, rows, held_back, epochs)
    _check_gradient(images, labels, rows)
    _time(trained, images, labels, rows, folder)
    _fit(images, labels, rows)
    _ship(trained, images, labels, held_back, folder)
    picture = folder / "learning.svg"
    curves = {"training loss": trained.losses, "held-back error": trained.errors}
    picture.write_text(plot.svg(curves, "Learning to read digits", "epoch"), encoding="utf-8")
    if kept:
        print(f"\nLibrary, header, C program and learning curve (learning.svg) are in {folder}")
    print(f"\nDone in {time.perf_counter() - start:.1f} s")
    return 0


def _train(images: Any, labels: Any, rows: Any, held_back: Any, epochs: int) -> Trained:
    start = time.perf_counter()
    trained = train(images, labels, rows, held_back, epochs)
    seconds = time.perf_counter() - start
    right = float(np.mean(predict(trained.params, images[held_back]) == labels[held_back]))
    print("1. Classifier 64-128-64-10, float32, softmax cross-entropy; loss, gradient and update are one compiled function")
    print(f"   {epochs} epochs, {trained.steps} steps in {seconds:.2f} s, compiling included")
    print(f"   held-back accuracy {100 * right:.1f} %\n")
    print("   training loss over epochs (logarithmic axis)")
    print("\n".join("   " + line for line in plot.text(trained.losses, 60, 8).splitlines()) + "\n")
    if right < GOAL and epochs >= 40:
        raise AotgradRuntimeError(f"demo: accuracy {right:.3f} is below {GOAL}")
    return trained


def _check_gradient(images: Any, labels: Any, rows: Any) -> None:
    batch = rows[:BATCH]
    x, y = images[batch].astype(np.float64), one_hot(labels[batch], np.float64)
    params = initial(dtype=np.float64)
    _, grads = loss_and_gradient(params, x, y)
    rng = np.random.default_rng(1)
    worst = 0.0
    with Progress("finite differences", 5) as bar:
        for _ in range(5):
            ways = [rng.standard_normal(p.shape) for p in params]
            h = DIFFERENCE_STEP / _norm(ways)
            ahead = loss([p + h * w for p, w in zip(params, ways)], x, y)
            behind = loss([p - h * w for p, w in zip(params, ways)], x, y)
            exact = sum(np.sum(g * w) for g, w in zip(grads, ways)) / _norm(ways)
            worst = max(worst, abs((ahead - behind) / (2 * DIFFERENCE_STEP) - exact) / _norm(grads))
            bar.step()
    print("2. Gradient in float64 at the first weights against central differences of the plain NumPy function, 5 random directions:")
    print(f"   largest difference {worst:.1e} of the gradient's norm\n")
    if not worst < DIFFERENCE_TOLERANCE:
        raise AotgradRuntimeError(f"demo: the gradient is off by {worst:.2e} of its norm")


def _norm(arrays: Sequence[Any]) -> float:
    return float(np.sqrt(sum(np.sum(a * a) for a in arrays)))


def _time(trained: Trained, images: Any, labels: Any, rows: Any, folder: Path) -> None:
    batch = rows[:BATCH]
    x, y = images[batch], one_hot(labels[batch])
    params = trained.params
    by_hand = hand_written(params, x, y)
    compiled = loss_and_gradient(params, x, y)
    off = _difference([by_hand[0], *by_hand[1]], [compiled[0], *compiled[1]])
    if not off < AGREEMENT * 50:
        raise AotgradRuntimeError(f"demo: the compiled gradient differs from the one derived by hand by {off:.2e}")
    measured = timing.in_own_process([*params, x, y], folder)
    print(f"3. Loss and gradient of {BATCH} images, one thread each, called in turn (20th percentile):")
    print(f"   {timing.summary(measured)}\n")


def _fit(images: Any, labels: Any, rows: Any) -> None:
    ones = images[rows[labels[rows] == 1]]
    start = time.perf_counter()
    mean = fit.fit(ones.mean(axis=0))
    first = time.perf_counter() - start
    fits = []
    start = time.perf_counter()
    with Progress("fitting", len(ones)) as bar:
        for image in ones:
            fits.append(fit.fit(image, mean.params))
            bar.step()
    seconds = time.perf_counter() - start
    u, v = fit.grid()
    jacobian = fit.residual_and_jacobian(mean.params, u, v, ones[0].astype(np.float64))[1]
    step = 1e-6
    columns = [(peak(mean.params + step * e, u, v) - peak(mean.params - step * e, u, v)) / (2 * step) for e in np.eye(7)]
    off = float(np.max(np.abs(jacobian - np.stack(columns, axis=1))))
    if not off < DIFFERENCE_TOLERANCE:
        raise AotgradRuntimeError(f"demo: the Jacobian is off by {off:.2e}")
    tilt = np.degrees(np.arctan(np.tan([f.params[5] for f in fits])))
    print("4. Nonlinear least squares: a tilted Gaussian stroke (7 parameters) fitted to the digit 1, Levenberg-Marquardt on a compiled Jacobian")
    print(f"   mean image: rms residual {mean.rms:.3f}, tilt {np.degrees(mean.params[5]):.1f} degrees, {mean.jacobians} Jacobians, {first:.2f} s, compiling included")
    print(f"   {len(ones)} single images: {sum(f.jacobians for f in fits)} Jacobians in {seconds:.2f} s, median tilt {np.median(tilt):.1f} degrees")
    print(f"   Jacobian against central differences: largest difference {off:.1e}\n")


def _ship(trained: Trained, images: Any, labels: Any, held_back: Any, folder: Path) -> None:
    x, y = images[held_back], one_hot(labels[held_back])
    inputs = [*trained.params, x, y]
    here, grads = loss_and_gradient(trained.params, x, y)
    start = time.perf_counter()
    library = ship.build(folder)
    seconds = time.perf_counter() - start
    print(f"5. Ahead of time: {library.name} ({library.stat().st_size // 1024} KB) with loss and gradient for any number of images, built in {seconds:.2f} s")
    found: list[tuple[str, Any, list[Any]]] = [("a Python without llvmlite", *ship.call_without_compiler(library, inputs, folder))]
    from_c = ship.call_from_c(library, inputs, folder)
    if from_c is not None:
        found.append((f"a C program ({from_c[0]})", from_c[1], from_c[2]))
    print(f"   loss of the {len(x)} held-back images, here: {float(here):.9g}")
    for who, value, gradient in found:
        off = _difference([here, *grads], [value, *gradient])
        same = "equal to the last bit" if off == 0 else f"largest difference {off:.1e}"
        print(f"   called from {who}: {float(value):.9g}; loss and gradient {same}")
        if not off < AGREEMENT:
            raise AotgradRuntimeError(f"demo: the library called from {who} differs by {off:.2e}")
    if from_c is None:
        print("   (no C compiler here, so the C program was not tried)")


def _difference(a: Sequence[Any], b: Sequence[Any]) -> float:
    """The largest difference, relative to the largest value of each array."""
    return max(float(np.max(np.abs(np.asarray(p) - np.asarray(q)))) / max(float(np.max(np.abs(p))), 1e-30) for p, q in zip(a, b, strict=True))
