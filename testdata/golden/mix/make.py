"""Goldens for stages/mix: means of three tiny models, computed in float64, and what sentence-transformers makes of one: python make.py (in this folder).

Model a is testdata/golden/hfmodel/st6; b and c are it with noise added, and for b some weights with an angle that is known.

models.safetensors:
- b/NAME, c/NAME float32: their tensors, with a's shapes and names.
- linear/NAME float64: 0.5 a + 0.3 b + 0.2 c.
- slerp/NAME float64: from a to b, t = 0.3: the formula, and where vectors are parallel (cosine beyond 0.9995) or of length 0 the mean.
- embeddings [N, 16] float64: SentenceTransformer.encode of meta.texts by a model with the linear mean for parameters, rounded to float32.
- meta: weights, t, texts; angles: by name, the angle between a and b in degrees where it is known.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "goldens"))
from goldens import GOLDEN, save  # noqa: E402

import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from sentence_transformers import SentenceTransformer  # noqa: E402

SEED = 20
WEIGHTS, T = [0.5, 0.3, 0.2], 0.3
TEXTS = ["a cat sat on the mat", "the dog", "what is a gradient?"]
LAYER, UPPER = (f"encoder.layer.{i}.attention.self." for i in range(2))

g = torch.Generator().manual_seed(SEED)
a = load_file(GOLDEN / "hfmodel/st6/model.safetensors")
b, c = ({k: v + 0.1 * torch.randn(v.shape, generator=g) for k, v in a.items()} for _ in range(2))

angles = {}
b[LAYER + "query.weight"] = 2 * a[LAYER + "query.weight"]
angles[LAYER + "query.weight"] = 0
b[LAYER + "key.weight"] = -a[LAYER + "key.weight"]
angles[LAYER + "key.weight"] = 180


def turned(v, degrees):
    """A vector of another length, so many degrees from v."""
    v = v.double()
    other = torch.randn(v.shape, generator=g).double()
    other -= (other * v).sum() / (v * v).sum() * v
    angle = torch.tensor(degrees).double().deg2rad()
    return (1.5 * (angle.cos() * v + angle.sin() * v.norm() / other.norm() * other)).float()


for name, degrees in {LAYER + "value.weight": 90.0, UPPER + "query.weight": 60.0, UPPER + "key.weight": 1.0, UPPER + "value.weight": 3.0}.items():
    b[name] = turned(a[name], degrees)
    angles[name] = degrees


def slerp(x, y, t):
    x, y = x.double(), y.double()
    nx, ny = x.norm(), y.norm()
    if min(nx, ny) <= 1e-8 or abs((x * y).sum() / (nx * ny)) > 0.9995:
        return (1 - t) * x + t * y
    theta = torch.arccos((x * y).sum() / (nx * ny))
    return (torch.sin((1 - t) * theta) * x + torch.sin(t * theta) * y) / torch.sin(theta)


linear = {k: sum(w * m[k].double() for w, m in zip(WEIGHTS, (a, b, c))) for k in a}
model = SentenceTransformer(str(GOLDEN / "hfmodel/st6"), device="cpu")
missing = model[0].auto_model.load_state_dict({k: v.float() for k, v in linear.items()}, strict=False)
assert not missing.unexpected_keys and all("position_ids" in k for k in missing.missing_keys), missing
embeddings = model.double().encode(TEXTS, convert_to_tensor=True)

arrays = {f"{n}/{k}": v for n, m in (("b", b), ("c", c), ("linear", linear)) for k, v in m.items()}
arrays |= {f"slerp/{k}": slerp(a[k], b[k], T) for k in a}
arrays["embeddings"] = embeddings
save("mix/models", arrays, {"about": __doc__.split("\n")[0], "weights": WEIGHTS, "t": T, "texts": TEXTS, "angles": angles}, __file__, SEED, ("transformers", "sentence_transformers"))
