"""Makes families/*: for each family of models a small random one as transformers saves it, and what transformers makes of it in
float64: hidden states, embeddings and the gradient of every parameter.

transformers computes norms, softmax and rotary angles in float32 whatever the model's type is. in_double() makes float32 mean
float64 while a model is built and run; that this changes nothing else is checked against a run without it.

For a folder to be small, weights are bfloat16 or float16 (which readers have to cope with anyway) and gradients float32. What
float32 hides shows in the signs: for each parameter the sums of its gradient's elements, each times 1 or -1, in float64.

NomicBERT and GTE v1.5 were code beside their models before transformers had them. It has them now, and saves them under the
names of that code, so they are made like all others.

Variants are the same weights under a changed configuration: what decoders, rotary positions and windows may be set to.

defaults.json is what transformers takes for each key that a config.json leaves out, by model_type.

Needs torch 2.9 and transformers 5.23. Run: python testdata/golden/families/make.py [NAME ...] (a minute; writes only here)
"""

import contextlib
import copy
import json
import math
import shutil
import sys
import types
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "goldens"))

import torch
import torch.nn.functional as F
import transformers
from goldens import error, report, save
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder
from transformers.models.t5.modeling_t5 import T5Attention

SEED = 20261119
HERE = Path(__file__).resolve().parent
transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()

LENGTHS = [1, 19, 6, 2, 13]
VOCAB, PAD = 60, 1
SMALL = {"vocab_size": VOCAB, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40, "max_position_embeddings": 40}
BERT = {**SMALL, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "pad_token_id": PAD}
SPECIAL = {"pad_token_id": PAD, "bos_token_id": 0, "eos_token_id": 2}
DECODER = {**SMALL, **SPECIAL, "num_key_value_heads": 2}
T5 = {"vocab_size": VOCAB, "d_model": 24, "d_kv": 5, "d_ff": 40, "num_layers": 2, "num_heads": 4, "relative_attention_num_buckets": 8,
      "relative_attention_max_distance": 20, "dropout_rate": 0.0, "pad_token_id": PAD, "eos_token_id": 2}

# DeBERTa's position_buckets and max_relative_positions; the first are v3's.
DISTANCES = [(256, 512), (8, 40), (32, 128), (64, 600), (5, 100), (2, 30), (3, 30)]

