"""What the checks of small random models share: families.py and rerankers.py. Importing it makes Hugging Face's libraries quiet and offline."""

import os
import subprocess
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parent / "tokenize"))  # before this script's own folder

import families as tokenizers_of
import hardtext
import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()

BPE, SPM, WP = {"pad_token": "<|endoftext|>"}, {"pad_token": "<pad>"}, {"pad_token": "[PAD]"}
# What DeBERTa v3 has besides a shape, on fewer buckets.
DEBERTA = {"relative_attention": True, "position_buckets": 16, "norm_rel_ebd": "layer_norm", "share_att_key": True, "pos_att_type": "p2c|c2p",
           "position_biased_input": False}


def shape(positions):
    """An encoder's shape, and what a decoder's has besides."""
    small = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 96, "max_position_embeddings": positions}
    return small, {**small, "num_key_value_heads": 2}


def texts():
    return [t for t in hardtext.lines(5, 400) if t.strip()]


def tokenizers(work, texts):
    """Folders with a tokenizer.json of every kind, WordPiece among them, which joins pairs as BERT does."""
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer, t.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    t.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=2000, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False))
    t.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    (work / "wordpiece").mkdir()
    t.save(str(work / "wordpiece" / "tokenizer.json"))
    tokenizers_of.build(work, 2000, 0.5)


def config(name, args, tok):
    """A configuration of the class, with the tokenizer's vocabulary and special tokens."""
    fitting = {"pad_token_id": tok.pad_token_id, **args, "vocab_size": len(tok)}
    for key in ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"):
        fitting.setdefault(key, tok.pad_token_id)
    cls = getattr(transformers, name)
    fields = set(cls.__dataclass_fields__)
    return cls(**{k: v for k, v in fitting.items() if k in fields or k in args})


def spread(model):
    """Makes a new model's weights larger: as they are initialized, texts are too much alike to it."""
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.mul_(6)
            else:
                p.add_(torch.randn_like(p) * 0.1)


def run(*command):
    reply = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if reply.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit {reply.returncode}: {reply.stderr[-2000:]}")
