"""The published rules of all optimizers in plain NumPy and float64, for one parameter and the gradients of some steps."""

import math
from collections.abc import Sequence

import numpy as np

Array = np.ndarray


def sgd(p, gs: Sequence[Array], rate=0.01, momentum=0.0, nesterov=False, dampening=0.0, weight_decay=0.0) -> Array:
    buffer = None
    for g in gs:
        g = g + weight_decay * p
        if momentum:
            buffer = g if buffer is None else momentum * buffer + (1 - dampening) * g
            g = g + momentum * buffer if nesterov else buffer
        p = p - rate * g
    return p


def signum(p, gs, rate=1e-3, momentum=0.9, weight_decay=0.0) -> Array:
    m = np.zeros_like(p)
    for g in gs:
        m = momentum * m + (1 - momentum) * g
        p = (1 - rate * weight_decay) * p - rate * np.sign(m)
    return p


def lion(p, gs, rate=1e-4, b1=0.9, b2=0.99, weight_decay=0.0) -> Array:
    m = np.zeros_like(p)
    for g in gs:
        c = b1 * m + (1 - b1) * g
        p = p - rate * (np.sign(c) + weight_decay * p)
        m = b2 * m + (1 - b2) * g
    return p


def rprop(p, gs, rate=0.01, grow=1.2, shrink=0.5, least=1e-4, most=5e3) -> Array:
    step, last, p = np.full_like(p, rate), np.zeros_like(p), p.copy()
    for gradient in gs:
        g = gradient.copy()
        for i in np.ndindex(p.shape):
            if g[i] * last[i] > 0:
                step[i] = min(step[i] * grow, most * rate)
            elif g[i] * last[i] < 0:
                step[i] = max(step[i] * shrink, least * rate)
                g[i] = 0.0
            p[i] -= np.sign(g[i]) * step[i]
        last = g
    return p


def adagrad(p, gs, rate=0.01, eps=1e-10, start=0.0, weight_decay=0.0) -> Array:
    total = np.full_like(p, start)
    for g in gs:
        g = g + weight_decay * p
        total = total + g**2
        p = p - rate * g / (np.sqrt(total) + eps)
    return p


def rmsprop(p, gs, rate=0.01, decay=0.99, eps=1e-8, momentum=0.0, centered=False, weight_decay=0.0) -> Array:
    v, mean, buffer = np.zeros_like(p), np.zeros_like(p), np.zeros_like(p)
    for g in gs:
        g = g + weight_decay * p
        v = decay * v + (1 - decay) * g**2
        mean = decay * mean + (1 - decay) * g
        buffer = momentum * buffer + g / (np.sqrt(v - mean**2 if centered else v) + eps)
        p = p - rate * buffer
    return p


def adadelta(p, gs, rate=1.0, decay=0.9, eps=1e-6, weight_decay=0.0) -> Array:
    squares, moves = np.zeros_like(p), np.zeros_like(p)
    for g in gs:
        g = g + weight_decay * p
        squares = decay * squares + (1 - decay) * g**2
        move = -np.sqrt(moves + eps) / np.sqrt(squares + eps) * g
        moves = decay * moves + (1 - decay) * move**2
        p = p + rate * move
    return p


def sm3(p, gs, rate=0.1, momentum=0.9, eps=1e-8) -> Array:
    covers, m = [np.zeros(n) for n in p.shape], np.zeros_like(p)
    for g in gs:
        v = np.empty_like(p)
        for i in np.ndindex(p.shape):
            v[i] = min(cover[j] for cover, j in zip(covers, i, strict=True)) + g[i] ** 2
        covers = [np.array([np.take(v, j, axis=a).max() for j in range(n)]) for a, n in enumerate(p.shape)]
        m = momentum * m + (1 - momentum) * g / (np.sqrt(v) + eps)
        p = p - rate * m
    return p


