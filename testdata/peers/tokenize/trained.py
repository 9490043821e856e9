"""Random tokenizer.json files: models that Hugging Face's trainers make of hard lines, in random pipelines. Some name what contraflow does not have.

    files(seed)    yields them as objects, without end
"""
import json
import random

from tokenizers import Tokenizer
from tokenizers import models as M
from tokenizers import pre_tokenizers as P
from tokenizers import trainers as T

import families
import hardtext

SPECIALS = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
TOKENS = ["<x>", "the", "ing", " the", "[unused1]", "中文", "é", "e\u0301", "İ", "<|im_end|>", "\n\n", "  ", "▁the", "ﬁ", "A", "👩‍💻"]
BEHAVIORS = ["Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"]
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


class Files:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.maps = []
        for rule in ("nmt_nfkc", "nfkc", "nfkc_cf", "nmt_nfkc_cf"):
            _, data = families.sentencepiece_model(["word"], 9, model_type="char", normalization_rule_name=rule)
            self.maps.append(families.precompiled(data))

    def maybe(self, p=0.5):
        return self.rng.random() < p

    def several(self, make, depth):
        return [part for _ in range(self.rng.randrange(4)) if (part := make(depth + 1))]

    def normalizer(self, depth=0):
        pick, maybe = self.rng.choice, self.maybe
        kind = pick(["bert", "form", "form", "case", "strip", "text", "regex", "prepend", "map", "sequence", "sequence", None, None, None])
        if kind == "bert":
            return {"type": "BertNormalizer", "clean_text": maybe(), "handle_chinese_chars": maybe(), "strip_accents": pick([None, True, False]), "lowercase": maybe()}
        if kind == "form":
            return {"type": pick(["NFC", "NFD", "NFKC", "NFKD"])}
        if kind == "case":
            return {"type": pick(["Lowercase", "StripAccents"] * 8 + ["Nmt", "ByteLevel"])}
        if kind == "strip":
            return {"type": "Strip", "strip_left": maybe(), "strip_right": maybe()}
        if kind == "text":
            return families.replace({"String": pick([" ", "  ", "a", "the", "e\u0301", "\n", "``", "▁", "中"])}, pick(["", "▁", " ", "xx", '"', "a b", "\u0301"]))
        if kind == "regex":
            return families.replace({"Regex": pick([" {2,}", r"\s{2,}|[\n\r\t]"] * 6 + [r"\s+", r"\p{M}"])}, pick(["", " ", "▁", "x"]))
        if kind == "prepend":
            return {"type": "Prepend", "prepend": pick(["▁", " ", "ab", "\u0301"])}
        if kind == "map":
            return pick(self.maps)
        if kind == "sequence" and depth < 2:
            return families.sequence("Sequence", "normalizers", *self.several(self.normalizer, depth))
        return None

    def byte_level(self):
        return families.byte_level(self.maybe(), self.maybe(), self.maybe())

    def pre_tokenizer(self, depth=0):
        pick, maybe = self.rng.choice, self.maybe
        kind = pick(["plain", "plain", "plain", "digits", "text", "text", "regex", "punctuation", "metaspace", "metaspace", "metaspace", "sequence", "sequence", "sequence", None, None])
        if kind == "plain":
            return {"type": pick(["BertPreTokenizer", "Whitespace", "WhitespaceSplit"] * 8 + ["UnicodeScripts"])}
        if kind == "digits":
            return families.digits(maybe())
        if kind == "text":
            return {"type": "Split", "pattern": {"String": pick([" ", "  ", "a", "▁", ".", "e", "\n", "中"])}, "behavior": pick(BEHAVIORS), "invert": maybe(0.4)}
        if kind == "regex":
            return families.regex_split(pick(list(families.REGEXES.values()) * 4 + [r"\d"])) | {"behavior": pick(["Isolated"] * 9 + BEHAVIORS)}
        if kind == "punctuation":
            return {"type": "Punctuation", "behavior": pick(BEHAVIORS)}
        if kind == "metaspace":
            return families.metaspace(pick(["always", "first", "never"]), maybe(0.7)) | {"replacement": pick(["▁"] * 6 + ["_", "é"])}
        if kind == "sequence" and depth < 2:
            return families.sequence("Sequence", "pretokenizers", *self.several(self.pre_tokenizer, depth))
        return None

    def model(self, byte_level, normalizer, pre_tokenizer):
        """Trained in its pipeline, where that can be, and then changed."""
        rng, pick, maybe = self.rng, self.rng.choice, self.maybe
        kind = "BPE" if byte_level else pick(["WordPiece", "BPE", "BPE", "Unigram"])
        options = {"vocab_size": pick([60, 150, 400, 900]), "special_tokens": SPECIALS, "show_progress": False}
        if kind == "WordPiece":
            model = M.WordPiece(unk_token="[UNK]", max_input_chars_per_word=pick([100, 100, 20, 5, 1, 0]))
            trainer = T.WordPieceTrainer(continuing_subword_prefix=pick(["##", "##", "", "#", "▁"]), **options)
        elif kind == "BPE":
            model = M.BPE(fuse_unk=maybe(), ignore_merges=maybe(0.3), **({"unk_token": "[UNK]"} if maybe() else {}))
            trainer = T.BpeTrainer(limit_alphabet=pick([50, 200, 1000]), initial_alphabet=sorted(P.ByteLevel.alphabet()) if byte_level and maybe(0.8) else [], **options)
        else:
            model, trainer = M.Unigram(), T.UnigramTrainer(unk_token="[UNK]", **options)
        tokenizer = Tokenizer(model)
        setup = json.loads(tokenizer.to_str()) | {"normalizer": normalizer, "pre_tokenizer": pre_tokenizer}
        texts = hardtext.lines(rng.randrange(1 << 30), 120)
        try:
            tokenizer = Tokenizer.from_str(json.dumps(setup))
            tokenizer.train_from_iterator(texts, trainer)
        except Exception:
            tokenizer = Tokenizer(model)
            tokenizer.train_from_iterator(texts, trainer)
        trained = json.loads(tokenizer.to_str())["model"]
        vocab = trained["vocab"]
        if kind != "WordPiece" and maybe(0.4):
            names = [f"<0x{b:02X}>" for b in range(256) if maybe(0.97)]
            if kind == "BPE":
                for name in names:
                    vocab.setdefault(name, len(vocab))
            else:
                have = {token for token, _ in vocab}
                vocab += [[name, -rng.random() * 20] for name in names if name not in have]
            trained["byte_fallback"] = maybe(0.8)
        if kind == "BPE" and maybe(0.3):
            ids = list(vocab.values())
            rng.shuffle(ids)
            trained["vocab"] = dict(zip(vocab, ids))
        if kind == "BPE" and maybe(0.2):
            rng.shuffle(trained["merges"])
        if kind == "WordPiece" and maybe(0.15):  # ids with gaps
            trained["vocab"] = {token: 2 * id + 5 for token, id in vocab.items()}
        return trained

    def post_processor(self, ids):
        pick = self.rng.choice
        cls, sep = ["[CLS]", ids["[CLS]"]], ["[SEP]", ids["[SEP]"]]
        special = {"[CLS]": cls[1], "[SEP]": sep[1]}
        parts = [{"type": "BertProcessing", "sep": sep, "cls": cls},
                 {"type": "RobertaProcessing", "sep": sep, "cls": cls, "trim_offsets": True, "add_prefix_space": False},
                 families.template("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", special),
                 families.template("[CLS]:3 $A:1", "$B:2 [CLS] $A", special), self.byte_level()]
        return pick([None, *parts, *parts, families.sequence("Sequence", "processors", self.byte_level(), pick(parts))])

    def file(self):
        rng, pick, maybe = self.rng, self.rng.choice, self.maybe
        byte_level = maybe(0.35)
        normalizer = self.normalizer()
        if byte_level:
            first = self.pre_tokenizer(1)
            pre_tokenizer = families.sequence("Sequence", "pretokenizers", first, self.byte_level()) if first and maybe(0.6) else self.byte_level()
        else:
            pre_tokenizer = self.pre_tokenizer()
        model = self.model(byte_level, normalizer, pre_tokenizer)
        vocab = model["vocab"]
        ids = vocab if isinstance(vocab, dict) else {token: i for i, (token, _) in enumerate(vocab)}
        added = []
        for token in dict.fromkeys(pick([[], SPECIALS, SPECIALS]) + rng.sample(TOKENS + [t for t in rng.sample(list(ids), 3) if t], pick([0, 0, 2, 5]))):
            flags = {flag: maybe(0.35) for flag in FLAGS}
            if token in SPECIALS and maybe(0.8):
                flags = dict.fromkeys(FLAGS, False) | {"special": True, "lstrip": token == "[MASK]"}
            added.append({"id": 0, "content": token, **flags})
        return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": normalizer, "pre_tokenizer": pre_tokenizer,
                "post_processor": self.post_processor(ids), "decoder": None, "model": model}


def files(seed):
    source = Files(seed)
    while True:
        try:
            yield source.file()
        except BaseException as e:  # a trainer panics where a pipeline leaves no text
            if not isinstance(e, Exception) and type(e).__name__ != "PanicException":
                raise
