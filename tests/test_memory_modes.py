"""Peak memory of a 20-layer network and of ResNet-18 on small images: inference under ``no_grad`` against the same forward with a tape.

Weights and input do not count. Each in a process of its own, where what is freed goes back to the system (glibc else keeps blocks of this size for later).
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="the peak is read from /proc")

SCRIPT = """
import gc, json, sys
import numpy as np
import aotgrad as ag

WIDTH, ROWS, LAYERS = 128, 4096, 20
rng = np.random.default_rng(0)
weights = [ag.from_numpy(rng.normal(size=(WIDTH, WIDTH)) / 12).requires_grad_() for _ in range(LAYERS)]
x = ag.from_numpy(rng.normal(size=(ROWS, WIDTH)))


def network(x, *weights):
    for w in weights:
        x = ag.tanh(x @ w)
    return x


def inference(f):
    with ag.no_grad():
        return f(x, *weights)


def forward(f):
    return f(x, *weights)


def step(f):
    y = f(x, *weights)
    y.backward(ag.ones_like(y))


def status(key):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key)) / 1024


f = {"eager": network, "compiled": ag.compile(network)}[sys.argv[1]]
run = globals()[sys.argv[2]]
small, x = x, x[:64].clone()
run(f)  # programs are made
for w in weights:
    w.grad = None
x = small
gc.collect()
open("/proc/self/clear_refs", "w").write("5")
before = status("VmRSS")
out = run(f)
print(json.dumps((status("VmHWM") - before) / (ROWS * WIDTH * 8 / 2**20)))
"""


@functools.lru_cache(maxsize=8)
def peak(how: str, what: str) -> float:
    """Peak memory in activations of one layer."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, how, what], capture_output=True, text=True, check=True,
                          env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "131072"})
    return float(json.loads(done.stdout))


def test_inference_in_eager() -> None:
    assert peak("eager", "forward") > 15  # the tape holds every layer
    assert peak("eager", "inference") <= peak("eager", "forward") / 3


def test_inference_compiled() -> None:
    assert peak("compiled", "inference") <= peak("eager", "forward") / 4
    assert peak("compiled", "inference") <= peak("compiled", "step") / 4


RESNET = """
import gc, json, sys
import numpy as np
import aotgrad as ag

F = ag.nn.functional
BATCH, SIZE, WIDTHS = 32, 128, (32, 64, 128, 256)
rng = np.random.default_rng(0)
weights = []


def conv(cin, cout, k):
    weights.append(ag.from_numpy((rng.normal(size=(cout, cin, k, k)) / (cin * k * k) ** 0.5).astype(np.float32)).requires_grad_())
    weights.append(ag.ones(cout, requires_grad=True))
    weights.append(ag.zeros(cout, requires_grad=True))


conv(3, WIDTHS[0], 7)
PLAN, cin = [], WIDTHS[0]
for stage, width in enumerate(WIDTHS):
    for block in range(2):
        stride = 2 if stage and not block else 1
        PLAN.append((stride, cin != width))
        conv(cin, width, 3)
        conv(width, width, 3)
        if cin != width:
            conv(cin, width, 1)
        cin = width
weights.append(ag.from_numpy(rng.normal(size=(10, cin)).astype(np.float32) / cin).requires_grad_())
x = ag.from_numpy(rng.normal(size=(BATCH, 3, SIZE, SIZE)).astype(np.float32)).contiguous(memory_format=ag.channels_last)


def network(x, *weights):
    left = iter(weights)

    def layer(x, stride, padding):
        return F.batch_norm(F.conv2d(x, next(left), None, stride, padding), None, None, next(left), next(left), True)

    x = F.max_pool2d(F.relu(layer(x, 2, 3)), 3, 2, 1)
    for stride, turned in PLAN:
        y = layer(F.relu(layer(x, stride, 1)), 1, 1)
        x = F.relu(y + (layer(x, stride, 0) if turned else x))
    return F.linear(F.adaptive_avg_pool2d(x, 1).flatten(1), next(left))
"""
RESNET += SCRIPT[SCRIPT.index("def inference"):].replace("(ROWS * WIDTH * 8 / 2**20)", "(BATCH * WIDTHS[0] * (SIZE // 2) ** 2 * 4 / 2**20)").replace("x[:64]", "x[:2]")


@functools.lru_cache(maxsize=8)
def resnet_peak(how: str, what: str) -> float:
    """Peak memory in activations of the first convolution."""
    done = subprocess.run([sys.executable, "-c", RESNET, how, what], capture_output=True, text=True, check=True,
                          env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "131072"})
    return float(json.loads(done.stdout))


def test_inference_of_resnet_in_eager() -> None:
    """A norm holds its image no longer than it must. (Before Python 3.11 the caller holds it anyway.)"""
    assert resnet_peak("eager", "inference") <= resnet_peak("eager", "forward") / (3.5 if sys.version_info >= (3, 11) else 3)


def test_inference_of_resnet_compiled() -> None:
    """With the batch's statistics, which take more passes over each activation than running ones: every norm is made in the place of its convolution."""
    assert resnet_peak("compiled", "inference") <= resnet_peak("eager", "forward") / 5


if __name__ == "__main__":
    for pair in (("eager", "inference"), ("eager", "forward"), ("eager", "step"), ("compiled", "inference"), ("compiled", "forward"), ("compiled", "step")):
        print(*pair, round(peak(*pair), 1), *((round(resnet_peak(*pair), 1),) if pair[0] == "eager" or pair[1] == "inference" else ()))
