"""Makes the constants of coef.go. Made with Python 3.11, numpy 2.4.6 and scipy 1.17.1: python coefficients.py

Both fits are minimax in the relative error, by Lawson's iteration: weighted least squares whose weights grow where the
error is large.
"""
import numpy as np
from scipy.special import erfcx


def lawson(design, target, weights, rounds=2000):
    scale = np.abs(design).max(0)
    best, worst = None, np.inf
    for _ in range(rounds):
        w = np.sqrt(weights)
        c = np.linalg.lstsq(design / scale * w[:, None], target * w, rcond=None)[0] / scale
        error = np.abs(design @ c - target)
        if error.max() < worst:
            best, worst = c, error.max()
        weights = weights * (error / error.max() + 1e-2)
        weights /= weights.sum()
    return best, worst


def chebyshev(lo, hi, n=4000):
    return (lo + hi) / 2 - (hi - lo) / 2 * np.cos(np.linspace(0, np.pi, n))


def exp_fit(entries, degree):
    """exp(r) = 1 + r*(c1 + r*(c2 + ...)), up to r^degree, for |r| <= ln(2)/(2*entries)."""
    h = np.log(2) / (2 * entries)
    r = chebyshev(-h, h)
    r = r[np.abs(r) > 1e-9]
    e = np.exp(r)
    return lawson(np.stack([r**i / e for i in range(1, degree + 1)], 1), np.expm1(r) / e, np.ones(len(r)))


def mills_fit(top=14.0):
    """Phi(-a)/exp(-a*a/2) = N(a)/D(a) for 0 <= a <= top, N of degree 4, D of degree 5 with D(0) = 1."""
    a = top * ((1 - np.cos(np.linspace(0, np.pi, 4000))) / 2) ** 1.5
    f = 0.5 * erfcx(a / np.sqrt(2))
    d, best, worst = np.ones(len(a)), None, np.inf
    weights = np.ones(len(a))
    for _ in range(600):
        num = np.stack([a**k for k in range(5)], 1)
        den = np.stack([-f * a**k for k in range(1, 6)], 1)
        c, _ = lawson(np.concatenate([num, den], 1) / (f * d)[:, None], 1 / d, weights, 1)
        n = np.polyval(c[:5][::-1], a)
        d = 1 + a * np.polyval(c[5:][::-1], a)
        error = np.abs(n / d / f - 1)
        if error.max() < worst:
            best, worst = c, error.max()
        weights = weights * (error / error.max() + 1e-2)
        weights /= weights.sum()
    return best, worst


for entries, degree in ((1, 6), (8, 3), (16, 3)):
    c, e = exp_fit(entries, degree)
    print(f"exp, {entries} entries: error {e:.2g}:", ", ".join(f"{v:.10g}" for v in c))
c, e = mills_fit()
print(f"Mills: error {e:.2g}")
print("numerator:", ", ".join(f"{v:.10g}" for v in c[:5]))
print("denominator: 1,", ", ".join(f"{v:.10g}" for v in c[5:]))
