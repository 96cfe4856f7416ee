"""DSDML's four losses once more, as loops over Python's floats straight from the paper's equations."""

import math


def slow_rows(name, loss, x, same, negative, omega=0.0):
    """The loss of every row of x (lists of floats). same, negative: (i, j) -> bool."""
    found = []
    for i in range(len(x)):
        s = [sum(a * b for a, b in zip(x[i], y, strict=True)) for y in x]
        everyone = [s[j] for j in range(len(x)) if j != i and same(i, j)]
        p, q = everyone, [s[j] for j in range(len(x)) if negative(i, j)]
        if loss.select:
            p = [v for v in p if v < loss.tau_p]
            q = [v for v in q if v > loss.tau_n and p and v > min(p) - loss.tau_b]
        elif getattr(loss, "epsilon", None) is not None and p and q:
            low, high = min(p), max(q)
            p, q = [v for v in p if v - loss.epsilon < high], [v for v in q if v + loss.epsilon > low]
        found.append(ONE_ANCHOR[name](loss, p, q, len(everyone), omega) if p and q else 0.0)
    return found


def mean(values):
    return sum(values) / len(values)


def more(loss, omega, v, tau):
    return omega * (v - tau) ** 2


def binomial_deviance(loss, p, q, everyone, w):
    near = [loss.alpha * (loss.lam - v + more(loss, w, v, loss.tau_p)) for v in p]
    far = [loss.beta * (v - loss.lam + more(loss, w, v, loss.tau_n)) for v in q]
    return mean([math.log1p(math.exp(v)) for v in near]) + mean([math.log1p(math.exp(v)) for v in far])


def lifted_log(loss, p, q, everyone, w):
    near = sum(math.exp(loss.lam - v + more(loss, w, v, loss.tau_p)) for v in p)
    return math.log(near) + math.log(sum(math.exp(v + more(loss, w, v, loss.tau_n)) for v in q))


def multi_similarity(loss, p, q, everyone, w):
    near = sum(math.exp(-loss.alpha * (v - loss.lam) + more(loss, w, v, loss.tau_p)) for v in p)
    far = sum(math.exp(loss.beta * (v - loss.lam) + more(loss, w, v, loss.tau_n)) for v in q)
    return math.log1p(near) / loss.alpha + math.log1p(far) / loss.beta


def similarity_triplet(loss, p, q, everyone, w):
    total = 0.0
    for v in p:
        kept = [u for u in q if (u > v - loss.tau_b if loss.select else v - u < loss.lam)]
        terms = [loss.lam - (v - u) + more(loss, w, v, loss.tau_p) + more(loss, w, u, loss.tau_n) for u in kept]
        total += mean(terms) / everyone if terms else 0.0
    return total


ONE_ANCHOR = {
    "binomial-deviance": binomial_deviance,
    "lifted-log": lifted_log,
    "multi-similarity": multi_similarity,
    "similarity-triplet": similarity_triplet,
}
