"""How far torch's bf16 autocast is from float64 goldens: what bert/bf16.py and lora/bf16.py share. The measure is the project's: per tensor,
the largest difference over the larger of the tensor's largest value and 1e-4 of the model's largest gradient entry.
"""

import sys

import torch
import torch.nn.functional as F


def measure(got, want, largest):
    got, want = got.detach().double(), want.double()
    return float((got - want).abs().max() / max(want.abs().max().item(), 1e-4 * largest))


def errors(name, model, golden, pooling, normalize, embedding, gradients, parameters):
    """Errors of the model's embeddings and of its gradients (parameters' by name) for the golden's rows, which go through it one at a time,
    so that nothing is padded. embedding and gradients are the truth."""
    embeddings, at, loss = [], 0, 0.0
    r = golden["r"].float()
    for i, n in enumerate(golden["lengths"].tolist()):
        ids = golden["ids"][at : at + n].long()[None]
        at += n
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = model(input_ids=ids).last_hidden_state[0]
        hidden = hidden.float()
        e = {"mean": hidden.mean(0), "cls": hidden[0], "last": hidden[-1]}[pooling]
        e = F.normalize(e, dim=0) if normalize else e
        embeddings.append(e)
        loss = loss + (e * r[i]).sum()
    loss.backward()
    largest = max(v.abs().max().item() for v in gradients.values())
    out = {
        "embedding": measure(torch.stack(embeddings), embedding, 0),
        "gradients": {k: measure(parameters[k].grad, v, largest) for k, v in sorted(gradients.items())},
    }
    found = sorted(out["gradients"].values())
    print(name, f"embedding {out['embedding']:.2e}, gradients: median {found[len(found) // 2]:.2e}, largest {found[-1]:.2e}", file=sys.stderr)
    return out
