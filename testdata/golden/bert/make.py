"""Makes bert/*: small random BERT encoders as model folders, and what transformers and sentence-transformers make of them
in float64: hidden states, embeddings, and the gradient of every parameter for each pooling with and without normalization.

Each encoder is a folder as users have them (see MODELS), written by the libraries themselves but for the classic one.
Weights are exact in float32; nothing in them is degenerate (random LayerNorm weights and biases, random biases).

Needs torch 2.9, transformers 5, sentence-transformers 6.2. Run: python testdata/golden/bert/make.py (half a minute; writes
only here)
"""

import json
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "goldens"))

import torch
import torch.nn.functional as F
import transformers
from goldens import error, exact, normal, report, save
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from transformers import BertConfig, BertModel, BertTokenizer

SEED = 20261103
HERE = Path(__file__).resolve().parent
transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()  # it remarks on poolers that are there or missing

WORDS = """the a of to and in is for on with as by at from that it this be are not one two red blue green small large
old new fast slow cat dog bird fish tree river road house city stone bread water fire wind rain snow sun moon star night
day man woman child king ship train car door key book page word name line list map sort graph edge node loop function
value number string file reader writer index buffer stream error test run read write open close find query passage runs
eats sees likes holds moves keeps makes hill boat sings lamp""".split()
PIECES = "##s ##ing ##ed ##er ##ly".split()
VOCABULARY = "[PAD] [UNK] [CLS] [SEP] [MASK] . , ? : !".split() + PIECES + WORDS
assert len(VOCABULARY) == len(set(VOCABULARY)) == 120, len(VOCABULARY)

TEXTS = [
    "The cat sees a small bird.",
    "graphs, readers and writers: sorted slowly!",  # whole-word pieces: graph ##s, slow ##ly; "sorted" is sort ##ed
    "OPEN the FILE",
    "",
    "xylophone",  # unknown
    "Thé river\tkeeps  moving?",  # accents are stripped; moving is unknown
    " ".join(["water"] * 50),  # truncated to 32 tokens, [CLS] and [SEP] included
    "find : the old king holds one key",
]

LENGTHS = [1, 2, 40, 7, 13, 3, 24]

# name: the config, the standard deviations of embeddings and of weights, what the folder looks like, and the gradients kept
# (the first in float64, the others in float32)
MODELS = {
    # As sentence-transformers 6 writes it: mean pooling, Normalize, prompts; a pooler in the weights that nothing uses.
    "minilm-tiny": dict(
        config=dict(),
        embedding_std=0.3,
        std=0.2,
        folder="sentence-transformers",
        pooling="mean",
        normalize=True,
        outputs=["mean_normalized", "mean", "cls", "cls_normalized", "last", "last_normalized"],
    ),
    # A plain transformers folder, without a word on pooling. Its embeddings are so small that eps matters.
    "gelu-new": dict(
        config=dict(hidden_act="gelu_new", layer_norm_eps=1e-5),
        embedding_std=0.004,
        std=0.3,
        folder="transformers",
        pooling="mean",
        normalize=False,
        outputs=["mean"],
    ),
    # As sentence-transformers 2 to 5 wrote it: vocab.txt, pooling_mode_cls_token, max_seq_length.
    "relu-one-head": dict(
        config=dict(hidden_act="relu", num_attention_heads=1, type_vocab_size=1),
        embedding_std=0.3,
        std=0.15,
        folder="classic",
        pooling="cls",
        normalize=True,
        outputs=["cls_normalized"],
    ),
    # Sizes that no vector width divides.
    "odd-sizes": dict(
        config=dict(
            hidden_size=30, num_attention_heads=5, intermediate_size=50, num_hidden_layers=2, layer_norm_eps=1e-5
        ),
        embedding_std=0.3,
        std=0.2,
        folder="sentence-transformers",
        pooling="lasttoken",
        normalize=False,
        outputs=["last"],
    ),
}


