"""Logistic regression in the manner of PyTorch: tensors, backward(), an update under no_grad."""

import numpy as np

import aotgrad as ag

rng = np.random.default_rng(0)
x = ag.tensor(rng.standard_normal((200, 3)))
y = ag.tensor((rng.random(200) < 1 / (1 + np.exp(-(x.numpy() @ [2.0, -1.0, 0.0] + 0.5)))).astype(np.float64))
w = ag.zeros(3, dtype=ag.float64, requires_grad=True)
b = ag.zeros((), dtype=ag.float64, requires_grad=True)

for _ in range(200):
    z = x @ w + b
    loss = (ag.softplus(z) - y * z).mean()
    loss.backward()
    with ag.no_grad():
        for p in (w, b):
            p -= 0.5 * p.grad
            p.grad = None

print(f"loss {loss.item():.4f}, weights {np.round(w.detach().numpy(), 2)}, bias {b.item():.2f}")
assert loss.item() < 0.45 and w.detach().numpy()[0] > 1
