"""Command lines of FlagEmbedding drawn at random: what its own runner trains by each, and what contraflow does by the recipe that `contraflow import` makes of it.

    python testdata/peers/commands.py CONTRAFLOW FIRST-LAST

Prints a line for each. Exits with 1 if a loss is off by more than 3e-4 of it (that of an embedder, but for M3's unified one, has the entropy of its teacher's
distributions besides), or a learning rate at all, or if the recipe names something that is not known. A step's batch is the whole data, so that orders of rows don't count.
Language models have LoRA, whose factors begin at random, and a learning rate at which next to nothing moves.
What differs by intention is left out: padding, which has a part in FlagEmbedding's MaxSim, and how it cuts texts of pairs. Needs FlagEmbedding (1.4.2).
"""

import json
import logging
import os
import random
import shutil
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import datasets
import drawn
import FlagEmbedding.abc.finetune.reranker as of_rerankers
import FlagEmbedding.finetune.embedder.decoder_only.base as decoder
import FlagEmbedding.finetune.embedder.encoder_only.base as base
import FlagEmbedding.finetune.embedder.encoder_only.m3 as m3
import FlagEmbedding.finetune.reranker.decoder_only.base as judge
import FlagEmbedding.finetune.reranker.encoder_only.base as reranker
import tokenizers
import torch
import transformers

logging.disable(logging.INFO)
transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()
datasets.disable_progress_bars()


def late(model, q_reps, p_reps, q_mask=None):
    """compute_colbert_score of FlagEmbedding's M3, but that padding, whose vectors are 0, is no document's token."""
    products = torch.einsum("qin,pjn->qipj", q_reps, p_reps).masked_fill((p_reps == 0).all(-1), -torch.inf)
    scores = products.amax(-1).sum(1) / q_mask[:, 1:].sum(-1, keepdim=True)
    return scores / model.temperature


m3.EncoderOnlyEmbedderM3Model.compute_colbert_score = late
contraflow = str(Path(sys.argv[1]).resolve())
work = Path(tempfile.mkdtemp())
tok = transformers.AutoTokenizer.from_pretrained(Path(__file__).resolve().parents[1] / "golden" / "bert" / "minilm-tiny")
tok.bos_token, tok.eos_token = tok.cls_token, tok.sep_token  # which M3's sparse part leaves out
os.chdir(work)
families = drawn.families(tok)
ASK = "Given a query A and a passage B, determine whether the passage contains an answer to the query by providing a prediction of either 'Yes' or 'No'."


def language_models():
    """Writes a folder of each, with a tokenizer that knows Yes as a token."""
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer, bpe.decoder = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False), tokenizers.decoders.ByteLevel()
    bpe.train_from_iterator([ASK, " ".join(drawn.WORDS), "Yes", "A: B: "] * 9, tokenizers.trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<|endoftext|>"], initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False))  # fmt: skip
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|endoftext|>", pad_token="<|endoftext|>")
    shape = {"vocab_size": len(fast), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 512, "initializer_range": 0.2}
    torch.manual_seed(2)
    made = {
        "qwen2": transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**shape)), "qwen3": transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**shape, head_dim=8)),
        "llama": transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape)), "mistral": transformers.MistralForCausalLM(transformers.MistralConfig(**shape)),
    }  # fmt: skip
    for name, model in made.items():
        model.save_pretrained(name)
        fast.save_pretrained(name)
    return list(made)