def encoder(spec, generator):
    config = BertConfig(**{
        "vocab_size": 120, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64,
        "max_position_embeddings": 48, "type_vocab_size": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-12,
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, **spec["config"],
    })  # fmt: skip
    config._attn_implementation = "eager"
    model = BertModel(config, add_pooling_layer=spec["folder"] == "sentence-transformers")
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("LayerNorm.weight"):
                value = normal(generator, *p.shape, std=0.2, mean=1.0)
            elif name.endswith("bias"):
                value = normal(generator, *p.shape, std=0.15)
            else:
                value = normal(generator, *p.shape, std=spec["embedding_std" if "embeddings" in name else "std"])
            p.copy_(value)
    return model


def write_folder(folder, spec, model):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    model.save_pretrained(folder)
    if spec["folder"] == "classic":
        (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
        files = {
            "modules.json": [
                {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
                {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
                {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
            ],
            "sentence_bert_config.json": {"max_seq_length": 32, "do_lower_case": False},
            "tokenizer_config.json": {
                "cls_token": "[CLS]", "do_lower_case": True, "mask_token": "[MASK]", "model_max_length": 512,
                "pad_token": "[PAD]", "sep_token": "[SEP]", "strip_accents": None, "tokenize_chinese_chars": True,
                "tokenizer_class": "BertTokenizer", "unk_token": "[UNK]",
            },
            "config_sentence_transformers.json": {
                "__version__": {"sentence_transformers": "2.0.0", "transformers": "4.6.1", "pytorch": "1.8.1"}
            },
            "1_Pooling/config.json": {
                "word_embedding_dimension": model.config.hidden_size, "pooling_mode_cls_token": True,
                "pooling_mode_mean_tokens": False, "pooling_mode_max_tokens": False,
                "pooling_mode_mean_sqrt_len_tokens": False,
            },
        }  # fmt: skip
        (folder / "1_Pooling").mkdir()
        for name, content in files.items():
            (folder / name).write_text(json.dumps(content, indent=2) + "\n")
    else:
        tokenizer = BertTokenizer(vocab={w: i for i, w in enumerate(VOCABULARY)}, model_max_length=32)
        tokenizer.save_pretrained(folder)
    if spec["folder"] == "sentence-transformers":
        modules = [Transformer(str(folder)), Pooling(model.config.hidden_size, spec["pooling"])]
        modules += [Normalize()] if spec["normalize"] else []
        prompts = {"query": "find : ", "document": ""} if spec["normalize"] else {}
        st = SentenceTransformer(modules=modules, device="cpu", prompts=prompts)
        st.max_seq_length = 32
        shutil.rmtree(folder)
        st.save_pretrained(str(folder), create_model_card=False)
        (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    for file in folder.rglob("*"):
        file.chmod(0o755 if file.is_dir() else 0o644)


def pad(rows):
    width = max(map(len, rows))
    ids = torch.zeros(len(rows), width, dtype=torch.int64)
    mask = torch.zeros(len(rows), width, dtype=torch.int64)
    for i, row in enumerate(rows):
        ids[i, : len(row)], mask[i, : len(row)] = row, 1
    return ids, mask


def pooled(hidden, mask, output):
    mode, _, normalized = output.partition("_")
    if mode == "mean":
        m = mask.unsqueeze(2).to(hidden.dtype)
        emb = (hidden * m).sum(1) / m.sum(1)
    else:
        last = mask.sum(1) - 1
        emb = hidden[torch.arange(len(mask)), last if mode == "last" else 0]
    return F.normalize(emb, dim=1) if normalized else emb


def run(model, rows, outputs, r):
    """Hidden states of every layer, packed; then embedding and gradients for each output."""
    ids, mask = pad(rows)
    result = {}
    for output in outputs:
        model.zero_grad()
        out = model(input_ids=ids, attention_mask=mask, output_hidden_states=True)
        emb = pooled(out.last_hidden_state, mask, output)
        (emb * r.to(emb.dtype)).sum().backward()
        grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        result[output] = (emb.detach(), grads)
    return [h.detach()[mask.bool()] for h in out.hidden_states], result


def make(number, name, spec):
    seed = SEED + number
    generator = torch.Generator().manual_seed(seed)
    model = encoder(spec, generator)
    folder = HERE / name
    write_folder(folder, spec, model)

    # The truth starts from what was written.
    model = BertModel.from_pretrained(folder, attn_implementation="eager", add_pooling_layer=False).eval()
    # Id 0 pads, and transformers gives it no gradient: it must not occur. Small ids repeat often.
    rows = [torch.randint(1, 120 if n > 10 else 12, (n,), generator=generator) for n in LENGTHS]
    r = normal(generator, len(rows), model.config.hidden_size)
    _, single = run(model, rows, spec["outputs"], r)
    model = model.double()
    hidden, double = run(model, rows, spec["outputs"], r)

    arrays = {"ids": torch.cat(rows), "lengths": torch.tensor(LENGTHS), "r": r, "hidden": hidden[-1]}
    for layer, h in enumerate(hidden[:-1]):
        arrays[f"hidden_{layer}"] = h.float()
    for i, output in enumerate(spec["outputs"]):
        emb, grads = double[output]
        arrays[f"{output}/embedding"] = emb
        floor = 1e-4 * max(g.abs().max().item() for g in grads.values())
        off = {n: error(single[output][1][n], g, floor) for n, g in grads.items()}
        keys = max(v for n, v in off.items() if n.endswith("key.bias"))  # analytically 0: what float32 has is noise
        rest = max((v, n) for n, v in off.items() if not n.endswith("key.bias"))
        print(f"{name} {output}: torch's float32 is off by {rest[0]:.1e} in {rest[1]}, {keys:.1e} in key biases", file=sys.stderr)
        for n, g in grads.items():
            arrays[f"{output}/grad/{n}"] = g if i == 0 else g.float()
    # Each row alone, without padding, gives the same.
    alone = torch.cat([model(input_ids=row[None]).last_hidden_state[0] for row in rows])
    assert (alone - hidden[-1]).abs().max() < 1e-12

    st = SentenceTransformer(str(folder), device="cpu", model_kwargs={"attn_implementation": "eager"})
    features = st.preprocess(TEXTS)
    text_ids = [i[m.bool()] for i, m in zip(features["input_ids"], features["attention_mask"])]
    assert st.max_seq_length == 32 and max(map(len, text_ids)) == 32
    arrays["encode/ids"] = torch.cat(text_ids)
    arrays["encode/lengths"] = torch.tensor([len(i) for i in text_ids])
    arrays["encode/embedding"] = st.double().encode(TEXTS, convert_to_tensor=True)
    if "query" in st.prompts:
        arrays["encode_query/embedding"] = st.encode(TEXTS, prompt_name="query", convert_to_tensor=True)
        features = st.preprocess([st.prompts["query"] + t for t in TEXTS])
        text_ids = [i[m.bool()] for i, m in zip(features["input_ids"], features["attention_mask"])]
        arrays["encode_query/ids"] = torch.cat(text_ids)
        arrays["encode_query/lengths"] = torch.tensor([len(i) for i in text_ids])
    kind = spec["folder"]
    save(
        f"bert/{name}", arrays,
        {
            "about": f"a random BERT in a {kind} folder; gradients are those of sum(embedding * r)",
            "folder": name, "hidden_act": model.config.hidden_act, "layers": model.config.num_hidden_layers,
            "heads": model.config.num_attention_heads, "layer_norm_eps": model.config.layer_norm_eps,
            "outputs": spec["outputs"], "texts": TEXTS, "max_seq_length": 32, "pooling": spec["pooling"],
            "normalize": spec["normalize"], "prompts": st.prompts,
        },
        __file__, seed, ["transformers", "tokenizers", "sentence_transformers"],
    )  # fmt: skip


for number, (name, spec) in enumerate(MODELS.items()):
    make(number, name, spec)
report(__file__)
