"""Goldens for io/hfmodel: tiny model folders and what sentence-transformers sees in them: python make.py (in this folder).

Made with sentence-transformers 6.2.0, transformers 5.23.0, torch 2.9.0, huggingface_hub 2.4.0, Python 3.11.

- st6/: mean pooling and normalization, as sentence-transformers 6.2 saves it.
- st2/: CLS pooling, as sentence-transformers 2 laid it out: 0_Transformer, boolean pooling modes, sentence_bert_config.json
  with max_seq_length and do_lower_case. Rewritten here from what 6.2 saves, and loaded by 6.2 for the truth.
- sharded/: a plain transformers folder (BertForMaskedLM: names with the prefix "bert."), in shards.
- expected.json: per folder what SentenceTransformer(folder) says about itself, tensors as AutoModel names them (shape and
  sum), and embeddings of some texts.
- pooling.json: pooling configurations, and what sentence-transformers makes of each.
- padding.json is padding.py's.
"""

import json
import os
import shutil
import tempfile

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import AutoModel, BertConfig, BertForMaskedLM, BertTokenizerFast

torch.manual_seed(3)
words = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] the a of to in is fox dog cat run over lazy quick brown red green blue sun moon "
    "star sea ##s ##ing ##ed one two three four five six seven eight nine ten eleven"
).split()
assert len(words) == 40
texts = ["the quick brown fox", "a lazy dog is running over the red moon", "Stars", "", "ten seas of the blue moon " * 6]

for d in ("st6", "st2", "sharded"):
    shutil.rmtree(d, ignore_errors=True)
tmp = tempfile.mkdtemp()
with open(tmp + "/vocab.txt", "w") as f:
    f.write("\n".join(words) + "\n")
config = BertConfig(vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
                    max_position_embeddings=32, type_vocab_size=2)
model = BertForMaskedLM(config)
for p in model.parameters():  # make every bias and norm count
    torch.nn.init.normal_(p, std=0.3)
tokenizer = BertTokenizerFast(tmp + "/vocab.txt")


def write(path, value, indent=2):
    with open(path, "w") as f:
        json.dump(value, f, indent=indent)


# sharded: transformers' own folder
model.save_pretrained("sharded", max_shard_size="12KB")
tokenizer.save_pretrained("sharded")

# st6: as saved today
model.save_pretrained(tmp + "/hf")
tokenizer.save_pretrained(tmp + "/hf")
transformer = Transformer(tmp + "/hf")
transformer.max_seq_length = 20
st = SentenceTransformer(modules=[transformer, Pooling(16, "mean"), Normalize()],
                         prompts={"query": "the ", "passage": ""}, default_prompt_name="query")
st.save("st6", create_model_card=False)

# st2: the same weights in the older layout
os.makedirs("st2/1_Pooling")
os.makedirs("st2/0_Transformer")
for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json", "config.json"):
    shutil.copy("st6/" + name, "st2/0_Transformer/" + name)
write("st2/0_Transformer/sentence_bert_config.json", {"max_seq_length": 12, "do_lower_case": True})
write("st2/1_Pooling/config.json", {
    "word_embedding_dimension": 16, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False,
    "pooling_mode_max_tokens": False, "pooling_mode_mean_sqrt_len_tokens": False})
write("st2/modules.json", [
    {"idx": 0, "name": "0", "path": "0_Transformer", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}])
write("st2/config_sentence_transformers.json",
      {"__version__": {"sentence_transformers": "2.0.0", "transformers": "4.6.1", "pytorch": "1.8.1"}})

expected = {}
for d, inner in (("st6", ""), ("st2", "0_Transformer"), ("sharded", "")):
    st = SentenceTransformer(d, device="cpu", local_files_only=True)
    pooling = next((m for m in st if isinstance(m, Pooling)), None)
    state = AutoModel.from_pretrained(os.path.join(d, inner)).state_dict()
    saved = os.path.exists(d + "/modules.json")
    expected[d] = {
        "modules": [type(m).__name__ for m in st] if saved else None,
        "pooling": pooling.pooling_mode if saved else None,
        "normalize": any(isinstance(m, Normalize) for m in st),
        "dimension": pooling.embedding_dimension if saved else None,
        "max_seq_length": st.max_seq_length,
        "prompts": {k: v for k, v in st.prompts.items() if v},
        "default_prompt_name": st.default_prompt_name or "",
        "tensors": {n: {"shape": list(t.shape), "sum": t.double().sum().item()} for n, t in state.items()
                    if t.is_floating_point() and not n.startswith("pooler.")},
        "embeddings": st.encode(texts, prompt="").tolist(),
    }
write("expected.json", {"texts": texts, "folders": expected}, None)

# pooling configurations
cases = {
    "2.0 mean": {"word_embedding_dimension": 16, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True,
                 "pooling_mode_max_tokens": False, "pooling_mode_mean_sqrt_len_tokens": False},
    "2.0 cls": {"word_embedding_dimension": 16, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False},
    "3.0 last": {"word_embedding_dimension": 16, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": False,
                 "pooling_mode_max_tokens": False, "pooling_mode_mean_sqrt_len_tokens": False,
                 "pooling_mode_weightedmean_tokens": False, "pooling_mode_lasttoken": True, "include_prompt": True},
    "2.0 cls and mean": {"word_embedding_dimension": 16, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
    "2.0 max": {"word_embedding_dimension": 16, "pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": False},
    "2.0 none": {"word_embedding_dimension": 16, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": False},
    "only dimension": {"word_embedding_dimension": 16},
    "6 cls": {"embedding_dimension": 16, "pooling_mode": "cls", "include_prompt": True},
    "6 last without prompt": {"embedding_dimension": 16, "pooling_mode": "lasttoken", "include_prompt": False},
    "6 list of one": {"embedding_dimension": 16, "pooling_mode": ["mean"]},
    "6 list": {"embedding_dimension": 16, "pooling_mode": ["cls", "mean"], "include_prompt": True},
    "6 weightedmean": {"embedding_dimension": 16, "pooling_mode": "weightedmean"},
    "both forms": {"embedding_dimension": 16, "pooling_mode": "cls", "pooling_mode_mean_tokens": True},
    "both dimensions": {"embedding_dimension": 16, "word_embedding_dimension": 16, "pooling_mode": "cls"},
    "unknown mode": {"embedding_dimension": 16, "pooling_mode": "median"},
    "no dimension": {"pooling_mode": "cls"},
}
out = []
for name, cfg in cases.items():
    d = tempfile.mkdtemp()
    os.mkdir(d + "/1_Pooling")
    write(d + "/1_Pooling/config.json", cfg)
    v = {"name": name, "config": cfg}
    try:
        p = Pooling.load(d, subfolder="1_Pooling")
        modes = [p.pooling_mode] if isinstance(p.pooling_mode, str) else list(p.pooling_mode)
        v |= {"modes": modes, "dimension": p.embedding_dimension, "include_prompt": p.include_prompt}
    except Exception as e:
        v["error"] = str(e)
    out.append(v)
with open("pooling.json", "w") as f:
    f.write("[\n" + ",\n".join(json.dumps(v) for v in out) + "\n]\n")
