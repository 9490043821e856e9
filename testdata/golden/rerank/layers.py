"""Makes rerank/minicpm-train and rerank/minicpm-shared: small random layer-wise rerankers, with a head for each layer and with one for all, and in
float64 what FlagEmbedding's CrossDecoderModel makes of them in training, without a teacher's scores and with them: the scores of all layers that have
one, the loss, its gradient with respect to the scores, and with respect to every parameter.

FlagEmbedding 1.4.2 asks its model for no cutoff_layers, and so gets the last layer's scores alone; its loss is written for those of all. Here the
model is asked for all. Texts are padded on the left, as FlagEmbedding does.

Needs torch 2.9, transformers 5.23 and FlagEmbedding 1.4.2 (pip install --no-deps). Run: python testdata/golden/rerank/layers.py (20 s; writes only here)
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
from flag_layerwise import LayerWiseMiniCPMForCausalLM, configure, pad, trainer
from goldens import report, save
from safetensors.torch import save_file

SEED, LENGTHS, GROUPS, VOCAB, LAYERS, START = 20261126, [3, 11, 6, 2, 7, 5], 2, 40, 4, 2
CONFIG = {
    "vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": LAYERS, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 24,
    "max_position_embeddings": 20, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "scale_emb": 3, "scale_depth": 1.4, "dim_model_base": 8,
    "start_layer": START, "head_type": "simple", "tie_word_embeddings": False,
}  # fmt: skip


def build(config):
    config = copy.deepcopy(config)
    config.dtype = torch.get_default_dtype()
    return LayerWiseMiniCPMForCausalLM(config)


def train(model, rows, teacher):
    """The scores [N, layers], those of the last layer first, the loss, and both gradients."""
    peer, kept = trainer(model, GROUPS), []
    encode = peer.encode
    peer.encode = lambda features: kept.extend(encode(features)) or kept
    loss = peer(pad(rows), teacher_scores=teacher).loss
    assert len(kept) == LAYERS - START + 1
    model.zero_grad()
    dscores = torch.autograd.grad(loss, kept, retain_graph=True)
    loss.backward()
    flip = lambda columns: torch.stack(list(reversed(columns)), 1).detach()
    return flip(kept), loss.detach(), flip(dscores)


for number, (label, multi) in enumerate({"minicpm-train": True, "minicpm-shared": False}.items()):
    generator = torch.Generator().manual_seed(SEED + number)
    config = configure(**CONFIG, head_multi=multi)
    rows = [torch.randint(3, VOCAB, (n,), generator=generator) for n in LENGTHS]
    model = build(config)
    families.randomize(model, generator, torch.bfloat16)
    folder = HERE / label
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    written = {"architectures": ["LayerWiseMiniCPMForCausalLM"], "model_type": "minicpm", **CONFIG, "head_multi": multi, "rope_scaling": None, "rope_theta": 10000.0}
    (folder / "config.json").write_text(json.dumps(written, indent=2) + "\n")
    save_file({n: p.detach().to(torch.bfloat16).contiguous() for n, p in model.named_parameters()}, folder / "model.safetensors")
    taught = torch.randn(len(rows), generator=generator).double() * 2
    arrays = {"ids": torch.cat(rows), "lengths": torch.tensor(LENGTHS), "teacher": taught}
    with families.in_double():
        for kind, teacher in {"alone": None, "taught": taught.tolist()}.items():
            wide = build(config)
            wide.load_state_dict({k: v.double() for k, v in model.state_dict().items()})
            scores, loss, dscores = train(wide, rows, teacher)
            arrays |= {"scores": scores, f"{kind}/loss": loss[None], f"{kind}/dscores": dscores}
            for n, p in wide.named_parameters():
                arrays[f"{kind}/grad/{n}"] = p.grad.float()
    assert all((scores[:, i] - scores[:, j]).abs().max() > 0.1 for i in range(3) for j in range(i)), label
    save(f"rerank/{label}", arrays, {"about": f"a random layer-wise reranker in training, with scores of layers {START} to {LAYERS}", "groups": GROUPS}, __file__, SEED + number, ["transformers"])
report(__file__)
