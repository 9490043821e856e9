"""What eval_loss.py, splade.py and multivector.py share to compare figures of NanoBEIR with those of sentence-transformers' evaluators: a small dataset in its
layout, in a hub's cache, where theirs read it as a folder. It has what a reader may take otherwise: texts that come twice and so have equal scores, a document
without text, one with the id of a query, judgements that come twice or are of a document that is not there, and positives that BM25 has not found.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

TASKS = ["msmarco", "nq"]
COMMIT = "0" * 40


class Nano:
    def __init__(self, contraflow, work, words, seed=5):
        self.contraflow, self.hub = contraflow, Path(work) / "hub"
        datasets.config.HF_DATASETS_CACHE = Path(work) / "datasets"
        datasets.disable_progress_bars()
        repository = self.hub / "datasets--sentence-transformers--NanoBEIR-en"
        self.folder = repository / "snapshots" / COMMIT
        (repository / "refs").mkdir(parents=True)
        (repository / "refs" / "main").write_text(COMMIT)
        self.env = {**os.environ, "HF_HUB_CACHE": str(self.hub), "HF_HUB_OFFLINE": "1"}
        draw = random.Random(seed)
        text = lambda: " ".join(draw.choice(words) for _ in range(draw.randint(2, 9)))
        card = "---\nconfigs:\n"
        for config in ("bm25", "corpus", "qrels", "queries"):
            card += f"- config_name: {config}\n  data_files:\n" + "".join(f"  - split: Nano{t}\n    path: {config}/Nano{t}-*\n" for t in ("MSMARCO", "NQ"))
            (self.folder / config).mkdir(parents=True)
        (self.folder / "README.md").write_text(card + "---\n")
        for t in ("MSMARCO", "NQ"):
            docs = {f"d{i}": text() for i in range(130)}
            docs |= {"d7": docs["d3"], "d103": docs["d3"], "d9": "", "q0": text()}
            queries = {f"q{i}": text() for i in range(12)} | {"q12": docs["d3"], "q13": ""}
            ids = list(docs)
            qrels = [(q, d) for q in list(queries)[:11] for d in draw.sample(ids, draw.randint(1, 4))] + [("q0", "d103"), ("q0", "d103"), ("q12", "d7"), ("q12", "d9")]
            found = [(q, draw.sample(ids, 120)) for q, _ in dict(qrels).items()]
            tables = {
                "corpus": {"_id": ids, "text": list(docs.values())}, "queries": {"_id": list(queries), "text": list(queries.values())},
                "qrels": {"query-id": [q for q, _ in qrels], "corpus-id": [d for _, d in qrels]}, "bm25": {"query-id": [q for q, _ in found], "corpus-ids": [d for _, d in found]},
            }  # fmt: skip
            for config, columns in tables.items():
                pq.write_table(pa.table(columns), self.folder / config / f"Nano{t}-00000-of-00001.parquet")

    def compare(self, what, ours, theirs, mean, of):
        """Figures by task, as --json has them, with an evaluator's: of is what its keys have between a task and a measure, mean what they have for the mean."""
        worst, compared = 0.0, 0
        for task, figures in ours.items():
            before = mean if task == "mean" else task + of
            for name, value in figures.items():
                key = before + "_" + {"map": "map@100"}.get(name, name)
                key = key if key in theirs else before + "_" + name
                if key in theirs:
                    worst, compared = max(worst, abs(theirs[key] - value)), compared + 1
        print(f"{what} on NanoBEIR: {compared} figures off by {worst:.0e} at most; nDCG@10 {ours['mean']['ndcg@10']:.4f}", flush=True)
        if not worst < 1e-6 or compared < 9 or not ours["mean"]["ndcg@10"] > 0:
            sys.exit("the figures differ, or there is nothing to see")

    def run(self, *command):
        reply = subprocess.run([str(c) for c in (self.contraflow, *command)], capture_output=True, text=True, env=self.env)
        if reply.returncode:
            sys.exit(f"{command}: exit {reply.returncode}: {reply.stderr[-2000:]}")
        return reply.stdout

    def eval(self, what, model, theirs, similarity, *flags):
        """What contraflow eval prints of a model's folder, and NanoBEIREvaluator's figures or those of one derived from it."""
        ours = json.loads(self.run("eval", "--model", model, "--nanobeir=" + ",".join(TASKS), "--json", *flags))
        self.compare(what, ours, theirs, f"NanoBEIR_mean_{similarity}", f"_{similarity}")

    def rerank(self, what, model, theirs, top, *flags):
        """Likewise contraflow rerank and CrossEncoderNanoBEIREvaluator."""
        ours = json.loads(self.run("rerank", "--model", model, "--nanobeir=" + ",".join(TASKS), "--json", "--top", top, *flags))
        self.compare(what, ours, theirs, f"NanoBEIR_R{top}_mean", f"_R{top}")