language = language_models()
KINDS = {  # each a module, the parser's classes and the runner's
    "base": (base, base.EncoderOnlyEmbedderModelArguments, base.EncoderOnlyEmbedderDataArguments, base.EncoderOnlyEmbedderTrainingArguments, base.EncoderOnlyEmbedderRunner),
    "m3": (m3, m3.EncoderOnlyEmbedderM3ModelArguments, m3.EncoderOnlyEmbedderM3DataArguments, m3.EncoderOnlyEmbedderM3TrainingArguments, m3.EncoderOnlyEmbedderM3Runner),
    "decoder": (decoder, decoder.DecoderOnlyEmbedderModelArguments, decoder.DecoderOnlyEmbedderDataArguments, decoder.DecoderOnlyEmbedderTrainingArguments, decoder.DecoderOnlyEmbedderRunner),
    "judge": (judge, judge.RerankerModelArguments, of_rerankers.AbsRerankerDataArguments, of_rerankers.AbsRerankerTrainingArguments, judge.DecoderOnlyRerankerRunner),
    "reranker": (reranker, of_rerankers.AbsRerankerModelArguments, of_rerankers.AbsRerankerDataArguments, of_rerankers.AbsRerankerTrainingArguments, reranker.EncoderOnlyRerankerRunner),
}  # fmt: skip


def draw(seed):
    """A kind, and its arguments but for the model's, of rows that it writes."""
    rng = random.Random(seed)
    one = lambda *options: rng.choice(options)
    text = lambda: " ".join(one(*drawn.WORDS) for _ in range(rng.randint(2, 12)))
    kind, size, negatives, files = one(*KINDS), one(6, 8), one(1, 2, 3), one(1, 1, 2)
    names = [f"rows-{seed}-{i}.jsonl" for i in range(files)]
    for name in names:
        rows = [{"query": text(), "pos": [text()], "neg": [text() for _ in range(negatives)], "pos_scores": [3 * rng.random()], "neg_scores": [3 * rng.random() for _ in range(negatives)]} for _ in range(size)]
        Path(name).write_text("".join(json.dumps(r) + "\n" for r in rows))
    said = ["--train_data", *names, "--train_group_size", negatives + 1, "--per_device_train_batch_size", files * size, "--adam_epsilon", 1e-3]
    said += ["--learning_rate", 1e-6, "--lora_rank", 4, "--lora_dropout", 0] if kind in ("decoder", "judge") else ["--learning_rate", one(1e-3, 3e-3)]
    said += one(["--num_train_epochs", 4], ["--max_steps", 5]) + one([], ["--warmup_steps", 2]) + one([], ["--weight_decay", 0.1]) + one([], ["--max_grad_norm", 0.5])
    said += one([], ["--lr_scheduler_type", "cosine"], ["--lr_scheduler_type", "constant"], ["--lr_scheduler_type", "polynomial"])
    if kind == "judge":  # with the marks with which it scores, and which contraflow always has
        said += ["--model_type", "decoder", "--query_instruction_for_rerank", "A: ", "--passage_instruction_for_rerank", "B: ", "--query_max_len", 150, "--passage_max_len", 250]
        return kind, one(*language), said + ["--query_instruction_format", "{}{}", "--passage_instruction_format", "{}{}"] + one([], ["--knowledge_distillation", "True"])
    task = "rerank" if kind == "reranker" else "retrieval"
    said += one([], [f"--query_instruction_for_{task}", "bird "], [f"--query_instruction_for_{task}", "bird", "--query_instruction_format", "{} fish {}"])
    said += one([], [f"--passage_instruction_for_{task}", "road "]) + one([], ["--knowledge_distillation", "True"])
    if kind == "reranker":
        return kind, one(*[f for f in families if f not in drawn.NOT["cross"]]), said + ["--query_max_len", 20, "--passage_max_len", 20]
    said += ["--temperature", one(0.02, 0.05, 0.5)] + one(["--query_max_len", 40, "--passage_max_len", 40], ["--query_max_len", 7, "--passage_max_len", 9])
    if files == 1 and f"--query_instruction_for_{task}" in said:  # without one queries begin with the word None
        said += one([], ["--same_dataset_within_batch", "True"])
    if kind == "m3":
        learns = ["--unified_finetuning", "True", *one([], ["--use_self_distill", "True"], ["--use_self_distill", "True", "--self_distill_start_step", 2]), *one([], ["--colbert_dim", 8])]
        return kind, "bert", said + one([], learns, learns)
    if kind == "decoder":
        return kind, one(*language), said + ["--sentence_pooling_method", one("last_token", "mean")]
    said += ["--sentence_pooling_method", one("cls", "mean")] + one([], ["--sub_batch_size", 3]) + one([], ["--pad_to_multiple_of", 8])
    return kind, one(*[f for f in families if f not in ("t5", *drawn.CAUSAL, *drawn.SCORES)]), said + one(["--normalize_embeddings", "False"], ["--use_mrl", "True", "--mrl_dims", 32, 8], [])


