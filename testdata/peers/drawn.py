"""Trainers of sentence-transformers drawn at random: kinds of models, families, losses and their options, data, prompts, schedules, optimizers and what is
frozen, as a seed has them meet. moved.py --random trains them."""

import random
import re

import datasets
import peft
import sentence_transformers as st
import torch
import transformers as T
from sentence_transformers import util
from sentence_transformers.base.modules import Transformer as BaseTransformer
from sentence_transformers.cross_encoder import evaluation as CE
from sentence_transformers.cross_encoder import losses as C
from sentence_transformers.multi_vector_encoder import evaluation as VE
from sentence_transformers.multi_vector_encoder import losses as V
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer import evaluation as E
from sentence_transformers.sentence_transformer import losses as L
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer
from sentence_transformers.sparse_encoder import evaluation as SE
from sentence_transformers.sparse_encoder import losses as S
from sentence_transformers.sparse_encoder.modules import MLMTransformer, SpladePooling

WORDS = "river stone bread water fire wind rain bird fish road".split()
HEADS = ("bert", "distilbert", "ernie", "gte", "jina", "modernbert", "nomic", "roberta", "xlm-roberta")  # whose heads for masked language modelling contraflow knows, but for mpnet's
CAUSAL = ("qwen3", "llama", "gemma3")
SCORES = tuple(f"{family}-scores" for family in CAUSAL)  # those with a head for one
RENAMED = ("gte", "jina", "nomic")  # whose parameters transformers calls otherwise than their folder
NOT = {"dense": SCORES, "vectors": ("electra", "mpnet", "t5", *SCORES), "cross": ("t5", "nomic", "eurobert", *CAUSAL)}  # families of which no such kind is trained
NUMBERS = ("label", "labels", "score")  # columns that are no texts


def worst(numbers):
    """The largest, or NaN if there is one, which max may drop."""
    return torch.tensor(list(numbers), dtype=torch.float64).max().item()


def families(tok):
    """Writes a folder of each, without dropout, whose numbers are drawn otherwise there."""
    shape = {"vocab_size": len(tok), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 48, "initializer_range": 0.2}
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    marks = {"pad_token_id": tok.pad_token_id, "bos_token_id": tok.cls_token_id, "eos_token_id": tok.sep_token_id}
    decoder = shape | marks | {"num_key_value_heads": 1}
    gemma = {"head_dim": 8, "sliding_window": 6, "query_pre_attn_scalar": 8, "layer_types": ["sliding_attention", "full_attention"], "attn_implementation": "eager"}
    torch.manual_seed(1)
    made = {
        "bert": T.BertForMaskedLM(T.BertConfig(**shape, **still)),
        "electra": T.ElectraForMaskedLM(T.ElectraConfig(**shape, **still, embedding_size=16)),
        "mpnet": T.MPNetForMaskedLM(T.MPNetConfig(**shape, **still, **marks)),
        "modernbert": T.ModernBertForMaskedLM(T.ModernBertConfig(**shape, **marks, cls_token_id=tok.cls_token_id, sep_token_id=tok.sep_token_id, local_attention=8, attn_implementation="eager")),
        "distilbert": T.DistilBertForMaskedLM(T.DistilBertConfig(
            vocab_size=len(tok), dim=32, n_layers=2, n_heads=2, hidden_dim=64, max_position_embeddings=48, initializer_range=0.2, dropout=0, attention_dropout=0, seq_classif_dropout=0)),
        "roberta": T.RobertaForMaskedLM(T.RobertaConfig(**shape, **still, **marks)),
        "xlm-roberta": T.XLMRobertaForMaskedLM(T.XLMRobertaConfig(**shape, **still, **marks)),
        "deberta": T.DebertaV2ForMaskedLM(T.DebertaV2Config(
            **shape, **still, relative_attention=True, position_buckets=8, pos_att_type=["p2c", "c2p"], share_att_key=True, norm_rel_ebd="layer_norm", type_vocab_size=0, position_biased_input=False, pooler_dropout=0, pad_token_id=tok.pad_token_id)),
        "ernie": T.ErnieForMaskedLM(T.ErnieConfig(**shape, **still)),
        "qwen3": T.Qwen3ForCausalLM(T.Qwen3Config(**decoder, head_dim=8)), "qwen3-scores": T.Qwen3ForSequenceClassification(T.Qwen3Config(**decoder, head_dim=8, num_labels=1)),
        "llama": T.LlamaForCausalLM(T.LlamaConfig(**decoder)), "llama-scores": T.LlamaForSequenceClassification(T.LlamaConfig(**decoder, num_labels=1)),
        "gemma3": T.Gemma3ForCausalLM(T.Gemma3TextConfig(**decoder, **gemma)), "gemma3-scores": T.Gemma3TextForSequenceClassification(T.Gemma3TextConfig(**decoder, **gemma, num_labels=1)),
        "gte": T.GteForMaskedLM(T.GteConfig(**shape, **still, **marks, type_vocab_size=2)),
        "jina": T.JinaEmbeddingsV3ForMaskedLM(T.JinaEmbeddingsV3Config(**shape, **still, **marks, type_vocab_size=2)),
        "nomic": T.NomicBertForMaskedLM(T.NomicBertConfig(**shape, **still, **marks)),
        "eurobert": T.EuroBertForMaskedLM(T.EuroBertConfig(**shape, **marks, num_key_value_heads=1, mask_token_id=tok.mask_token_id)),
        "t5": T.T5EncoderModel(T.T5Config(vocab_size=len(tok), d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0, classifier_dropout=0, pad_token_id=tok.pad_token_id, eos_token_id=tok.sep_token_id, decoder_start_token_id=0)),
    }  # fmt: skip
    for name, model in made.items():
        model.save_pretrained(name)
        tok.save_pretrained(name)
    return list(made)


