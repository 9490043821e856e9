"""Makes lora/*: adapters as PEFT saves them, with what PEFT computes in float64: embeddings and the gradient of everything that
trains; and the first gradient of contrastive training with and without LoRA, over one contrastive batch and accumulated over three.

lora/qwen3-tiny is a small random decoder that has the vocabulary of bert/minilm-tiny.

Needs torch 2.9, transformers 5.23, peft 0.21. Run: python testdata/golden/lora/make.py [CASE ...] (ten seconds; writes only here; with names of cases
those alone)
"""

import importlib.util
import os
import shutil
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "goldens"))

import torch
import torch.nn.functional as F
import transformers
from goldens import GOLDEN, error, report, save
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

spec = importlib.util.spec_from_file_location("families", GOLDEN / "families" / "make.py")
families = importlib.util.module_from_spec(spec)
spec.loader.exec_module(families)
warnings.filterwarnings("ignore")

SEED = 20261121
HERE = Path(__file__).resolve().parent
MODULES = ["transformers", "peft"]
LENGTHS = [3, 17, 6, 2, 11]
BERT, QWEN3 = "bert/minilm-tiny", "lora/qwen3-tiny"

# name: base model, pooling, LoraConfig
CASES = {
    "bert-qv": (BERT, "mean", dict(r=4, lora_alpha=8, target_modules=["query", "value"])),
    "bert-all": (BERT, "mean", dict(r=3, lora_alpha=6, target_modules="all-linear", use_rslora=True)),
    "bert-save": (BERT, "cls", dict(r=2, lora_alpha=3, target_modules=["attention.output.dense", "intermediate.dense"], modules_to_save=["LayerNorm"])),
    "qwen3-qo": (QWEN3, "last", dict(r=4, lora_alpha=8, target_modules=["q_proj", "o_proj"])),
    "qwen3-last-o": (QWEN3, "last", dict(r=2, lora_alpha=8, target_modules=["layers.1.self_attn.o_proj"])),
    "qwen3-all": (QWEN3, "mean", dict(r=5, lora_alpha=7, target_modules="all-linear", use_rslora=True)),
    "modernbert-fused": ("families/modernbert", "cls", dict(r=4, lora_alpha=4, target_modules=["Wqkv", "mlp.Wo"])),
    "electra-all": ("families/electra", "mean", dict(r=2, lora_alpha=5, target_modules="all-linear")),
    "t5-all": ("families/t5", "mean", dict(r=2, lora_alpha=5, target_modules="all-linear")),
    # Factors of queries and keys act on distances, too; the second model has projections of its own for those.
    "deberta-qk": ("families/deberta-v2", "mean", dict(r=4, lora_alpha=8, target_modules=["query_proj", "key_proj"])),
    "deberta-own-all": ("families/deberta-v2-own", "cls", dict(r=2, lora_alpha=6, target_modules="all-linear")),
    "deberta-own-far": ("families/deberta-v2-own", "cls", dict(r=2, lora_alpha=6, target_modules=["layer.1.attention.self.pos_key_proj"])),
}  # fmt: skip

# As PEFT saves an adapter of a model with a head, whose names have a prefix that the base's folder lacks.
HEAD_SEED = SEED + 7
HEAD = "qwen3-head", QWEN3, "mean", dict(r=2, lora_alpha=4, target_modules=["q_proj"], modules_to_save=["norm"])

# Contrastive training: name: base model, pooling, case whose adapter trains (None: everything).
STEPS = {
    "bert-full": (BERT, "mean", None),
    "bert-qv": (BERT, "mean", "bert-qv"),
    "qwen3-qo": (QWEN3, "last", "qwen3-qo"),
    "qwen3-last-o": (QWEN3, "last", "qwen3-last-o"),
}
ROWS, SCALE = 8, 20


