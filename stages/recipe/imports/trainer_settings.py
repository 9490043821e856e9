"""Writes what a sentence-transformers trainer trains, and with what, for contraflow import.

In a script, in place of trainer.train():

    import trainer_settings; trainer_settings.write(trainer, "moved"); raise SystemExit  # what follows would save and publish a model that has learned nothing

Then: contraflow import moved/args.json > recipe.yaml. The folder has the settings, the data as parquet files and the model as it is before its first step.
"""

import copy
import itertools
import json
import os
import re

import torch
from datasets import Dataset, IterableDataset
from safetensors import safe_open

KNOWN = ("transformers", "sentence_transformers", "pylate")  # whose classes import tells by other settings; others are a script's own
LABELS = ("label", "labels", "score", "scores")


def write(trainer, folder):
    if not trainer.is_world_process_zero():
        return
    os.makedirs(folder, exist_ok=True)
    args = trainer.args
    settings = args.to_dict() | {"arguments": type(args).__name__, "devices": args.world_size}
    settings["per_device_train_batch_size"] = args.train_batch_size  # that of a process, which DataParallel splits over its devices
    for name in ("batch_sampler", "multi_dataset_batch_sampler"):
        if not isinstance(sampler := getattr(args, name), str):  # a class, a function or an object, which to_dict leaves out
            settings[name] = getattr(sampler, "__name__", type(sampler).__name__)
    settings |= model(trainer.model, folder)
    if (groups := rates(trainer, folder + "/model")) is not None:
        settings |= {"learning_rate_mapping": None, "rates": groups or None}
    rows = args.max_steps * args.train_batch_size * args.gradient_accumulation_steps * args.world_size if args.max_steps > 0 else None
    settings |= dict(zip(["train_dataset", "columns", "label_length"], datasets(trainer.train_dataset, folder + "/train", rows)))
    each = trainer.train_dataset.values() if isinstance(trainer.train_dataset, dict) else [trainer.train_dataset]
    settings["transform"] = any(made_when_read(one) for one in each)
    if any(isinstance(one, IterableDataset) for one in each):
        settings["train_sampling_strategy"] = "sequential"  # a stream's rows come as they are
    settings["eval_dataset"] = datasets(trainer.eval_dataset, folder + "/eval")[0]
    if hasattr(trainer.model, "query_prefix"):
        settings["prompts"] = late_prompts(trainer, settings["columns"], trainer.data_collator.prompts or {})
    if isinstance(trainer.loss, dict):
        guides = []
        settings["loss"] = {name: loss(of, folder, guides) for name, of in trainer.loss.items()}
    else:
        settings["loss"] = loss(trainer.loss, folder, [])
    settings["evaluator"] = evaluation(trainer.evaluator, folder, trainer.model, settings.get("prompts"))
    for c in trainer.callback_handler.callbacks:
        if type(c).__name__ == "EarlyStoppingCallback":
            settings["early_stopping_patience"] = c.early_stopping_patience
            settings["early_stopping_threshold"] = c.early_stopping_threshold
    callbacks = [type(c).__name__ for c in trainer.callback_handler.callbacks if own(c)]
    said = {
        "callbacks": callbacks or None,
        "data_collator": type(trainer.data_collator).__name__ if own(trainer.data_collator) else None,
        "trainer": type(trainer).__name__ if own(trainer) else None,
        "optimizers": [type(of).__name__ for of in (trainer.optimizer, trainer.lr_scheduler) if of is not None] or None,
        "optimizer_cls_and_kwargs": getattr(trainer, "optimizer_cls_and_kwargs", None),
    }
    settings |= said
    settings = {k: v for k, v in settings.items() if v is not None}
    with open(folder + "/args.json", "w") as f:
        json.dump(settings, f, indent=1, default=str)
    print(f"{folder}/args.json; next: contraflow import {folder}/args.json > recipe.yaml")


def own(of):
    """Whether a script has made an object's class itself."""
    return type(of).__module__.split(".")[0] not in KNOWN


