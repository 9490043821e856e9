"""Loads a model folder in sentence-transformers and prints embeddings: the peer that checks what we read and write.

    python hfmodel_check.py FOLDER [--prompt-name NAME] < texts > embeddings.json

Each line of standard input is a text; the output is one JSON object:

    {"dimension": 384, "max_seq_length": 256, "modules": ["Transformer", "Pooling", "Normalize"], "embeddings": [[...], ...]}

It also loads the folder with transformers' AutoModel and AutoTokenizer, and fails if a weight is missing or left over,
or if the model card's front matter does not parse. Made for sentence-transformers 6.2; older ones from 3 should do.
"""

import argparse
import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"  # a folder must be enough

from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("folder")
    args.add_argument("--prompt-name", help="embed with this prompt of the model; default: none")
    args = args.parse_args()

    inner = args.folder
    modules = os.path.join(args.folder, "modules.json")
    if os.path.exists(modules):
        with open(modules) as f:
            inner = os.path.join(args.folder, json.load(f)[0]["path"])
    _, info = AutoModel.from_pretrained(inner, output_loading_info=True)
    missing = [k for k in info["missing_keys"] if not k.startswith("pooler.")]  # sentence embeddings don't use it
    if missing or info["unexpected_keys"] or info["mismatched_keys"]:
        sys.exit(f"{args.folder}: transformers found {info}")
    AutoTokenizer.from_pretrained(inner)

    card = os.path.join(args.folder, "README.md")
    if os.path.exists(card):
        from huggingface_hub import ModelCard

        data = ModelCard.load(card).data.to_dict()
        if data.get("library_name") not in (None, "sentence-transformers"):
            sys.exit(f"{card}: front matter {data}")

    model = SentenceTransformer(args.folder, device="cpu")
    texts = [line.rstrip("\n") for line in sys.stdin]
    # An empty prompt, because None would mean the model's default one.
    options = {"prompt_name": args.prompt_name} if args.prompt_name else {"prompt": ""}
    embeddings = model.encode(texts, show_progress_bar=False, **options) if texts else []
    json.dump(
        {
            "dimension": len(embeddings[0]) if len(embeddings) else None,
            "max_seq_length": model.max_seq_length,
            "modules": [type(m).__name__ for m in model],
            "embeddings": [e.tolist() for e in embeddings],
        },
        sys.stdout,
    )


main()