def train(seed):
    kind, family, said = draw(seed)
    module, *parsed, runner = KINDS[kind]
    said = [str(word) for word in said + ["--output_dir", "there", "--cache_path", work / "cache", "--logging_steps", 1, "--save_strategy", "no", "--report_to", "none", "--use_cpu", "True", "--disable_tqdm", "True"]]
    model, data, training = transformers.HfArgumentParser(parsed).parse_args_into_dataclasses(args=["--model_name_or_path", family, *said])
    trainer = runner(model_args=model, data_args=data, training_args=training).trainer
    trainer.remove_callback(transformers.PrinterCallback)
    if kind not in ("decoder", "judge"):  # of which an adapter would be saved
        trainer._save("start")  # with heads that it has drawn
        family = "start"
    command = ["torchrun", "--nproc_per_node", "1", "-m", module.__name__, "--model_name_or_path", family, *said]
    imported = subprocess.run([contraflow, "import", "--", *command], capture_output=True, text=True)
    Path("recipe.yaml").write_text(imported.stdout)
    unknown = [line for line in imported.stderr.splitlines() if not line.startswith("assumed")]
    trained = subprocess.run([contraflow, "train", "-c", "recipe.yaml", "--set", "save.dir=here", "--set", "train.device=cpu", "--set", "model.dropout=0"], capture_output=True, text=True)
    if imported.returncode or unknown or trained.returncode:
        raise RuntimeError(f"{unknown}\n{trained.stderr}")
    trainer.train()
    ours = [(m["loss"], m["lr"]) for m in map(json.loads, open("here/metrics.jsonl")) if "lr" in m]
    theirs = [(m["loss"], m["learning_rate"]) for m in trainer.state.log_history if "loss" in m]
    teachers = 0
    if kind in ("base", "decoder", "m3") and "--knowledge_distillation" in said and "--unified_finetuning" not in said:
        rows = [json.loads(line) for name in data.train_data for line in open(name)]
        teachers = sum(float(torch.distributions.Categorical(logits=torch.tensor(r["pos_scores"] + r["neg_scores"])).entropy()) for r in rows) / len(rows)
    off = drawn.worst(abs(a + teachers - b) / max(abs(b), 1e-3) for (a, _), (b, _) in zip(ours, theirs, strict=True))
    rates = drawn.worst(abs(a - b) for (_, a), (_, b) in zip(ours, theirs, strict=True))
    print(f"{f'seed {seed}, {kind}, {Path(model.model_name_or_path).name}':28} {' '.join(f'{a:.5f}' for a, _ in ours)}  off by {off:.1e}", flush=True)
    if not (off <= 3e-4 and rates <= 1e-12):
        raise RuntimeError(f"learning rates are off by {rates:.1e}; {' '.join(command)}\n{theirs}")


bad = 0
first, last = map(int, sys.argv[2].split("-"))
if first > last:
    sys.exit(f"{sys.argv[2]} are no seeds")
for seed in range(first, last + 1):
    try:
        train(seed)
    except Exception:
        bad += 1
        traceback.print_exc()
        print(f"seed {seed}: WRONG", flush=True)
    for run in ("here", "start", "there"):
        shutil.rmtree(run, ignore_errors=True)
shutil.rmtree(work)
sys.exit(bad > 0)