def model(of, folder):
    """The model's folder; with an adapter its settings, and the folder of the model below it, or of an adapter that has been trained."""
    said = {"model": folder + "/model"}
    if type(of).__name__ == "SentenceTransformer":
        said["similarity_fn_name"] = of.similarity_fn_name
    adapted = next((m for m in of.modules() if getattr(m, "peft_config", None)), None)
    if adapted is None:
        elsewhere = {id(p) for m in of.modules() if type(m).__name__ == "SparseStaticEmbedding" for p in m.parameters()}  # whose folder says so
        names = {}
        for name, p in of.named_parameters(remove_duplicate=False):  # one that has two is named by the embeddings that it is
            names[id(p)] = name if "embed" in name else names.get(id(p), name)
        frozen, training = [[names[id(p)] for p in of.parameters() if p.requires_grad == trains and id(p) not in elsewhere] for trains in (False, True)]
        if frozen:
            said |= {"frozen": frozen, "training": training}
    else:
        adapter = next(iter(adapted.peft_config.values()))
        lora = adapter.peft_type == "LORA"
        names = ["r", "lora_alpha", "lora_dropout", "target_modules", "use_rslora", "modules_to_save"] if lora else []
        said |= {name: getattr(adapter, name) for name in names}
        if lora and type(of).__name__ == "SentenceTransformer":  # beside whose adapter other modules train
            dense = [f"{i}_Dense" for i, m in enumerate(of) if type(m).__name__ == "Dense" and any(p.requires_grad for p in m.parameters())]
            said["modules_to_save"] = [*(adapter.modules_to_save or []), *dense] or None
        if isinstance(said.get("target_modules"), set):
            body = getattr(adapted, "base_model_prefix", "") + "."  # of a model with a head, before the names of what is below it
            said["target_modules"] = sorted(name.removeprefix(body) for name in said["target_modules"])
        elsewhere = [*names, "base_model_name_or_path", "task_type", "inference_mode", "revision", "peft_version"]
        usual = type(adapter)().to_dict()
        more = {k: v for k, v in adapter.to_dict().items() if k not in elsewhere and v and v != usual.get(k)}
        if not lora:
            more = {"peft_type": type(adapter).__name__}
        if len(adapted.peft_config) > 1:
            more["others"] = list(adapted.peft_config)[1:]
        trained = any("lora_B" in name and p.any() for name, p in of.named_parameters())
        if trained and type(of).__name__ != "SentenceTransformer":
            more["trained"] = True
        if trained and not more:  # it goes on
            said["model"] = folder + "/adapter"
            of.save_pretrained(said["model"], create_model_card=False)
            with open(said["model"] + "/adapter_config.json") as f:
                config = json.load(f)
            with open(said["model"] + "/adapter_config.json", "w") as f:
                json.dump(config | {"base_model_name_or_path": os.path.abspath(folder + "/model")}, f)
        said["adapter"] = more or None
        of = below(of)
    if any(p.dtype != torch.float32 for p in of.parameters()):
        said["torch_dtype"] = str(next(p.dtype for p in of.parameters() if p.dtype != torch.float32))
    of.save_pretrained(folder + "/model", create_model_card=False)
    return said


def rates(trainer, folder):
    """Learning rates of their own, each with parts of names of the parameters which have it: a parameter has that of the first of these that is in its name.
    None where one is not called in the model's folder what it is here, as transformers gives names of its own to some models' parameters."""
    losses = trainer.loss
    trained = torch.nn.ModuleDict(losses) if isinstance(losses, dict) else losses
    found = {}
    for pattern, rate in (trainer.args.learning_rate_mapping or {}).items():  # of several that a parameter matches the last has it
        found |= {id(p): rate for name, p in trained.named_parameters() if re.search(pattern, name)}
    if not all(rate > 0 for rate in found.values()):
        return None
    names = called(trainer.model)
    left = {name: found.get(key, trainer.args.learning_rate) for key, name in names.items()}
    told = {name for key, name in names.items() if key in found}
    keys = stored(folder)
    if not all(any(key.endswith(re.sub(r"^(\d+_Dense|queries)\.|lora_[AB]\.(?=weight$)", "", name)) for key in keys) for name in told):
        return None
    groups = []
    while told & left.keys():
        new, behind = [], set()
        for rate in dict.fromkeys(left[name] for name in left if name in told):
            alike = [name for name in left if name in told and left[name] == rate]
            others = [name for name in left if left[name] != rate]
            chosen, within = parts(alike, others)
            if chosen:
                new.append({"params": chosen, "lr": rate})
            behind |= {other for other in others if any(name in other for name in within)}
        groups += new
        told |= behind  # whose rate, if only that of all, is told before that of what is a part of their names
        left = {name: rate for name, rate in left.items() if not any(part in name for group in new for part in group["params"])}
    return groups