def ftrl(p, gs, rate=0.1, beta=1.0, l1=0.0, l2=0.0) -> Array:
    n, z = np.zeros_like(p), np.zeros_like(p)
    for g in gs:
        sigma = (np.sqrt(n + g**2) - np.sqrt(n)) / rate
        z, n = z + g - sigma * p, n + g**2
        p = np.where(np.abs(z) <= l1, 0.0, -(z - np.sign(z) * l1) / ((beta + np.sqrt(n)) / rate + l2))
    return p


def adam(p, gs, rate=1e-3, b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.0, amsgrad=False, decoupled=0.0) -> Array:
    m, v, top = np.zeros_like(p), np.zeros_like(p), np.zeros_like(p)
    for t, g in enumerate(gs, 1):
        p = p - rate * decoupled * p
        # The penalty belongs to the parameter before its own decay; only one of the two is ever used.
        g = g + weight_decay * p
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        top = np.maximum(top, v)
        corrected = (top if amsgrad else v) / (1 - b2**t)
        p = p - rate * (m / (1 - b1**t)) / (np.sqrt(corrected) + eps)
    return p


def adamw(p, gs, rate=1e-3, b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.01, amsgrad=False) -> Array:
    return adam(p, gs, rate, b1, b2, eps, 0.0, amsgrad, decoupled=weight_decay)


def adamax(p, gs, rate=2e-3, b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.0) -> Array:
    m, u = np.zeros_like(p), np.zeros_like(p)
    for t, g in enumerate(gs, 1):
        g = g + weight_decay * p
        m, u = b1 * m + (1 - b1) * g, np.maximum(b2 * u, np.abs(g) + eps)
        p = p - rate / (1 - b1**t) * m / u
    return p


def nadam(p, gs, rate=2e-3, b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.0, growth=0.004) -> Array:
    m, v = np.zeros_like(p), np.zeros_like(p)

    def mu(t: int) -> float:
        return b1 * (1 - 0.5 * 0.96 ** (t * growth))

    for t, g in enumerate(gs, 1):
        g = g + weight_decay * p
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        product = math.prod(mu(i) for i in range(1, t + 1))
        look = mu(t + 1) * m / (1 - product * mu(t + 1)) + (1 - mu(t)) * g / (1 - product)
        p = p - rate * look / (np.sqrt(v / (1 - b2**t)) + eps)
    return p


def radam(p, gs, rate=1e-3, b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.0) -> Array:
    m, v, longest = np.zeros_like(p), np.zeros_like(p), 2 / (1 - b2) - 1
    for t, g in enumerate(gs, 1):
        g = g + weight_decay * p
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        rho = longest - 2 * t * b2**t / (1 - b2**t)
        step = m / (1 - b1**t)
        if rho > 5:
            r = math.sqrt((rho - 4) * (rho - 2) * longest / ((longest - 4) * (longest - 2) * rho))
            step = step * r / (np.sqrt(v / (1 - b2**t)) + eps)
        p = p - rate * step
    return p


def yogi(p, gs, rate=0.01, b1=0.9, b2=0.999, eps=1e-3, weight_decay=0.0) -> Array:
    m, v = np.zeros_like(p), np.zeros_like(p)
    for t, g in enumerate(gs, 1):
        g = g + weight_decay * p
        m, v = b1 * m + (1 - b1) * g, v - (1 - b2) * np.sign(v - g**2) * g**2
        p = p - rate * (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + eps)
    return p


def adabelief(p, gs, rate=1e-3, b1=0.9, b2=0.999, eps=1e-16, weight_decay=0.0) -> Array:
    m, s = np.zeros_like(p), np.zeros_like(p)
    for t, g in enumerate(gs, 1):
        m = b1 * m + (1 - b1) * g
        s = b2 * s + (1 - b2) * (g - m) ** 2 + eps
        p = (1 - rate * weight_decay) * p - rate * (m / (1 - b1**t)) / (np.sqrt(s / (1 - b2**t)) + eps)
    return p


