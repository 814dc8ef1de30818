"""What each program of tests/ir must compute: (inputs, sizes or None, outputs of each function), the outputs by NumPy or by hand, not by the IR."""

from __future__ import annotations

import math

import numpy as np

_RNG = np.random.default_rng(0)
X = np.array([0.5, -1.25, 2.0])
Y = np.array([3.0, 0.25, -1.5])
IMAGE = _RNG.normal(size=(2, 3, 3, 4)).astype(np.float32)
A, B, C = _RNG.normal(size=(2, 3)), _RNG.normal(size=(3, 4)), _RNG.normal(size=4)
SMALL = _RNG.normal(size=(1, 2, 3, 4))
ROWS = np.arange(20.0).reshape(5, 4)
NAN, INF = float("nan"), float("inf")


def _recurrence(k, c, xs):
    ys = []
    for x in xs:
        c = k * c + x
        ys.append(c)
    return [np.array(c), np.array(ys) ** 2, xs]


def _signed_walk(xs):
    c = 1.0
    for x in xs[::-1]:
        c = c + x if x > 0 else c - x
    return np.array(c)


def _softmax(x):
    e = [[math.exp(v) for v in row] for row in x.tolist()]
    return np.array([[v / math.fsum(row) for v in row] for row in e])


CASES = {
    "elementwise": ([X, Y], None, [[X * Y + np.exp(X)]]),
    "channels_last_sum": ([np.ones_like(IMAGE) * np.float32(0.5)], None, [[np.full(2, 9.0, np.float32)]]),
    "relayout_round_trip": ([SMALL], None, [[-SMALL]]),
    "matmul_bias": ([A, B, C], None, [[np.array([[math.fsum([*(A[i, k] * B[k, j] for k in range(3)), C[j]]) for j in range(4)] for i in range(2)])]]),
    "slice_negative_step": ([ROWS], None, [[np.array([[19.0, 17.0], [11.0, 9.0], [3.0, 1.0]])]]),
    "insert_add_strided": ([np.zeros(6), np.array([1.0, 2.0])], None, [[np.array([0.0, 0.0, 0.0, 1.0, 0.0, 2.0])]]),
    "take_repeated": ([np.arange(9.0).reshape(3, 3), np.array([2, 0, 2, 1])], None, [[np.array([[6.0, 7, 8], [0, 1, 2], [6, 7, 8], [3, 4, 5]])]]),
    "scatter_add_repeated": ([np.ones(3), np.array([1, 1, 0]), np.array([1.0, 2.0, 4.0])], None, [[np.array([5.0, 4.0, 1.0])]]),
    "constants_inline": ([], None, [[np.array([[1.5, -0.0], [1e300, 5e-324]]), np.array([1, -2], np.int32), np.array([True, False]), np.float32(0.1), np.zeros((2, 0)),
                                     np.array([0, 255], np.uint8), np.array([NAN, INF, -INF]), np.array([1 + 2j], np.complex64)]]),
    "constant_hex": ([], None, [[np.array([[np.float32(5 * i + j) / np.float32(3) for j in range(5)] for i in range(4)], np.float32)]]),
    "full_special": ([X], None, [[np.array([NAN, NAN]), np.array([-INF] * 3), np.array(-0.0), np.array([3.0])]]),
    "iota_size": ([np.zeros((2, 5), np.int32)], None, [[np.array([[0, 0], [1, 1]], np.int32), np.array(11)]]),
    "reshape_product": ([np.arange(6.0).reshape(2, 3)], None, [[np.array([[0.0, 1, 3], [6, 10, 15]])]]),
    "casts": ([np.array([2.75, 0.0, 1.5])], None, [[np.array([2, 0, 1]), np.array([True, False, True]), np.array([2.75, 0, 1.5], np.float32),
        np.array([2, 0, 1], np.uint8)]]),
    "compare_where": ([X, Y], None, [[np.array([-3.0, -0.25, 1.5])]]),
    "softmax_composite": ([A], None, [[_softmax(A)]]),
    "pad_composite": ([X], None, [[np.array([0.5, 0.5, -1.25, 2.0, 0.5, 0.5])]]),
    "pass_through": ([X, np.array(True)], None, [[X, X]]),
    "scan_recurrence": ([np.array(0.5), np.array(2.0), X], None, [_recurrence(0.5, 2.0, X)]),
    "cond_branches": ([np.array(True), X], None, [[np.exp(X)]]),
    "cond_in_scan": ([X], None, [[_signed_walk(X)]]),
    "two_functions": ([np.array([1.0, -2.0])], None, [[np.array([-1.0, 2.0])], [np.array([1.0, 4.0])]]),
    "locations": ([X], None, [[-np.sin(X) ** 2]]),
}