def called(of):
    """What the parameters that train are called in a recipe."""
    names = {}
    for name, p in of.named_parameters(remove_duplicate=False):
        name = re.sub(r"^.*?\b(auto_)?model\.(base_model\.model\.)?", "", name.replace(".modules_to_save.default.", ".").replace(".default.", "."), count=1)
        if name.startswith("pooler.") and type(of).__name__ != "CrossEncoder":
            continue  # whose output is nobody's
        names[id(p)] = name if "embed" in name and names.get(id(p)) != "shared.weight" else names.get(id(p), name)  # T5's embeddings are shared
    for m in of.modules():
        body = getattr(m, "base_model_prefix", "")
        names |= {id(p): names[id(p)].removeprefix(body + ".") for p in m.parameters() if body and id(p) in names}
        if type(m).__name__ == "SparseStaticEmbedding":
            names |= {id(p): "queries.weight" for p in m.parameters()}
    for i, m in enumerate(of):
        if type(m).__name__ == "Dense":
            names |= {id(p): f"{i}_Dense.{name}" for name, p in m.named_parameters()}
    return {id(p): names[id(p)] for p in of.parameters() if p.requires_grad and id(p) in names}


def stored(folder):
    """The names of all parameters in a model's folder."""
    names = []
    for at, _, files in os.walk(folder):
        for file in files:
            if file.endswith(".safetensors"):
                with safe_open(os.path.join(at, file), "pt") as f:
                    names += f.keys()
    return names


def parts(names, others):
    """Few and short parts of names that are in none of the others, and the names that have none, as each is a part of another's."""
    all = [".".join(words[i:j]) + "." * (j < len(words)) for words in (name.split(".") for name in names) for i, j in itertools.combinations(range(len(words) + 1), 2)]
    has = {piece: {name for name in names if piece in name} for piece in dict.fromkeys(all) if not any(piece in other for other in others)}
    left, chosen = set(names), []
    while has:
        best = max(has, key=lambda piece: (len(has[piece] & left), -len(piece)))
        if not has[best] & left:
            break
        chosen.append(best)
        left -= has[best]
    return chosen, left


def below(of):
    """The model without its adapter."""
    of = copy.deepcopy(of)
    for parent in list(of.modules()):
        for name, child in parent.named_children():
            if hasattr(child, "base_layer"):
                setattr(parent, name, child.base_layer)
            elif type(child).__name__.startswith("PeftModel"):
                setattr(parent, name, child.get_base_model())
    for m in of.modules():
        m.__dict__.pop("peft_config", None)
        if getattr(m, "_hf_peft_config_loaded", False):
            m._hf_peft_config_loaded = False
    return of


def datasets(of, name, most=None):
    """Files, columns and how long labels are (0: numbers), of a dataset or of each of several by its name. Of a stream there are no more rows than are used."""
    if of is None:
        return None, None, None
    if isinstance(of, dict):
        each = {key: datasets(one, f"{name}-{key}", most) for key, one in of.items()}
        return tuple({key: said[i] for key, said in each.items() if said[i] is not None} for i in range(3))
    rows = of
    if not isinstance(of, Dataset) or of.format["type"] == "custom":  # a stream, or a transform, of which the trainer's own adds the dataset's name
        read = of if isinstance(of, Dataset) else itertools.islice(of, most)
        rows = Dataset.from_list([{k: v for k, v in row.items() if k != "dataset_name"} for row in read])
    rows.to_parquet(name + ".parquet")
    label = next((rows[0][c] for c in LABELS if c in rows.column_names), None)
    length = len(label) if isinstance(label, (list, tuple)) else None if label is None else 0
    return name + ".parquet", rows.column_names, length


def late_prompts(trainer, columns, prompts):
    """PyLate's, which its collator has: a query's or a document's prefix stands before each, or alone."""
    if isinstance(columns, dict):
        return {name: late_prompts(trainer, of, prompts.get(name, prompts)) for name, of in columns.items()}
    of = trainer.model
    return {c: (of.document_prefix if i else of.query_prefix) + prompts.get(c, "") for i, c in enumerate(columns) if c not in LABELS}


def made_when_read(of):
    """Whether a script has given a dataset a transform: the trainer's own, which adds the dataset's name, may be around it."""
    transform = getattr(of, "_format_kwargs", {}).get("transform")
    inner = getattr(transform, "keywords", {}).get("transform")
    return (inner if "dataset_name" in getattr(transform, "keywords", {}) else transform) is not None