# name: config class and arguments, pooling, what the weights are stored as, variants
FAMILIES = {
    "roberta": dict(
        config="RobertaConfig", args={**BERT, "type_vocab_size": 1, "layer_norm_eps": 1e-5}, pooling="cls", dtype=torch.bfloat16,
        variants={"xlm-roberta": {"model_type": "xlm-roberta"}, "camembert": {"model_type": "camembert"}, "data2vec-text": {"model_type": "data2vec-text"}},
    ),
    "mpnet": dict(config="MPNetConfig", args={**BERT, "max_position_embeddings": 180}, pooling="mean", dtype=torch.float16, lengths=[1, 9, 150, 4]),
    "distilbert": dict(
        config="DistilBertConfig",
        args={"vocab_size": VOCAB, "dim": 24, "n_layers": 2, "n_heads": 4, "hidden_dim": 40, "max_position_embeddings": 40, "dropout": 0.0,
              "attention_dropout": 0.0, "pad_token_id": PAD},
        pooling="mean", dtype=torch.bfloat16,
    ),
    "modernbert": dict(
        config="ModernBertConfig",
        args={**SMALL, **SPECIAL, "cls_token_id": 0, "sep_token_id": 2, "num_hidden_layers": 4, "intermediate_size": 28, "local_attention": 6},
        pooling="cls", dtype=torch.bfloat16,
        # As the hub's configurations have it, from before transformers 5.
        variants={"old-keys": {"rope_parameters": None, "layer_types": None, "global_rope_theta": 500.0, "local_rope_theta": 60.0,
                               "global_attn_every_n_layers": 2}},
    ),
    "nomic-bert": dict(config="NomicBertConfig", args={**BERT, "type_vocab_size": 2}, pooling="mean", dtype=torch.bfloat16),
    "gte": dict(
        config="GteConfig", args={**BERT, "type_vocab_size": 1}, pooling="cls", dtype=torch.bfloat16,
        variants={"linear": {"rope_parameters": {"rope_theta": 20000.0, "rope_type": "linear", "factor": 2.0}}},
    ),
    "llama": dict(
        config="LlamaConfig", args={**DECODER, "attention_bias": True, "mlp_bias": True}, pooling="last", dtype=torch.bfloat16,
        variants={
            "bidirectional": {"is_causal": False},
            "linear": {"rope_parameters": None, "rope_theta": 700.0, "rope_scaling": {"type": "linear", "factor": 4.0}},
            "dynamic": {"rope_parameters": None, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
            "llama3": {"rope_parameters": {"rope_theta": 500.0, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                           "high_freq_factor": 4.0, "original_max_position_embeddings": 20}},
            "yarn": {"rope_parameters": {"rope_theta": 500.0, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 10}},
            # Each sequence by its own length, which is what transformers does for one alone; one is just not long.
            "longrope": {"rope_parameters": {"rope_theta": 500.0, "rope_type": "longrope", "short_factor": [1.0, 1.5, 2.0], "long_factor": [1.2, 3.0, 5.0],
                                             "original_max_position_embeddings": 13, "factor": 4.0}},
        },
    ),
    "mistral": dict(
        config="MistralConfig", args={**DECODER, "sliding_window": 5, "head_dim": 8}, pooling="last", dtype=torch.bfloat16,
        variants={
            "no-window": {"sliding_window": None}, "bidirectional": {"is_causal": False},
            "layer-types": {"layer_types": ["full_attention", "sliding_attention"]}, "all-full": {"layer_types": ["full_attention"] * 2},
        },
    ),
    "qwen2": dict(
        config="Qwen2Config", args={**DECODER, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}, pooling="last", dtype=torch.bfloat16,
        variants={"no-window": {"use_sliding_window": False, "layer_types": None}, "bidirectional": {"is_causal": False}},
    ),
    "qwen3": dict(config="Qwen3Config", args={**DECODER, "head_dim": 10}, pooling="last", dtype=torch.bfloat16, variants={"bidirectional": {"is_causal": False}}),
    "gemma2": dict(
        config="Gemma2Config", args={**DECODER, "head_dim": 8, "sliding_window": 5, "query_pre_attn_scalar": 3, "attn_logit_softcapping": 2.0},
        pooling="mean", dtype=torch.bfloat16,
        variants={"no-cap": {"attn_logit_softcapping": None}, "bidirectional": {"is_causal": False}},
    ),
    "gemma3": dict(
        config="Gemma3TextConfig",
        args={**DECODER, "head_dim": 8, "sliding_window": 6, "query_pre_attn_scalar": 8, "sliding_window_pattern": 2, "num_hidden_layers": 3,
              "intermediate_size": 24},
        pooling="mean", dtype=torch.bfloat16,
        variants={
            "embedding": {"use_bidirectional_attention": True},
            "embedding-not-causal": {"use_bidirectional_attention": True, "is_causal": False},
            "bidirectional": {"is_causal": False},
            "old-keys": {"rope_parameters": None, "layer_types": None, "sliding_window_pattern": 3, "rope_theta": 900.0, "rope_local_base_freq": 70.0,
                         "rope_scaling": {"factor": 8.0, "rope_type": "linear"}},
        },
    ),
    "eurobert": dict(config="EuroBertConfig", args={**DECODER, "mask_token_id": 3}, pooling="mean", dtype=torch.bfloat16),
    "ministral": dict(
        config="MinistralConfig", args={**DECODER, "head_dim": 8, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
        pooling="last", dtype=torch.bfloat16,
    ),
    "electra": dict(config="ElectraConfig", args={**BERT, "embedding_size": 10, "type_vocab_size": 2}, pooling="cls", dtype=torch.bfloat16),
    "t5": dict(
        config="T5Config", args=T5, pooling="mean", dtype=torch.bfloat16, lengths=[1, 9, 47, 4],
        variants={"reach": {"relative_attention_max_distance": 7}, "tanh": {"dense_act_fn": "tanh"}},
    ),
    "t5-gated": dict(
        config="T5Config", args={**T5, "feed_forward_proj": "gated-gelu", "d_kv": 6}, pooling="last", dtype=torch.bfloat16,
        variants={"mt5": {"model_type": "mt5"}, "gated-silu": {"feed_forward_proj": "gated-silu", "dense_act_fn": None}},
    ),
    "ernie": dict(config="ErnieConfig", args={**BERT, "type_vocab_size": 2, "use_task_id": True}, pooling="cls", dtype=torch.bfloat16),
    "gemma": dict(
        config="GemmaConfig", args={**DECODER, "head_dim": 8}, pooling="last", dtype=torch.bfloat16,
        variants={"bidirectional": {"is_causal": False}, "first": {"hidden_act": "gelu", "rope_parameters": None, "rope_theta": 600.0}},
    ),
    "jina": dict(
        config="JinaEmbeddingsV3Config", args={**BERT, "type_vocab_size": 1}, pooling="mean", dtype=torch.bfloat16,
        variants={"linear": {"rope_parameters": {"rope_theta": 20000.0, "rope_type": "linear", "factor": 2.0}}},
    ),
    # DeBERTa as v3 has it, then with projections of distances, learned positions and token types, without buckets, then without distances.
    "deberta-v2": dict(
        config="DebertaV2Config", number=100,
        args={**BERT, "relative_attention": True, "position_buckets": 8, "max_relative_positions": 40, "norm_rel_ebd": "layer_norm", "share_att_key": True,
              "pos_att_type": "p2c|c2p", "position_biased_input": False, "layer_norm_eps": 1e-7},
        pooling="mean", dtype=torch.bfloat16, lengths=[1, 19, 6, 2, 38],
        variants={"c2p": {"pos_att_type": ["c2p"]}, "p2c": {"pos_att_type": "p2c"}},
    ),
    "deberta-v2-own": dict(
        config="DebertaV2Config", number=101,
        args={**BERT, "relative_attention": True, "max_relative_positions": 9, "pos_att_type": ["c2p", "p2c"], "type_vocab_size": 2, "hidden_act": "gelu_new"},
        pooling="cls", dtype=torch.bfloat16,
    ),
    # Heads that are no power of two, whose slopes are of two kinds.
    "jina-v2": dict(
        config="BertConfig", number=103, pooling="mean", dtype=torch.bfloat16,
        args={**BERT, "num_attention_heads": 6, "type_vocab_size": 2, "position_embedding_type": "alibi", "feed_forward_type": "geglu"},
        variants={"reglu": {"feed_forward_type": "reglu"}},
    ),
    "jina-v2-code": dict(
        config="BertConfig", number=104, pooling="mean", dtype=torch.bfloat16,
        args={**BERT, "type_vocab_size": 2, "position_embedding_type": "alibi", "feed_forward_type": "geglu",
              "auto_map": {"AutoModel": "jinaai/jina-bert-v2-qk-post-norm--modeling_bert.JinaBertModel"}},
    ),
    "deberta-v2-plain": dict(config="DebertaV2Config", number=102, args={**BERT, "pos_att_type": "c2p"}, pooling="cls", dtype=torch.bfloat16, lengths=[4, 9]),
}  # fmt: skip
ENCODERS = {"t5": "T5EncoderModel", "mt5": "MT5EncoderModel"}  # AutoModel has decoders in them, sentence-transformers has these


class Saved(torch.nn.Module):
    """Saves a model as transformers does."""

    def save_pretrained(self, folder):
        self.config.save_pretrained(folder)
        save_file({k: v.contiguous() for k, v in self.state_dict().items()}, folder / "model.safetensors", {"format": "pt"})


class JinaV2(Saved):
    """jina-embeddings-v2 (arXiv 2310.19923), which transformers does not have, under the names of jinaai/jina-bert-implementation: BERT with ALiBi in
    both directions (arXiv 2108.12409), and feed-forward layers gated by the first half of what their first projection gives. In
    jinaai/jina-bert-v2-qk-post-norm that is the second half, queries and keys are normalized, and a layer's input is added twice, with a norm each."""

    def __init__(self, config):
        super().__init__()
        self.config, c = config, config
        self.normed = "qk-post-norm" in str(getattr(c, "auto_map", ""))
        up, down, last = ("up_gated_layer", "down_layer", "layer_norm_2") if self.normed else ("gated_layers", "wo", "layernorm")
        linear, norm, of = torch.nn.Linear, lambda: torch.nn.LayerNorm(c.hidden_size, eps=c.layer_norm_eps), lambda **parts: torch.nn.ModuleDict(parts)
        table = lambda n: torch.nn.Embedding(n, c.hidden_size)
        self.embeddings = of(word_embeddings=table(c.vocab_size), token_type_embeddings=table(c.type_vocab_size), LayerNorm=norm())
        self.encoder = of(layer=torch.nn.ModuleList(
            of(attention=of(self=of(**{n: linear(c.hidden_size, c.hidden_size) for n in ("query", "key", "value")},
                                    **{n: norm() for n in ("layer_norm_q", "layer_norm_k") if self.normed}),
                            output=of(dense=linear(c.hidden_size, c.hidden_size), LayerNorm=norm())),
               mlp=of(**{up: linear(c.hidden_size, 2 * c.intermediate_size, bias=False), down: linear(c.intermediate_size, c.hidden_size)},
                      **({} if self.normed else {last: norm()})),
               **({"layer_norm_1": norm(), last: norm()} if self.normed else {}))
            for _ in range(c.num_hidden_layers)))  # fmt: skip

    def slopes(self, n):
        if math.log2(n).is_integer():
            return [2 ** (-8 * (i + 1) / n) for i in range(n)]
        below = 2 ** int(math.log2(n))
        return self.slopes(below) + self.slopes(2 * below)[::2][: n - below]

    def forward(self, input_ids, attention_mask, token_type_ids=None):
        c, e = self.config, self.embeddings
        kinds = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        x = e.LayerNorm(e.word_embeddings(input_ids) + e.token_type_embeddings(kinds))
        places = torch.arange(input_ids.shape[1])
        bias = -torch.tensor(self.slopes(c.num_attention_heads), dtype=x.dtype)[:, None, None] * (places[:, None] - places).abs()
        bias = bias + torch.zeros(attention_mask.shape, dtype=x.dtype).masked_fill(attention_mask == 0, -math.inf)[:, None, None]
        for layer in self.encoder.layer:
            a, mlp, before = layer.attention, layer.mlp, x
            q, k, v = (a.self[n](x) for n in ("query", "key", "value"))
            if self.normed:
                q, k = a.self.layer_norm_q(q), a.self.layer_norm_k(k)
            q, k, v = (y.unflatten(2, (c.num_attention_heads, -1)).transpose(1, 2) for y in (q, k, v))
            probabilities = (q @ k.transpose(2, 3) / math.sqrt(q.shape[3]) + bias).softmax(3)
            x = a.output.LayerNorm(a.output.dense((probabilities @ v).transpose(1, 2).flatten(2)) + x)
            f = {"geglu": F.gelu, "reglu": F.relu}[c.feed_forward_type]
            if self.normed:
                x = layer.layer_norm_1(x + before)
                up, gate = mlp.up_gated_layer(x).chunk(2, dim=2)
                x = layer.layer_norm_2(mlp.down_layer(f(gate) * up) + x)
            else:
                gate, up = mlp.gated_layers(x).chunk(2, dim=2)
                x = mlp.layernorm(mlp.wo(f(gate) * up) + x)
        return types.SimpleNamespace(last_hidden_state=x)


class JinaV2ForSequenceClassification(Saved):
    """Its reranker, whose head is BERT's: the first token's state through a pooler with a tanh, and a classifier."""

    def __init__(self, config):
        super().__init__()
        self.config, width = config, config.hidden_size
        config.architectures = ["JinaBertForSequenceClassification"]
        self.bert = JinaV2(config)
        self.bert.pooler = torch.nn.ModuleDict({"dense": torch.nn.Linear(width, width)})
        self.classifier = torch.nn.Linear(width, config.num_labels)

    def forward(self, **inputs):
        first = self.bert(**inputs).last_hidden_state[:, 0]
        return types.SimpleNamespace(logits=self.classifier(self.bert.pooler.dense(first).tanh()))


class JinaV2ForMaskedLM(Saved):
    """Its head for masked language modelling, which is BERT's and tied to the word embeddings."""

    def __init__(self, config):
        super().__init__()
        self.config, width, of = config, config.hidden_size, lambda **parts: torch.nn.ModuleDict(parts)
        config.architectures = ["JinaBertForMaskedLM"]
        self.bert = JinaV2(config)
        self.cls = of(predictions=of(transform=of(dense=torch.nn.Linear(width, width), LayerNorm=torch.nn.LayerNorm(width, eps=config.layer_norm_eps))))
        self.cls.predictions.register_parameter("bias", torch.nn.Parameter(torch.zeros(config.vocab_size)))

    def tie_weights(self):
        pass  # there is one tensor

    def forward(self, **inputs):
        head = self.cls.predictions
        x = head.transform.LayerNorm(F.gelu(head.transform.dense(self.bert(**inputs).last_hidden_state)))
        return types.SimpleNamespace(logits=x @ self.bert.embeddings.word_embeddings.weight.T + head.bias)


@contextlib.contextmanager
def in_double():
    """float32 means float64."""
    narrow, old_float = torch.float32, torch.Tensor.float
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.float32 = torch.float = narrow
        torch.Tensor.float = old_float
        torch.set_default_dtype(narrow)


def build(config):
    config = copy.deepcopy(config)
    config._attn_implementation = "eager"
    config.dtype = torch.get_default_dtype()
    if getattr(config, "position_embedding_type", None) == "alibi":
        return JinaV2(config)
    if config.model_type in ENCODERS:
        return getattr(transformers, ENCODERS[config.model_type])(config)
    return AutoModel.from_config(config)


def randomize(model, generator, dtype):
    """Nothing degenerate: norm weights near 1 (or near 0, where 1 is added), biases that matter, embeddings of size 0.5."""
    unit = any("Gemma" in type(m).__name__ for m in model.modules())
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 1 and name.endswith("weight"):
                value = torch.randn(p.shape, generator=generator) * 0.2 + (0 if unit else 1)
            elif p.dim() == 1:
                value = torch.randn(p.shape, generator=generator) * 0.2
            else:
                value = torch.randn(p.shape, generator=generator) * (0.5 if "embed" in name or "relative" in name or "shared" in name else 0.25)
            p.copy_(value.to(dtype))


def pad(rows):
    width = max(map(len, rows))
    ids, mask = torch.full((len(rows), width), PAD), torch.zeros(len(rows), width, dtype=torch.int64)
    for i, row in enumerate(rows):
        ids[i, : len(row)], mask[i, : len(row)] = row, 1
    return ids, mask


def pooled(hidden, mask, mode):
    if mode == "mean":
        m = mask.unsqueeze(2).to(hidden.dtype)
        emb = (hidden * m).sum(1) / m.sum(1)
    else:
        emb = hidden[torch.arange(len(mask)), mask.sum(1) - 1 if mode == "last" else 0]
    return F.normalize(emb, dim=1)


def run(model, rows, r, pooling, alone=False):
    """Hidden states, packed; embeddings; and leaves the gradient of sum(embedding * r) in the model."""
    model.zero_grad()
    batches = [[row] for row in rows] if alone else [rows]
    hiddens, embs = [], []
    for batch in batches:
        ids, mask = pad(batch)
        hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
        hiddens.append(hidden[mask.bool()])
        embs.append(pooled(hidden, mask, pooling))
    emb = torch.cat(embs)
    (emb * r.to(emb.dtype)).sum().backward()
    return torch.cat(hiddens).detach(), emb.detach()


def gradients(model, folder, head="pooler."):
    """The gradients under the names, and in the shapes, in which the model's parameters are saved; without those of a head that embeddings do not use."""
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for a, b in zip(twin.parameters(), model.parameters()):
            a.copy_(b.grad if b.grad is not None else torch.zeros_like(b))
    twin.save_pretrained(folder)
    found = load_file(folder / "model.safetensors")
    shutil.rmtree(folder)
    return {n: g for n, g in found.items() if not head or not n.startswith(head)}


def signs(n, k):
    """n numbers that are 1 or -1: the parity of the bits of (i + 1 + 7919 * k) * 2654435761 mod 2**32."""
    return torch.tensor([1.0 - 2.0 * (((i + 1 + 7919 * k) * 2654435761 % 2**32).bit_count() % 2) for i in range(n)], dtype=torch.float64)


def checks(gradient):
    flat = gradient.flatten().double()
    return torch.stack([(flat * signs(len(flat), k)).sum() for k in range(3)])


def make(number, name, spec):
    seed = SEED + spec.get("number", number)  # so that a family's own does not depend on those before it
    generator = torch.Generator().manual_seed(seed)
    config = getattr(transformers, spec["config"])(**spec["args"])
    lengths = spec.get("lengths", LENGTHS)
    rows = [torch.randint(3, VOCAB, (n,), generator=generator) for n in lengths]
    rows[-1][0] = rows[0][0]  # a token that several rows have
    folder, scratch = HERE / name, HERE / "scratch"

    model = build(config)
    randomize(model, generator, spec["dtype"])
    shutil.rmtree(folder, ignore_errors=True)
    copy.deepcopy(model).to(spec["dtype"]).save_pretrained(folder)
    for file in folder.rglob("*"):
        file.chmod(0o644)
    hidden_size = model.config.hidden_size
    r = torch.randn(len(rows), hidden_size, generator=generator).double()
    arrays = {"ids": torch.cat(rows), "lengths": torch.tensor(lengths), "r": r}
    narrow_hidden, _ = run(model, rows, r, spec["pooling"])
    narrow = gradients(model, scratch)

    def in_float64(config):
        with in_double():
            wide = build(config)
            wide.load_state_dict({k: v.double() for k, v in model.state_dict().items()})
            hidden, emb = run(wide, rows, r, spec["pooling"], alone=True)
            if "longrope" not in json.dumps(config.to_dict()):  # there the longest sequence decides for its batch
                together, _ = run(wide, rows, r, spec["pooling"])
                assert (together - hidden).abs().max() < 1e-12, f"{name}: padding changes hidden states"
        return hidden, emb, gradients(wide, scratch)

    hidden, emb, grads = in_float64(config)
    largest = max(g.abs().max().item() for g in grads.values())
    # Without rotary positions the gradient of key biases is analytically 0: what float32 has is noise.
    off = {n: error(narrow[n], g, floor=1e-4 * largest) for n, g in grads.items() if g.abs().max() > 1e-12 * largest}
    worst = max(off, key=off.get)
    assert error(narrow_hidden, hidden) < 1e-5 and off[worst] < 2e-4, (name, error(narrow_hidden, hidden), worst, off[worst])
    arrays["hidden"], arrays["embedding"] = hidden, emb
    for n, g in grads.items():
        arrays["grad/" + n] = g.float()
        arrays["signs/" + n] = checks(g)
    print(f"{name}: torch's float32 is off by {error(narrow_hidden, hidden):.1e}, in gradients by {off[worst]:.1e} ({worst})", file=sys.stderr)

    variants = {}
    for label, change in spec.get("variants", {}).items():
        changed = {k: v for k, v in {**json.loads((folder / "config.json").read_text()), **change}.items() if v is not None or k in change}
        for k, v in change.items():  # null takes a key away, but where null means something
            if v is None and k not in ("sliding_window", "attn_logit_softcapping"):
                del changed[k]
        scratch.mkdir()
        (scratch / "config.json").write_text(json.dumps(changed))
        loaded = AutoConfig.from_pretrained(scratch)
        shutil.rmtree(scratch)
        h, e, g = in_float64(loaded)
        assert label in ("xlm-roberta", "camembert", "data2vec-text", "dynamic", "mt5") or (h - hidden).abs().max() > 1e-3, f"{name}/{label} changes nothing"
        arrays[f"{label}/hidden"] = h.float()
        arrays[f"{label}/embedding"] = e
        for n, x in g.items():
            arrays[f"{label}/signs/{n}"] = checks(x)
        variants[label] = changed

    if name == "roberta":  # padding tokens that are part of a text
        text = torch.tensor([5, PAD, 9, PAD, PAD, 7, 30])
        with in_double(), torch.no_grad():
            wide = build(config)
            wide.load_state_dict({k: v.double() for k, v in model.state_dict().items()})
            out = wide(input_ids=text[None], attention_mask=torch.ones(1, len(text), dtype=torch.int64)).last_hidden_state[0]
        arrays["padded/ids"], arrays["padded/lengths"], arrays["padded/hidden"] = text, torch.tensor([len(text)]), out
    if name == "mpnet":
        arrays["buckets"] = MPNetEncoder.relative_position_bucket(torch.arange(-300, 301))
    if name == "t5":
        for n, reach in [(32, 128), (8, 20), (16, 300), (33, 64), (4, 2), (5, 9)]:
            arrays[f"buckets/{n}/{reach}"] = T5Attention._relative_position_bucket(torch.arange(-400, 401), True, n, reach)
    if name == "deberta-v2":
        for buckets, longest in DISTANCES:
            arrays[f"rows/{buckets}/{longest}"] = make_log_bucket_position(torch.arange(-600, 601), buckets, longest).long()
    save(
        f"families/{name}", arrays,
        {"about": f"a random {spec['config'][:-6]}; gradients are those of sum(embedding * r)", "pooling": spec["pooling"], "variants": variants},
        __file__, seed, ["transformers"],
    )  # fmt: skip


# Rotary variants as configurations have them, with heads of their sizes.
ROPES = {
    "llama-3.1-8b": (128, 131072, {"rope_theta": 500000.0, "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 8192, "rope_type": "llama3"}}),
    "qwen2.5-128k": (128, 32768, {"rope_theta": 1000000.0, "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"}}),
    "yarn-betas": (64, 8192, {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 4096,
                   "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False, "attention_factor": 1.25}}),
    "yarn-mscale": (64, 65536, {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096,
                    "mscale": 1.0, "mscale_all_dim": 0.7}}),
    "yarn-no-original": (32, 4096, {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "yarn", "factor": 8.0}}),
    "longrope": (16, 131072, {"rope_theta": 10000.0, "rope_scaling": {"rope_type": "longrope", "short_factor": [1.0, 1.05, 1.1, 1.2, 1.3, 1.5, 2.0, 2.5],
                 "long_factor": [1.0, 1.5, 2.5, 6.0, 12.0, 30.0, 50.0, 64.0], "original_max_position_embeddings": 4096}}),
    "longrope-factors": (4, 8192, {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "longrope", "short_factor": [1.0, 2.0], "long_factor": [3.0, 4.0],
                         "original_max_position_embeddings": 4096, "factor": 32.0, "attention_factor": 1.2}}),
    "gemma3-global": (256, 131072, {"rope_theta": 1000000.0, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}),
    "dynamic": (64, 2048, {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "dynamic", "factor": 2.0}}),
    "default": (80, 2048, {"rope_theta": 5000.0}),
    "gte-multilingual": (64, 8192, {"rope_theta": 20000, "rope_scaling": {"factor": 8.0, "type": "ntk"}}),
    "gte-large-en-v1.5": (64, 8192, {"rope_theta": 500000, "rope_scaling": {"factor": 2.0, "type": "ntk"}}),
}  # fmt: skip


def ropes():
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    arrays, cases = {}, []
    for name, (dim, positions, keys) in ROPES.items():
        keys = {"max_position_embeddings": positions, **keys}
        scaling = keys.get("rope_scaling") or keys.get("rope_parameters") or {}
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        theta, factor, long = scaling.get("rope_theta", keys.get("rope_theta")), 1.0, None
        with in_double():
            powers = torch.arange(0, dim, 2).double() / dim
            if kind == "default":
                frequencies = theta**-powers
            elif kind == "ntk":  # fixed NTK, formula (6) of https://kexue.fm/archives/9706, as GTE v1.5's code has it
                frequencies = (theta * scaling["factor"]) ** -powers / scaling["factor"] ** (2 / dim)
            else:
                config = transformers.LlamaConfig(**copy.deepcopy(keys), head_dim=dim, hidden_size=dim, num_attention_heads=1)
                frequencies, factor = ROPE_INIT_FUNCTIONS[kind](config)
                if kind == "longrope":
                    long, _ = ROPE_INIT_FUNCTIONS[kind](config, seq_len=config.rope_parameters["original_max_position_embeddings"] + 1)
        arrays[name] = frequencies
        if long is not None:
            arrays[name + "/long"] = long
        cases.append({"name": name, "dim": dim, "factor": factor, "config": keys})
    save("families/rope", arrays, {"about": "frequencies of rotary positions, in float64", "cases": cases}, __file__, 0, ["transformers"])


def defaults():
    kinds = {"bert"} | {getattr(transformers, spec["config"]).model_type for spec in FAMILIES.values()}
    kinds |= {change["model_type"] for spec in FAMILIES.values() for change in spec.get("variants", {}).values() if "model_type" in change}
    out = {"made_by": "testdata/golden/families/make.py", "transformers": transformers.__version__}
    out["configs"] = {kind: AutoConfig.for_model(kind).to_dict() for kind in sorted(kinds)}
    (HERE / "defaults.json").write_text(json.dumps(out, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    defaults()
    if len(sys.argv) < 2 or "rope" in sys.argv[1:]:
        ropes()
    for number, (name, spec) in enumerate(FAMILIES.items()):
        if len(sys.argv) < 2 or name in sys.argv[1:]:
            make(number, name, spec)
    report(__file__)