class Draw:
    def __init__(self, seed, families):
        self.random = random.Random(seed)
        self.rows = self.one(6, 8, 12)
        self.kind = self.one("dense", "dense", "dense", "cross", "sparse", "vectors")
        self.family = self.one(*[f for f in families if (f in HEADS if self.kind == "sparse" else f not in NOT[self.kind])])
        self.others = self.one(0, 1, 2, 3)  # negatives of a row
        self.size = 32  # of embeddings
        self.guiding = None  # options of guides, which are all datasets'
        torch.manual_seed(seed)

    def one(self, *options):
        return self.random.choice(options)

    def maybe(self, **options):
        """Some of these, each with one of its values."""
        return {k: self.one(*values) for k, values in options.items() if self.one(True, False)}

    def texts(self, n=None):
        most = self.one(12, 12, 60)  # more than families have positions for
        return [" ".join(self.one(*WORDS) for _ in range(self.random.randint(2, most))) for _ in range(n or self.rows)]

    def numbers(self, n, top=1.0):
        return [self.random.random() * top for _ in range(n)]

    def data(self, *columns, **more):
        return datasets.Dataset.from_dict({c: self.texts() for c in columns} | more)

    def pairs(self, most=3):
        return self.data("anchor", "positive", *["negative", "negative_1", "negative_2"][: min(most, self.others)])

    def scored(self):
        return self.data("a", "b", score=self.numbers(self.rows))

    def labelled(self):
        return self.data("a", "b", label=[self.random.randint(0, 1) for _ in range(self.rows)])

    def taught(self, scores, n):
        """Rows with n negatives, and so many scores."""
        columns = self.numbers(self.rows, 3) if scores == 1 else [self.numbers(scores, 3) for _ in range(self.rows)]
        return self.data("query", "positive", *[f"negative_{i}" for i in range(n)], score=columns)

    def margins(self):
        n = self.one(1, 1, 2, 3)
        return self.taught(self.one(n, n + 1), n)

    def lists(self):
        sizes = [self.random.randint(2, 5) for _ in range(self.rows)]
        return self.data("query", docs=[self.texts(n) for n in sizes], labels=[[self.random.randint(0, 3) for _ in range(n)] for n in sizes])

    def model(self):
        if self.kind == "cross":
            return st.CrossEncoder(self.family, device="cpu")
        if self.kind == "sparse":
            return st.SparseEncoder(modules=[MLMTransformer(self.family), SpladePooling("max", self.one("relu", "log1p_relu"))], device="cpu")
        if self.kind == "vectors":
            return self.late()
        pooling = Pooling(32, pooling_mode=self.one("mean", "lasttoken" if self.family in CAUSAL else "cls"), include_prompt=self.one(True, True, False))
        modules = [Transformer(self.family, **self.one({}, {}, {"max_seq_length": 9})), pooling]
        for size in self.one([], [], [24], [48, 20]):
            modules.append(Dense(self.size, size, bias=self.one(True, False), activation_function=self.one(torch.nn.Tanh(), torch.nn.Identity(), torch.nn.GELU())))
            self.size = size
        modules += self.one([], [], [Normalize()])
        options = self.maybe(similarity_fn_name=["cosine", "dot"], prompts=[{"query": "fish ", "document": "road "}])
        return st.SentenceTransformer(modules=modules, device="cpu", **options)

    def late(self):
        options = self.one({}, {"query_length": 12, "document_length": 14}) | self.one({}, {}, {"query_expansion": {"strategy": self.one("fixed", "min"), "attend": self.one(True, False), "length": self.one(7, 12)}})
        modules, size = [BaseTransformer(self.family, **options)], 32
        for to in self.one([], [12], [24, 16]):
            modules.append(Dense(size, to, bias=False, activation_function=torch.nn.Identity(), module_input_name="token_embeddings"))
            size = to
        mask = MultiVectorMask(**self.one({}, {"skiplist_words": ["fish", "no such token"], **self.maybe(skiplist_tasks=[["query", "document"]])}))
        modules += [mask, Normalize(module_input_name="token_embeddings")]
        return st.MultiVectorEncoder(modules=modules, device="cpu", **self.maybe(similarity_fn_name=["maxsim", "meanmaxsim"], prompts=[{"query": "fish ", "document": "road "}]))

    def adapt(self, model):
        """Gives it an adapter that has been trained."""
        model.add_adapter(peft.LoraConfig(r=self.one(2, 4), lora_alpha=self.one(4, 8), lora_dropout=0.0, target_modules="all-linear", use_rslora=self.one(False, True)))
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.data.normal_(0, 0.1)

    def loss(self):
        """A loss of the kind of model, and its data."""
        return getattr(self, self.kind)()

    def dense(self):
        distances = {"distance_metric": [L.SiameseDistanceMetric.EUCLIDEAN, L.SiameseDistanceMetric.MANHATTAN, L.SiameseDistanceMetric.COSINE_DISTANCE], "margin": [0.3, 0.8]}
        hard = L.BatchHardTripletLossDistanceFunction
        of = self.one("ranking", "ranking", "guided", "pairs", "labels", "triplet", "classes", "margins", "distill", "teacher", "mega", "orthogonal", "symmetric")
        if of == "ranking":
            options = self.one({"similarity_fct": util.cos_sim, "scale": self.one(1.0, 10.0, 20.0)}, {"similarity_fct": util.dot_score, "scale": 0.1})
            ways = [("query_to_doc", "doc_to_query"), ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")]
            options |= self.maybe(directions=ways, hardness_mode=["in_batch_negatives", "hard_negatives", "all_negatives"])
            if options.get("directions") == ways[0]:
                options |= self.maybe(partition_mode=["per_direction"])
            if "hardness_mode" in options:
                options["hardness_strength"] = 2.0
            cached = self.one({}, {"mini_batch_size": self.one(1, 3, 5)})
            make = L.CachedMultipleNegativesRankingLoss if cached else L.MultipleNegativesRankingLoss
            return self.shorter(lambda m: make(m, **options, **cached)), self.pairs()
        if of == "guided":
            options = self.maybe(temperature=[0.05, 0.2], margin=[0.05, 0.1], margin_strategy=["absolute", "relative"], contrast_anchors=[False], contrast_positives=[False])
            options = self.guiding = options if self.guiding is None else self.guiding
            cached = self.one({}, {"mini_batch_size": 3})
            make = L.CachedGISTEmbedLoss if cached else L.GISTEmbedLoss
            return self.shorter(lambda m: make(m, st.SentenceTransformer(self.family, device="cpu"), **options, **cached)), self.pairs(3 if cached else 1)
        if of == "pairs":
            make, options = self.one((L.CoSENTLoss, self.maybe(scale=[5.0, 10.0])), (L.AnglELoss, self.maybe(scale=[5.0])), (L.CosineSimilarityLoss, {}))
            return self.shorter(lambda m: make(m, **options)), self.scored()
        if of == "labels":
            make, options = self.one(L.ContrastiveLoss, L.OnlineContrastiveLoss), self.maybe(**distances)
            return lambda m: make(m, **options), self.labelled()
        if of == "triplet":
            options = self.maybe(distance_metric=[L.TripletDistanceMetric.COSINE, L.TripletDistanceMetric.EUCLIDEAN, L.TripletDistanceMetric.MANHATTAN], triplet_margin=[0.5, 3])
            return lambda m: L.TripletLoss(m, **options), self.data("anchor", "positive", "negative")
        if of == "classes":
            make = self.one(L.BatchHardTripletLoss, L.BatchHardSoftMarginTripletLoss, L.BatchSemiHardTripletLoss, L.BatchAllTripletLoss)
            options = self.maybe(distance_metric=[hard.cosine_distance, hard.eucledian_distance]) | ({} if make is L.BatchHardSoftMarginTripletLoss else self.maybe(margin=[0.2, 2]))
            return lambda m: make(m, **options), self.data("text", label=[i % 3 for i in range(self.rows)])
        if of in ("margins", "distill"):
            options, n = {"similarity_fct": self.one(util.pairwise_cos_sim, util.pairwise_dot_score)}, self.one(1, 2, 3)
            if of == "margins":
                return self.shorter(lambda m: L.MarginMSELoss(m, **options)), self.margins()
            return self.shorter(lambda m: L.DistillKLDivLoss(m, temperature=0.5, **options)), self.taught(n + 1, n)
        if of == "teacher":
            return L.MSELoss, self.data("text", label=[self.numbers(self.size) for _ in range(self.rows)])
        if of == "mega":
            options = self.maybe(positive_margin=[0.5, 0.9], negative_margin=[0.1, 0.5], use_mini_batched_version=[False], mini_batch_size=[2])
            return lambda m: L.MegaBatchMarginLoss(m, **options), self.data("anchor", "positive")
        if of == "orthogonal":
            options = self.maybe(mean_weight=[0.5, 2.0], second_moment_weight=[0.5], aggregation=["mean", "sum"])
            return lambda m: L.GlobalOrthogonalRegularizationLoss(m, **options), self.pairs()
        return self.shorter(lambda m: L.MultipleNegativesSymmetricRankingLoss(m, scale=10.0)), self.data("anchor", "positive")

    def shorter(self, loss):
        if self.one(True, True, False):
            return loss
        options = self.maybe(matryoshka_weights=[[1, 0.5, 2]])
        return lambda m: L.MatryoshkaLoss(m, loss(m), [self.size, 16, 7], **options)

    def cross(self):
        options = self.maybe(activation_fn=[torch.nn.Sigmoid(), torch.nn.Identity()])
        of = self.one("labels", "scores", "margins", "ranking", "lists", "lists", "lists")
        if of == "labels":
            options |= self.maybe(pos_weight=[torch.tensor(3.0)])
            return lambda m: C.BinaryCrossEntropyLoss(m, **options), self.labelled()
        if of == "scores":
            return lambda m: C.MSELoss(m, **options), self.scored()
        if of == "margins":
            return lambda m: C.MarginMSELoss(m, **options), self.margins()
        if of == "ranking":  # with all other rows' documents, which are not drawn
            make = self.one(C.MultipleNegativesRankingLoss, C.CachedMultipleNegativesRankingLoss)
            return lambda m: make(m, num_negatives=None, **options), self.pairs()
        make = self.one(C.ListNetLoss, C.ListMLELoss, C.PListMLELoss, C.RankNetLoss, C.LambdaLoss, C.ADRMSELoss)
        if make in (C.ListMLELoss, C.PListMLELoss):
            options |= self.maybe(respect_input_order=[False])
        if make in (C.RankNetLoss, C.LambdaLoss):
            options |= self.maybe(k=[2, 3], sigma=[2.0])
        if make is C.LambdaLoss:
            options["weighting_scheme"] = self.one(C.NDCGLoss1Scheme(), C.NDCGLoss2Scheme(), C.NDCGLoss2PPScheme(mu=3), C.LambdaRankScheme())
        if make is C.ADRMSELoss:
            options |= self.maybe(alpha=[2.0])
        return lambda m: make(m, **options), self.lists()

    def sparse(self):
        make, rows = self.one(
            (S.SparseMultipleNegativesRankingLoss, self.pairs), (S.SparseMarginMSELoss, self.margins), (S.SparseDistillKLDivLoss, lambda: self.taught(3, 2)), (S.SparseCoSENTLoss, self.scored),
            (S.SparseAnglELoss, self.scored), (S.SparseCosineSimilarityLoss, self.scored), (S.SparseTripletLoss, lambda: self.data("anchor", "positive", "negative")))  # fmt: skip
        options = self.one({"query_regularizer_weight": 0.02}, {"query_regularizer_weight": 0.02, "document_regularizer_threshold": 5, "query_regularizer_threshold": 40}, {"use_document_regularizer_only": True})
        return lambda m: S.SpladeLoss(m, make(m), document_regularizer_weight=0.01, **options), rows()

    def vectors(self):
        return self.one(
            (V.MultiVectorMultipleNegativesRankingLoss, self.pairs()), (V.CachedMultiVectorMultipleNegativesRankingLoss, self.pairs()),
            (V.MultiVectorDistillKLDivLoss, self.taught(3, 2)), (V.MultiVectorMarginMSELoss, self.margins()))  # fmt: skip

    def sample(self, documents):
        """A query, its positives and others; or all candidates, of which a positive may be missing."""
        texts = list(dict.fromkeys(self.texts(9)))
        query, positives, others = texts[0], texts[1 : 2 + len(texts) % 3], texts[4:]
        if documents:
            all = others + positives[self.one(0, 1) :]
            return {"query": query, "positive": positives, "documents": self.random.sample(all, len(all))}
        return {"query": query, "positive": positives, "negative": others}

    def evaluator(self, model):
        kinds, more = {"dense": (E, ""), "sparse": (SE, "Sparse"), "vectors": (VE, "MultiVector"), "cross": (CE, "CrossEncoder")}, self.maybe(name=["x"])
        of, n = lambda name: getattr(kinds[self.kind][0], kinds[self.kind][1] + name + "Evaluator"), self.random.randint(4, 14)
        if self.kind == "cross":
            if self.one(True, False):
                return of("Correlation")(list(zip(self.texts(n), self.texts(n))), self.numbers(n), **more)
            documents = self.one(True, False)
            return of("Reranking")([self.sample(documents) for _ in range(n)], always_rerank_positives=self.one(True, not documents), **more)
        if self.kind == "dense":
            more |= self.maybe(truncate_dim=[3, 16])
        paraphrases = ["paraphrases"] if self.kind == "dense" and model.similarity_fn_name == "cosine" else []  # as it always compares
        alike = {"dense": ["sts", "pairs", *paraphrases], "sparse": ["sts", "pairs"], "vectors": ["distillation"]}[self.kind]
        task = self.one("retrieval", "triplets", "candidates", *alike)
        if task == "retrieval":
            corpus = {f"d{i}": text for i, text in enumerate(self.texts(3 * n))}
            judged = {f"q{i}": set(self.random.sample(list(corpus), self.random.randint(1, 4))) for i in range(n)}
            return of("InformationRetrieval")(dict(zip(judged, self.texts(n))), corpus, judged, **more, **self.maybe(query_prompt=["wind "], corpus_prompt=["rain fish "]))
        if task == "triplets":
            return of("Triplet")(self.texts(n), self.texts(n), self.texts(n), **more)
        if task == "candidates":
            compare = {} if self.kind == "vectors" else {"similarity_fct": util.dot_score if model.similarity_fn_name == "dot" else util.cos_sim}
            return of("Reranking")([self.sample(documents=False) for _ in range(n)], **compare, **more)
        if task == "distillation":
            return of("Distillation")(self.texts(n), self.texts(n), self.numbers(n), **more)
        if task == "sts":
            return of("EmbeddingSimilarity")(self.texts(n), self.texts(n), self.numbers(n), **more)
        if task == "pairs":
            return of("BinaryClassification")(self.texts(n), self.texts(n), [i % 2 for i in range(n)], **more)
        texts = {str(i): text for i, text in enumerate(self.texts(3 * n))}
        return E.ParaphraseMiningEvaluator(texts, [(str(i), str(i + 1)) for i in range(0, 3 * n - 1, 2)], **more)

    def arguments(self, model, rows):
        first = rows["first"] if isinstance(rows, dict) else rows
        columns = [c for c in first.column_names if c not in NUMBERS and c != "docs"]
        # Adam makes steps of gradients' signs where these are small, and of noise, unless epsilon is large.
        said = {"learning_rate": self.one(1e-3, 3e-3), "adam_epsilon": 1e-3, "per_device_train_batch_size": self.rows} | self.one({"max_steps": 6}, {"num_train_epochs": self.one(3, 5)})
        if self.kind != "cross":
            said |= self.one({}, {}, {"prompts": "wind rain "}, {"prompts": {columns[0]: "bird "}}, {"prompts": {c: "fish " * min(3, i) for i, c in enumerate(columns, 1)}})
        said |= self.one({}, {}, {"warmup_steps": 2}, {"warmup_ratio": 0.3}) | self.one(
            {}, {"lr_scheduler_type": "cosine"}, {"lr_scheduler_type": "cosine_with_restarts", "lr_scheduler_kwargs": {"num_cycles": 2}}, {"lr_scheduler_type": "constant"},
            {"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"power": 2.0}}, {"lr_scheduler_type": "constant_with_warmup"}, {"lr_scheduler_type": "inverse_sqrt"},
            {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 1e-4}}, {"lr_scheduler_type": "warmup_stable_decay", "lr_scheduler_kwargs": {"num_decay_steps": 2}})  # fmt: skip
        if self.family not in RENAMED and self.one(True, False, False):
            named = [".".join(n.split(".")[-3:]) for n, p in model.named_parameters() if p.requires_grad]
            patterns = [r"embed", r"\.bias$", r"[Ll]ayers?\.1\.", r"weight", r"norm|Norm", r"\.norm\.", "lora_B", *map(re.escape, self.random.sample(named, min(3, len(named))))]
            rates = {p: self.one(1e-4, 1e-2) for p in self.random.sample(patterns, 2) if any(re.search(p, n) for n, q in model.named_parameters() if q.requires_grad)}
            said |= {"learning_rate_mapping": rates} if rates else {}
        said |= self.maybe(weight_decay=[0.01, 0.5], adam_beta1=[0.8], adam_beta2=[0.95], max_grad_norm=[0.0, 0.1, 5.0])
        if self.one(*[False] * 6, True):
            said |= {"optim": "sgd", "learning_rate": 0.02}
        if isinstance(rows, dict):
            said["multi_dataset_batch_sampler"] = "round_robin"
        elif self.one(False, False, True):  # as many rows to a batch, since a step's batches count alike there, and not by rows
            said |= {"per_device_train_batch_size": self.rows // 2} | self.one({}, {"gradient_accumulation_steps": 2})
        elif self.one(False, False, True):
            said |= {"per_device_train_batch_size": 5} | self.maybe(dataloader_drop_last=[True])
        return said

    def trainer(self):
        """A model, its data, its loss of the model, more of its trainer's arguments, and an evaluator."""
        model = self.model()
        adapted = self.kind == "dense" and self.family not in RENAMED and self.one(False, False, True)  # others begin with none, or call layers otherwise
        if adapted:
            self.adapt(model)
        loss, rows = self.loss()
        if self.kind in ("dense", "cross") and self.one(False, False, True):
            second, more = self.loss()
            first, rows = loss, {"first": rows, "second": more}
            loss = lambda m: {"first": first(m), "second": second(m)}
        if not adapted and self.one(False, False, False, True):
            for name, p in model.named_parameters(remove_duplicate=False):
                lowest = ".block.0." in name if ".block." in name else ".layer.0." in name or ".layers.0." in name
                if lowest or any(below in name for below in (".embeddings", ".embed_tokens", ".shared", "relative_attention_bias", "encoder.rel_embeddings", "encoder.LayerNorm")):
                    p.requires_grad = False
        said = self.arguments(model, rows)
        if isinstance(rows, datasets.Dataset) and "docs" in rows.column_names:  # means over a batch's documents, or pairs of them
            said.pop("gradient_accumulation_steps", None)
        return model, rows, loss, said, self.evaluator(model)