def loss(of, folder, guides):
    """A loss's class and options, and those of the loss in it; guides are those that are written."""
    if hasattr(of, "get_config_dict"):
        said = of.get_config_dict()
    else:
        said = {k: v for k, v in vars(of).items() if isinstance(v, (bool, int, float, str)) and k[0] != "_" and k != "training"}
    for of_it, name in ((of, "use_document_regularizer_only"), (getattr(of, "weighting_scheme", None), "mu")):  # which get_config_dict leaves out
        if hasattr(of_it, name):
            said[name] = getattr(of_it, name)
    if "loss" in said and hasattr(of.loss, "get_config_dict"):  # a Cached... loss has one in it that is its own affair
        said["loss"] = loss(of.loss, folder, guides)
    if "guide" in said:
        at = next((i for i, guide in enumerate(guides) if guide is of.guide), len(guides))
        said["guide"] = f"{folder}/guide-{at}"
        if at == len(guides):
            guides.append(of.guide)
            of.guide.save_pretrained(said["guide"], create_model_card=False)
        if not of.must_retokenize and of.guide.max_seq_length > of.model.max_seq_length:  # it reads the model's tokens
            said["guide"] = {"path": said["guide"], "max_seq_length": of.model.max_seq_length}
    return {"name": type(of).__name__ + (" of the script" if own(of) else "")} | said


def cut_shorter(of, model, how):
    dims = getattr(of, how, None)
    return dims is not None and dims < model.get_embedding_dimension()