def tiny_qwen3(generator):
    config = transformers.Qwen3Config(
        vocab_size=120, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=36,
        max_position_embeddings=64, pad_token_id=0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = families.build(config)
    families.randomize(model, generator, torch.bfloat16)
    shutil.rmtree(GOLDEN / QWEN3, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(GOLDEN / QWEN3)


def read(base):
    """Configuration and weights. transformers loads no files within in_double."""
    config = AutoConfig.from_pretrained(GOLDEN / base)
    cls = getattr(transformers, families.ENCODERS.get(config.model_type, "AutoModel"))
    model = cls.from_pretrained(GOLDEN / base, dtype="float32")
    return config, {k: v.double() for k, v in model.state_dict().items()}


def load(base):
    """The base model, in torch's default type."""
    config, weights = BASES[base]
    model = families.build(config)
    model.load_state_dict({k: v.to(torch.get_default_dtype()) for k, v in weights.items()})
    return model


def adapt(model, config, generator):
    """A model with an adapter that does something. Its values are exact in float32."""
    model = get_peft_model(model, LoraConfig(**config))
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.requires_grad:
                value = torch.randn(p.shape, generator=generator, dtype=torch.float64) * (0.15 if "lora_" in name else 0.1)
                p.copy_((value if "lora_" in name else p.double() + value).to(p.dtype))
                p.copy_(torch.from_numpy(p.detach().double().numpy().astype("float32")).double())
    return model


def plain(name):
    return name.removeprefix("base_model.model.").replace(".default", "").replace(".modules_to_save", "")


def trained_gradients(model):
    return {
        plain(n): (p.grad if p.grad is not None else torch.zeros_like(p)).clone()
        for n, p in model.named_parameters()
        if p.requires_grad and "pooler." not in n
    }


def save_adapter(model, base, folder):
    shutil.rmtree(folder, ignore_errors=True)
    model.peft_config["default"].base_model_name_or_path = f"testdata/golden/{base}"
    model.save_pretrained(folder)
    file = folder / "adapter_model.safetensors"
    save_file({k: v.float() for k, v in load_file(file).items()}, file, metadata={"format": "pt"})
    (folder / "README.md").unlink(missing_ok=True)
    for f in folder.rglob("*"):
        f.chmod(0o644)


def make_head():
    name, base, pooling, config = HEAD
    generator = torch.Generator().manual_seed(HEAD_SEED)
    rows = [torch.randint(3, BASES[base][0].vocab_size, (n,), generator=generator) for n in LENGTHS]
    with families.in_double():
        whole = AutoModelForCausalLM.from_config(BASES[base][0], attn_implementation="eager")
        whole.model = load(base)
        model = adapt(whole, config, generator)
        r = torch.zeros(len(rows), whole.config.hidden_size)
        _, emb = families.run(whole.model, rows, r, pooling)
        save_adapter(model, base, HERE / name)
        _, without = families.run(load(base), rows, r, pooling)
    assert (emb - without).abs().max() > 1e-3, f"{name}: the adapter does nothing"
    arrays = {"ids": torch.cat(rows), "lengths": torch.tensor(LENGTHS), "embedding": emb}
    save(f"lora/{name}", arrays, {"about": "PEFT, on a causal model", "base": base, "pooling": pooling}, __file__, HEAD_SEED, MODULES)


def make_case(number, name):
    base, pooling, config = CASES[name]
    generator = torch.Generator().manual_seed(SEED + number)
    vocabulary = BASES[base][0].vocab_size
    rows = [torch.randint(3, vocabulary, (n,), generator=generator) for n in LENGTHS]
    folder = HERE / name
    with families.in_double():
        model = adapt(load(base), config, generator)
        hidden_size = model.config.hidden_size
        r = torch.randn(len(rows), hidden_size, generator=generator).double()
        hidden, emb = families.run(model, rows, r, pooling)
        grads = trained_gradients(model)
        bare = load(base)
        _, without = families.run(bare, rows, r, pooling)
        save_adapter(model, base, folder)
    assert (emb - without).abs().max() > 1e-3, f"{name}: the adapter does nothing"
    arrays = {"ids": torch.cat(rows), "lengths": torch.tensor(LENGTHS), "r": r, "embedding": emb, "base/embedding": without}
    save(
        f"lora/{name}", arrays | {f"grad/{n}": g for n, g in grads.items()},
        {"about": "PEFT; gradients are those of sum(embedding * r)", "base": base, "pooling": pooling}, __file__, SEED + number, MODULES,
    )  # fmt: skip
    narrow = adapt(load(base), config, torch.Generator().manual_seed(SEED + number))
    narrow.load_state_dict({k: v.float() for k, v in model.state_dict().items()})
    families.run(narrow, rows, r, pooling)
    largest = max(g.abs().max().item() for g in grads.values())
    off = {n: error(g, grads[n], floor=1e-4 * largest) for n, g in trained_gradients(narrow).items()}
    worst = max(off, key=off.get)
    print(f"{name}: {len(grads)} tensors train; torch's float32 is off by {off[worst]:.1e} ({worst})", file=sys.stderr)


def contrastive(model, pooling, batches):
    """The loss of an optimizer step: the mean over the rows of all batches."""
    total, rows = 0, 0
    for batch in batches:
        embs = []
        for column in batch:
            ids, mask = families.pad(column)
            embs.append(families.pooled(model(input_ids=ids, attention_mask=mask).last_hidden_state, mask, pooling))
        scores = SCALE * embs[0] @ torch.cat(embs[1:]).T
        total = total + F.cross_entropy(scores, torch.arange(len(scores)), reduction="sum")
        rows += len(scores)
    return total / rows


def make_steps():
    texts = load_file(GOLDEN / "steps" / "texts.safetensors")
    lengths = texts["lengths"].reshape(-1).tolist()
    all_ids = torch.split(texts["ids"].long(), lengths)
    steps, columns, per_step = texts["lengths"].shape

    def batch(b):
        rows = range(b * ROWS, (b + 1) * ROWS)
        return [[all_ids[(i // per_step * columns + c) * per_step + i % per_step] for i in rows] for c in range(columns)]

    arrays = {}
    for name, (base, pooling, case) in STEPS.items():
        for accumulate in (1, 3):
            generator = torch.Generator().manual_seed(SEED)
            with families.in_double():
                model = load(base) if case is None else adapt(load(base), CASES[case][2], generator)
                model.train()
                loss = contrastive(model, pooling, [batch(b) for b in range(accumulate)])
                loss.backward()
                grads = trained_gradients(model)
            key = f"{name}/{accumulate}"
            arrays[key + "/loss"] = loss.detach().reshape(1)
            arrays |= {f"{key}/grad/{n}": g.float() for n, g in grads.items()}
        if case is not None:
            arrays |= {f"{name}/start/{plain(n)}": p.detach().float() for n, p in model.named_parameters() if p.requires_grad and "pooler." not in n}
    save("lora/steps", arrays, {"about": "first gradients of contrastive training", "rows": ROWS, "scale": SCALE}, __file__, SEED, MODULES)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        tiny_qwen3(torch.Generator().manual_seed(SEED))
    BASES = {base: read(base) for base, *_ in CASES.values()}
    for number, name in enumerate(CASES):
        if len(sys.argv) < 2 or name in sys.argv[1:]:
            make_case(number, name)
    if len(sys.argv) < 2:
        make_head()
        make_steps()
    for f in (GOLDEN / QWEN3).rglob("*"):
        f.chmod(0o644)
    report(__file__)
