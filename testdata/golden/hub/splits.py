"""What Python's datasets takes for the splits and configurations of a dataset: of files' names, and of a card's configs.

    pip install datasets==5.2.0 && python splits.py

writes splits.json: of each dataset its files, its card, and of each configuration asked for ("" for none) the files of its splits, or that it is an error.
"""

import json
import os
import pathlib
import tempfile

import datasets

datasets.disable_progress_bars()

CARD = """---
license: mit
configs:
- config_name: pair
  default: true
  data_files:
  - split: train
    path: pair/train-*
  - split: dev
    path: [pair/dev-*, "extra/pair dev.parquet"]
- config_name: 'triplet'
  data_files: triplet/**/*.parquet
- config_name: listed
  data_files:
  - extra/a.parquet
  - extra/b.parquet
- config_name: folder
  data_dir: all
- config_name: below
  data_dir: all
  data_files: [{split: test, path: "x*"}]
---

# A dataset
"""

ALL_OF_NLI = [f"{c}/{s}-00000-of-00001.parquet" for c in ("pair", "triplet") for s in ("dev", "test", "train")]
CASES = [
    {"files": ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002-0a1b.parquet", "data/test-00000-of-00001.parquet", "data/weird_name-00000-of-00001.parquet", "other/train.parquet"]},
    {"files": ALL_OF_NLI},
    {"files": ["train.jsonl", "test.jsonl", "dev.jsonl"]},
    {"files": ["my_train_file.csv", "my-eval.csv", "valid.0.csv", "training.csv"]},
    {"files": ["trainer.csv", "contest.csv", "evaluate.csv", "strain-1.csv"]},
    {"files": ["a.parquet", "b.parquet", "sub/c.parquet"]},
    {"files": ["train/a.parquet", "train/deep/b.parquet", "test-set/c.parquet", "d.parquet"]},
    {"files": ["en.train/a.parquet", "en.val.2/a.parquet", "data/x.parquet"]},
    {"files": ["queries.parquet", "test.parquet"]},
    {"files": ["test/train.parquet", "train/test.parquet"]},
    {"files": [".hidden/train.parquet", "__cache/train.parquet", "data.parquet"]},
    {"files": ["Train.csv", "Test.csv"]},
    {"files": ["val/x.jsonl", "dev/y.jsonl", "training/z.jsonl"]},
    {"files": ["data/train-00000-of-00001.jsonl.gz", "data/train.jsonl"]},
    {"files": ["dev_train.jsonl", "b.jsonl"]},
    {"files": ["all/train.parquet", "all/test.parquet", "all/x1.parquet", "pair/train-0.parquet", "pair/train-1.parquet", "pair/dev-0.parquet", "pair/test-0.parquet", "extra/pair dev.parquet", "extra/a.parquet", "extra/b.parquet",
               "triplet/train.parquet", "triplet/a/b/test.parquet", "triplet/.x/c.parquet"], "card": CARD, "configs": ["", "pair", "triplet", "listed", "folder", "below", "none"]},
    {"files": ALL_OF_NLI, "card": "---\nconfigs:\n- config_name: pair\n  data_files: pair/*\n- config_name: triplet\n  data_files: triplet/*\n---\n", "configs": ["", "triplet"]},
    {"files": ALL_OF_NLI, "card": "---\nconfigs:\n- config_name: pair\n  data_files: pair/*\n- config_name: default\n  data_files: triplet/test-*\n---\n", "configs": [""]},
    {"files": ALL_OF_NLI, "card": "---\nconfigs:\n- config_name: only\n  data_files: [{split: train, path: '*/train-?????-of-[0-9]*'}]\n---\n", "configs": [""]},
    {"files": ALL_OF_NLI, "card": "---\r\nconfigs:\r\n- config_name: a\r\n  default: true\r\n  data_files: pair/*\r\n- config_name: b\r\n  default: true\r\n  data_files: triplet/*\r\n---\r\n", "configs": [""]},
    {"files": ALL_OF_NLI, "card": "---\nlicense: mit\n---\n", "configs": [""]},
    {"files": ALL_OF_NLI, "card": "---\nconfigs:\n- config_name: a\n  data_files: [{split: train, path: 'nothing/*'}]\n---\n", "configs": [""]},
    {"files": ["README.md", "LICENSE", "dataset_infos.json", "config.json", "a.jsonl", "sub/b.jsonl"], "card": "---\nconfigs:\n- config_name: star\n  data_files: '*'\n- config_name: deep\n  data_files: '**'\n---\n", "configs": ["star", "deep"]},
    {"files": ["README.md", "LICENSE", "dataset_infos.json", "test.jsonl", "train.jsonl"], "card": "---\nconfigs:\n- config_name: bare\n---\n", "configs": [""]},
    {"files": ["README.md", "LICENSE", "dataset_dict.json", "a.jsonl"], "card": "---\nconfigs:\n- config_name: bare\n---\n", "configs": [""]},
    {"files": ["test.json", "train.json"], "card": "\n \n---\nconfigs:\n- config_name: a\n  data_files: test.json\n---\n", "configs": [""]},
    {"files": ["test.json", "train.json"], "card": "---\nconfigs:\n- config_name: a\n  data_files: test.json\n", "configs": [""]},
    {"files": ["test.tsv", "train.tsv", "train.tsv.gz"]},
    {"files": ["a1.jsonl", "a2.jsonl", "!b.jsonl", "c1.jsonl"], "card": "---\nconfigs:\n- config_name: a\n  data_files: '[!a]*.jsonl'\n---\n", "configs": [""]},
    {"files": ["test.jsonl", "train.jsonl"], "card": "---\nlicense: &l mit\nother: *l\nconfigs:\n- config_name: a\n  data_files: test.jsonl\n---\n", "configs": [""]},
]

out = []
for case in CASES:
    with tempfile.TemporaryDirectory() as top:
        os.environ["HF_DATASETS_CACHE"] = top + "/cache"
        folder = pathlib.Path(top, "data set")
        for name in case["files"]:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"{}" if name.endswith(".json") else b"")
        if "card" in case:
            (folder / "README.md").write_bytes(case["card"].encode())
        of = {}
        for config in case.get("configs", [""]):
            try:
                builder = datasets.load_dataset_builder(str(folder), name=config or None, cache_dir=top + "/cache")
                of[config] = {str(split): sorted(os.path.relpath(f, folder) for f in files) for split, files in builder.config.data_files.items()}
            except (ValueError, FileNotFoundError) as e:
                of[config] = None
                print(case["files"][0], repr(config), type(e).__name__, str(e)[:150])
        out.append({"files": case["files"], "card": case.get("card", ""), "configs": of})
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "splits.json"), "w") as f:
    json.dump(out, f, indent=1)
    f.write("\n")