def evaluation(of, folder, model, trained=None, all=None):
    """The recipe's eval section of an evaluator, with its data as files; those that there are none of, by their classes' names. trained are the prompts of what trains."""
    all = {} if all is None else all
    kind = type(of).__name__
    unnamed = (getattr(model, "prompts", None) or {}).get(getattr(model, "default_prompt_name", None), "")  # the prompt of what is embedded as neither query nor document
    shorter = {"dimensions": of.truncate_dim} if cut_shorter(of, model, "truncate_dim") else {}

    def file(columns, name=None):
        path = f"{folder}/{name or kind}-{len(sum(all.values(), []))}.parquet"
        Dataset.from_dict(columns).to_parquet(path)
        return path

    def pairs():
        if hasattr(of, "sentence_pairs"):
            return {"a": [a for a, _ in of.sentence_pairs], "b": [b for _, b in of.sentence_pairs]}
        return {"a": list(of.sentences1), "b": list(of.sentences2)}

    def add(task, entry, called=getattr(of, "name", "")):
        taken = [one.get("name") for each in all.values() for one in each if isinstance(one, dict)]
        if called in taken and shorter:
            called += f"-{of.truncate_dim}"
        if called in taken:
            called += f"-{len(taken) + 1}"
        all.setdefault(task, []).append(({"name": called} if called and task != "nanobeir" else {}) | entry | shorter)

    def prompts():  # of queries and documents
        its, names = vars(of).get, model.prompts
        query = names.get(its("query_prompt_name") or "query", unnamed)
        document = next((names[n] for n in (its("corpus_prompt_name"), "document", "passage", "corpus") if n in names), unnamed)
        said = {"query": query if its("query_prompt") is None else its("query_prompt"), "document": document if its("corpus_prompt") is None else its("corpus_prompt")}
        return {role: getattr(model, role + "_prefix", "") + text for role, text in said.items()}

    def unlike_training(asked):  # what trains may have others, which evaluators don't have
        if kind.startswith("CrossEncoder") or not trained and not any((getattr(model, "prompts", None) or {}).values()):
            return {}
        return {"prompts": {role: text for role, text in (prompts() if asked else {"query": unnamed}).items() if text}}

    def found(queries, corpus, judged, called, prompts):
        ids, texts = zip(*queries)
        files = {"queries": file({"id": ids, "text": texts}, "queries")}
        ids, texts = zip(*corpus)
        files["corpus"] = file({"id": ids, "text": texts}, "corpus")
        files["qrels"] = file({"query_id": [q for q, _ in judged], "doc_id": [d for _, d in judged], "relevance": [1] * len(judged)}, "qrels")
        add("retrieval", files | {"prompts": {role: text for role, text in prompts.items() if text}}, called)

    def compares(by):
        if by != {"cosine": "cos_sim", "dot": "dot_score"}.get(getattr(model, "similarity_fn_name", ""), by):
            all.setdefault("compared", []).append(f"{kind} compares by {by}, and the model by {model.similarity_fn_name}")

    if of is None:
        return None
    if kind.startswith("CrossEncoder"):  # whose pairs have one prompt
        asked = (model.prompts or {}).get(getattr(of, "prompt_name", None) or model.default_prompt_name, "")
        of_training = set(trained.values()) if isinstance(trained, dict) else {trained or ""}
        if of_training != {asked}:
            all.setdefault("prompted", []).append(f"{kind} has the prompt {json.dumps(asked)}, and what trains has {json.dumps(trained or '')}")
    if kind == "SequentialEvaluator":
        for one in of.evaluators:
            evaluation(one, folder, model, trained, all)
    elif own(of):
        all.setdefault("other", []).append(f"{kind}, which is the script's own")
    elif cut_shorter(of, model, "max_active_dims"):
        all.setdefault("other", []).append(kind + " of embeddings with fewer features")
    elif "NanoBEIR" in kind:
        entry = {"dataset": of.dataset_id, "tasks": list(of.dataset_names)}
        query, document = getattr(of, "query_prompts", None), getattr(of, "corpus_prompts", None)
        if hasattr(of, "rerank_k"):
            entry |= {"top": of.rerank_k, "found": not of.always_rerank_positives}
        for task in entry.pop("tasks") if isinstance(query or document, dict) else [None]:
            given = {k: p.get(task) if isinstance(p, dict) else p for k, p in [("query", query), ("document", document)] if p}
            said = prompts() | {k: p for k, p in given.items() if p is not None} if given else {}
            of_its_own = {"prompts": {k: p for k, p in said.items() if p}} if given else unlike_training(asked=True)
            add("nanobeir", entry | ({"tasks": [task]} if task else {}) | of_its_own)
    elif kind.endswith("EmbeddingSimilarityEvaluator") or kind == "CrossEncoderCorrelationEvaluator":
        add("sts", {"path": file(pairs() | {"score": list(of.scores)}), "a": "a", "b": "b", "score": "score"} | unlike_training(asked=False))
    elif kind == "MultiVectorDistillationEvaluator" and not of.nested_documents:  # without its divergence
        columns = {"a": list(of.queries), "b": list(of.documents), "score": of.scores.tolist()}
        add("sts", {"path": file(columns)} | {c: c for c in columns} | unlike_training(asked=True))
    elif kind.endswith("BinaryClassificationEvaluator") or kind == "CrossEncoderClassificationEvaluator":
        add("pair_classification", {"path": file(pairs() | {"label": list(of.labels)}), "a": "a", "b": "b", "label": "label"} | unlike_training(asked=False))
    elif kind.endswith("TripletEvaluator"):
        columns = {"query": list(of.anchors), "positive": list(of.positives), "negative": list(of.negatives)}
        margin = max(of.margin.values()) if isinstance(of.margin, dict) else of.margin
        add("triplets", {"path": file(columns)} | {c: c for c in columns} | ({"margin": margin} if margin else {}) | unlike_training(asked=True))
    elif kind.endswith("InformationRetrievalEvaluator"):
        judged = [(q, d) for q in of.queries_ids for d in of.relevant_docs[q]]
        found(zip(of.queries_ids, of.queries), zip(of.corpus_ids, of.corpus), judged, of.name, prompts())
    elif kind == "TranslationEvaluator":
        sides = {"src2trg": (of.source_sentences, of.target_sentences), "trg2src": (of.target_sentences, of.source_sentences)}
        for way, (a, b) in sides.items():
            texts = {text: i for i, text in enumerate(b)}  # one that comes twice is right wherever it stands
            found(enumerate(a), [(i, text) for text, i in texts.items()], [(i, texts[text]) for i, text in enumerate(b)], f"{of.name}-{way}".lstrip("-"), {"query": unnamed, "document": unnamed})
        all["metric"] = ["precision@1"]
    elif kind == "ParaphraseMiningEvaluator" and (of.max_pairs, of.top_k) == (500000, 100):
        there = set(of.ids)
        same = [(a, b) for a in there & set(of.duplicates) for b in there & set(of.duplicates[a]) if a != b and of.duplicates[a][b]]
        pairs = {"query_id": [a for a, _ in same], "doc_id": [b for _, b in same], "relevance": [1] * len(same)}
        compares("cos_sim")
        add("paraphrases", {"texts": file({"id": of.ids, "text": of.sentences}, "texts"), "pairs": file(pairs, "pairs")} | unlike_training(asked=False))
    elif kind == "MSEEvaluator" and not shorter:
        texts = {"text": list(of.target_sentences), "teacher": [list(map(float, e)) for e in of.source_embeddings]}
        add("loss", {"path": file(texts), "query": "text", "teacher": "teacher", "loss": "mse", "prompts": {"query": unnamed} if unnamed else {}})
    elif kind.endswith("RerankingEvaluator"):
        samples = list(of.samples)
        columns = [c for c in ("query", "positive", "negative", "documents") if c in samples[0]]
        as_list = lambda v: [v] if isinstance(v, str) else list(v)
        entry = {"path": file({c: [s[c] if c == "query" else as_list(s[c]) for s in samples] for c in columns})} | {c: c for c in columns}
        add("candidates", entry | ({"found": True} if not getattr(of, "always_rerank_positives", True) else {}) | unlike_training(asked=True))
        compares(getattr(getattr(of, "similarity_fct", None), "__name__", ""))
    else:
        all.setdefault("other", []).append(kind)
    return all