def adan(p, gs, rate=1e-3, b1=0.98, b2=0.92, b3=0.99, eps=1e-8, weight_decay=0.0) -> Array:
    m, v, n, last = np.zeros_like(p), np.zeros_like(p), np.zeros_like(p), gs[0]
    for t, g in enumerate(gs, 1):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * (g - last)
        n = b3 * n + (1 - b3) * (g + b2 * (g - last)) ** 2
        step = (m / (1 - b1**t) + b2 * v / (1 - b2**t)) / (np.sqrt(n / (1 - b3**t)) + eps)
        p, last = (1 - rate * weight_decay) * p - rate * step, g
    return p


def lars(p, gs, rate=0.1, momentum=0.9, weight_decay=0.0, trust=1e-3, eps=1e-8) -> Array:
    velocity = np.zeros_like(p)
    for g in gs:
        size, steepness, local = np.linalg.norm(p), np.linalg.norm(g), 1.0
        if trust and size > 0 and steepness > 0:
            local = trust * size / (steepness + weight_decay * size + eps)
        velocity = momentum * velocity + rate * local * (g + weight_decay * p)
        p = p - velocity
    return p


def lamb(p, gs, rate=1e-3, b1=0.9, b2=0.999, eps=1e-6, weight_decay=0.01) -> Array:
    m, v = np.zeros_like(p), np.zeros_like(p)
    for t, g in enumerate(gs, 1):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        r = (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + eps) + weight_decay * p
        size, length = np.linalg.norm(p), np.linalg.norm(r)
        p = p - rate * (size / length if size > 0 and length > 0 else 1.0) * r
    return p


def novograd(p, gs, rate=0.01, b1=0.95, b2=0.98, eps=1e-8, weight_decay=0.0) -> Array:
    v, m = None, np.zeros_like(p)
    for g in gs:
        square = float((g**2).sum())
        v = square if v is None else b2 * v + (1 - b2) * square
        m = b1 * m + (g / (math.sqrt(v) + eps) + weight_decay * p)
        p = p - rate * m
    return p


def adafactor(p, gs, rate=0.01, decay=0.8, clip=1.0, eps=1e-30, least=1e-3, weight_decay=0.0) -> Array:
    rows = columns = square = 0.0
    for t, g in enumerate(gs, 1):
        keep = 1 - t**-decay
        raised = g**2 + eps
        if p.ndim > 1:
            flat = raised.reshape(len(p), -1)
            rows = keep * rows + (1 - keep) * flat.sum(axis=1)
            columns = keep * columns + (1 - keep) * flat.sum(axis=0)
            # Sums instead of means: the factors of the number of rows and columns cancel.
            square = (np.outer(rows, columns) / rows.sum() / 1.0).reshape(p.shape)
        else:
            square = keep * square + (1 - keep) * raised
        u = g / np.sqrt(square)
        u = u / max(1.0, math.sqrt((u**2).mean()) / clip)
        p = p - rate * (max(least, math.sqrt((p**2).mean())) * u + weight_decay * p)
    return p


def muon(p, gs, rate=1e-3, momentum=0.95, nesterov=True, rounds=5, weight_decay=0.1, orthogonalize=True) -> Array:
    if p.ndim < 2 or not orthogonalize:
        return adamw(p, gs, rate, weight_decay=weight_decay)
    average = np.zeros((len(p), p.size // len(p)))
    for gradient in gs:
        g = gradient.reshape(average.shape)
        average = momentum * average + (1 - momentum) * g
        step = (1 - momentum) * g + momentum * average if nesterov else average
        # The iteration acts on the singular values alone.
        left, values, right = np.linalg.svd(step, full_matrices=False)
        values = values / (np.sqrt((values**2).sum()) + 1e-7 * (1 - momentum))
        for _ in range(rounds):
            values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
        step = 0.2 * math.sqrt(max(average.shape)) * (left * values) @ right
        p = p - rate * (step.reshape(p.shape) + weight_decay * p)
    return p
