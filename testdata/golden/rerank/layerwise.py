"""Makes rerank/minicpm-layers and rerank/minicpm-layer: small random layer-wise rerankers, with a head for each layer and with one for all, and
in float64 what FlagEmbedding's LayerWiseMiniCPMForCausalLM makes of them: the score of every layer, cutoff_layers, and the gradient of
sum(score * r) of the middle one with respect to every parameter that it depends on.

Needs torch 2.9, transformers 5.23 and FlagEmbedding 1.4.2 (pip install --no-deps). Run: python testdata/golden/rerank/layerwise.py (20 s; writes only here)
"""

import copy
import importlib.util
import json
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "goldens"))
spec = importlib.util.spec_from_file_location("families", HERE.parent / "families" / "make.py")
families = importlib.util.module_from_spec(spec)
spec.loader.exec_module(families)

import torch
from FlagEmbedding.inference.reranker.decoder_only.models.configuration_minicpm_reranker import LayerWiseMiniCPMConfig
from FlagEmbedding.inference.reranker.decoder_only.models.modeling_minicpm_reranker import LayerWiseMiniCPMForCausalLM
from goldens import error, report, save
from safetensors.torch import save_file

SEED, LENGTHS, VOCAB, LAYERS, CUTOFF = 20261122, [3, 11, 6, 2], 40, 3, 2
CONFIG = {
    "vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": LAYERS, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 24,
    "max_position_embeddings": 20, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "scale_emb": 3, "scale_depth": 1.4, "dim_model_base": 8,
    "start_layer": 2, "head_type": "simple", "tie_word_embeddings": False,
}  # fmt: skip


def build(config):
    config = copy.deepcopy(config)
    config._attn_implementation = "eager"
    config.dtype = torch.get_default_dtype()
    return LayerWiseMiniCPMForCausalLM(config)


def scores(model, rows, layers):
    """[layer, row], one row at a time: nothing is padded."""
    out = []
    for row in rows:
        logits = model(input_ids=row[None], attention_mask=torch.ones(1, len(row), dtype=torch.int64), output_hidden_states=True, cutoff_layers=layers, use_cache=False).logits
        out.append(torch.stack([l[0, -1] for l in logits]))
    return torch.stack(out, 1)


for number, (label, multi) in enumerate({"minicpm-layers": True, "minicpm-layer": False}.items()):
    generator = torch.Generator().manual_seed(SEED + number)
    config = LayerWiseMiniCPMConfig(**CONFIG, head_multi=multi, rope_theta=10000.0)
    config.rope_theta, config.rope_scaling = 10000.0, None  # transformers 5 fills in what FlagEmbedding's code wants to be None
    rows = [torch.randint(3, VOCAB, (n,), generator=generator) for n in LENGTHS]
    model = build(config)
    families.randomize(model, generator, torch.bfloat16)
    folder = HERE / label
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    written = {"architectures": ["LayerWiseMiniCPMForCausalLM"], "model_type": "minicpm", **CONFIG, "head_multi": multi, "rope_scaling": None, "rope_theta": 10000.0}
    (folder / "config.json").write_text(json.dumps(written, indent=2) + "\n")
    save_file({n: p.detach().to(torch.bfloat16).contiguous() for n, p in model.named_parameters()}, folder / "model.safetensors")
    r, every = torch.randn(len(rows), generator=generator), list(range(2, LAYERS + 1))
    narrow = scores(model, rows, every)
    with families.in_double():
        wide = build(config)
        wide.load_state_dict({k: v.double() for k, v in model.state_dict().items()})
        s = scores(wide, rows, every)
        cut = scores(wide, rows, [CUTOFF])[0]
        (cut * r.double()).sum().backward()
    assert error(narrow, s) < 1e-5 and error(cut, s[CUTOFF - 2]) == 0 and error(s[0], s[1]) > 0.1, label
    arrays = {"ids": torch.cat(rows), "lengths": torch.tensor(LENGTHS), "r": r.double(), "scores": cut.detach(), "last": s[-1].detach()}
    for n, p in wide.named_parameters():
        if p.grad is not None:
            arrays["grad/" + n] = p.grad.float()
    save(f"rerank/{label}", arrays, {"about": f"a random layer-wise reranker, scored by layer {CUTOFF} of {LAYERS}", "cutoff": CUTOFF}, __file__, SEED + number, ["transformers"])
    print(f"{label}: torch's float32 is off by {error(narrow, s):.1e}", file=sys.stderr)
report(__file__)
