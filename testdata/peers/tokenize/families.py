"""Tokenizers as the model families have them, trained on local text: their components are those of the published
tokenizer.json files (or of what transformers 5 writes), their vocabularies are our own. The golden script, the
comparison and the benchmark draw from here.

    build(folder, vocab_size, megabytes)    writes folder/NAME/tokenizer.json for each family, returns the names

Needs tokenizers, and sentencepiece for the normalization map, Unigram and SentencePiece's BPE. Written for tokenizers
0.23.3, sentencepiece 0.2.
"""
import base64
import io
import json
import random
import struct
import subprocess
from pathlib import Path

import sentencepiece
from tokenizers import Regex, Tokenizer
from tokenizers import models as M
from tokenizers import normalizers as N
from tokenizers import pre_tokenizers as P
from tokenizers import trainers as T

import hardtext

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace("{1,3}", "")
QWEN35 = QWEN.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]+", r"[^\s\p{L}\p{M}\p{N}]+")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
O200K = TEKKEN.replace(r"\p{N}|", r"\p{N}{1,3}|").replace(r"\p{M}]+|", r"\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|").replace(r"\p{M}]*|", r"\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|")
REGEXES = {"GPT-2": GPT2, "Llama 3": LLAMA3, "Qwen": QWEN, "Qwen 3.5": QWEN35, "Tekken": TEKKEN, "o200k": O200K}


def corpus(megabytes):
    """Go sources, and words of many scripts with the frequencies of words."""
    root = Path(subprocess.run(["go", "env", "GOROOT"], capture_output=True, text=True, check=True).stdout.strip())
    rng = random.Random(1)
    texts, size = [], 0
    for path in sorted(root.glob("src/*/*.go")) + sorted(root.glob("src/*/*/*.go")):
        if size > megabytes * 1e6:
            break
        text = path.read_text(encoding="utf-8", errors="ignore").replace("\0", "")
        size += len(text)
        lines = text.split("\n")
        texts += ["\n".join(lines[i:i + 20]) for i in range(0, len(lines), 20)]
    scripts = [(0x61, 0x7B), (0xE0, 0xFF), (0x3B1, 0x3C9), (0x430, 0x450), (0x5D0, 0x5EB), (0x627, 0x64B), (0x905, 0x93A),
               (0xE01, 0xE2F), (0x3041, 0x3097), (0x30A1, 0x30FB), (0x4E00, 0x4F00), (0xAC00, 0xAD00), (0x1F600, 0x1F640)]
    words = ["".join(chr(rng.randrange(*s)) for _ in range(rng.randrange(1, 9))) for s in scripts for _ in range(400)]
    rng.shuffle(words)
    weights = [1 / (i + 3) for i in range(len(words))]
    spaces = [" "] * 30 + ["  ", "\n", "\n\n", "    ", "\t", ", ", ". ", "", "-"]
    for _ in range(int(200 * megabytes)):
        texts.append("".join(w + rng.choice(spaces) for w in rng.choices(words, weights, k=100)))
    return texts


def special(content, **flags):
    return {"id": 0, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": True, **flags}


def byte_level_bpe(texts, size):
    """A byte-level BPE model, as its JSON without special tokens."""
    t = Tokenizer(M.BPE())
    t.pre_tokenizer = P.Sequence([P.Split(Regex(LLAMA3), "isolated"), P.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.train_from_iterator(texts, T.BpeTrainer(vocab_size=size, min_frequency=2, show_progress=False,
                                              initial_alphabet=sorted(P.ByteLevel.alphabet())))
    return json.loads(t.to_str())["model"]


def sentencepiece_model(texts, size, **options):
    """A trained model's pieces with their scores, and its normalization map."""
    out = io.BytesIO()
    lines = [line for text in texts for line in text.split("\n") if line and len(line.encode()) < 4000]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=out, vocab_size=size, hard_vocab_limit=False,
        num_threads=2, minloglevel=2, max_sentence_length=5000, **options)
    processor = sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())
    pieces = [(processor.id_to_piece(i), processor.get_score(i)) for i in range(processor.get_piece_size())]
    return pieces, charsmap(out.getvalue())


def fields(message):
    """The fields of a protobuf message, of the types that occur."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
        else:
            size = {1: lambda: 8, 2: varint, 5: lambda: 4}[key & 7]()
            yield key >> 3, message[at:at + size]
            at += size


def charsmap(model):
    """precompiled_charsmap (field 2) of normalizer_spec (field 3)."""
    return dict(fields(dict(fields(model))[3])).get(2, b"")


def nmt_nfkc():
    """The normalizer of XLM-RoBERTa."""
    _, data = sentencepiece_model(["word"], 9, model_type="char", normalization_rule_name="nmt_nfkc")
    return precompiled(data)


def precompiled(data):
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}


def merges_of(pieces):
    """The merges of a SentencePiece BPE model, as transformers derives them: every way to make a piece of two."""
    rank = {piece: i for i, (piece, _) in enumerate(pieces)}
    merges = []
    for piece, _ in pieces:
        local = [(piece[:i], piece[i:]) for i in range(1, len(piece)) if piece[:i] in rank and piece[i:] in rank]
        merges += sorted(local, key=lambda pair: (rank[pair[0]], rank[pair[1]]))
    score = dict(pieces)
    return [list(m) for m in sorted(merges, key=lambda m: -score[m[0] + m[1]])]


def bpe(vocab, merges, **options):
    return {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocab, "merges": merges, **options}


def template(single, pair, ids):
    def pieces(text):
        out = []
        for part in text.split():
            name, _, kind = part.partition(":")
            what = {"id": name.lstrip("$"), "type_id": int(kind or 0)}
            out.append({"Sequence" if name.startswith("$") else "SpecialToken": what})
        return out

    return {"type": "TemplateProcessing", "single": pieces(single), "pair": pieces(pair),
            "special_tokens": {name: {"id": name, "ids": [id], "tokens": [name]} for name, id in ids.items()}}


def sequence(kind, key, *parts):
    return {"type": kind, key: list(parts)}


def regex_split(regex):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def digits(one):
    return {"type": "Digits", "individual_digits": one}


def byte_level(prefix=False, trim=True, regex=True):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": trim, "use_regex": regex}


def metaspace(scheme="always", split=True):
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}


def replace(pattern, content):
    return {"type": "Replace", "pattern": pattern, "content": content}


def families(texts, size):
    """Yields the name and the tokenizer.json, as an object, of each family."""
    def file(model, specials, normalizer=None, pre_tokenizer=None, post_processor=None):
        """Special tokens that the model has keep their ids; others get those after its own."""
        return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": specials, "normalizer": normalizer,
                "pre_tokenizer": pre_tokenizer, "post_processor": post_processor, "decoder": None, "model": model}

    base = byte_level_bpe(texts + hardtext.lines(100, 4000), size)
    letters, merges = base["vocab"], base["merges"]

    def with_specials(front, back=()):
        names = [*front, *sorted(letters, key=letters.get), *back]
        return {name: i for i, name in enumerate(names)}

    # RoBERTa's file has merges as texts and a model without type; <s> and the like are looked for in the normalized text.
    vocab = with_specials(["<s>", "<pad>", "</s>", "<unk>"], ["<mask>"])
    model = {k: v for k, v in bpe(vocab, [" ".join(m) for m in merges], continuing_subword_prefix="", end_of_word_suffix="").items()
             if k != "type"}
    yield "roberta", file(
        model, [special(s, normalized=True) for s in ("<s>", "<pad>", "</s>", "<unk>")] + [special("<mask>", lstrip=True)],
        None, byte_level(), {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0], "trim_offsets": True,
                             "add_prefix_space": False})
    yield "roberta-prefix", file(
        bpe(vocab, merges, unk_token="<unk>"), [special("<mask>", lstrip=True, normalized=True, single_word=True)],
        None, byte_level(prefix=True), sequence("Sequence", "processors", byte_level()))

    # ModernBERT: runs of spaces and e-mail addresses are added tokens that aren't special.
    vocab = with_specials(["|||IP_ADDRESS|||", "<|padding|>"])
    n = len(vocab)
    specials = [special("|||IP_ADDRESS|||", normalized=True, special=False), special("<|padding|>")]
    specials += [special(" " * k, normalized=True, special=False) for k in range(24, 1, -1)]
    specials += [special("|||EMAIL_ADDRESS|||", normalized=True, special=False), special("<|endoftext|>")]
    specials += [special("[UNK]"), special("[CLS]"), special("[SEP]"), special("[PAD]"), special("[MASK]", lstrip=True)]
    order = [s["content"] for s in specials if s["content"] not in vocab]
    cls, sep = n + order.index("[CLS]"), n + order.index("[SEP]")
    yield "modernbert", file(
        bpe(vocab, merges), specials, {"type": "NFC"}, byte_level(),
        template("[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]", {"[CLS]": cls, "[SEP]": sep}))

    n = len(letters)
    chat = [special("<|endoftext|>"), special("<|im_start|>"), special("<|im_end|>"),
            special("<tool_call>", special=False), special("<think>", special=False, single_word=True)]
    yield "qwen2", file(
        bpe(letters, merges, continuing_subword_prefix="", end_of_word_suffix=""), chat, {"type": "NFC"},
        sequence("Sequence", "pretokenizers", regex_split(QWEN), byte_level(trim=False, regex=False)), byte_level(trim=False, regex=False))
    yield "qwen3-embedding", file(
        bpe(letters, merges), chat, {"type": "NFC"},
        sequence("Sequence", "pretokenizers", regex_split(QWEN), byte_level(trim=False, regex=False)),
        sequence("Sequence", "processors", byte_level(trim=False, regex=False),
                 template("$A <|endoftext|>", "$A $B:1 <|endoftext|>:1", {"<|endoftext|>": n})))
    yield "qwen3.5", file(
        bpe(letters, merges), chat, {"type": "NFC"},
        sequence("Sequence", "pretokenizers", regex_split(QWEN35), byte_level(trim=False, regex=False)))

    # Llama 3: words that are tokens stay whole; here some have no merges.
    vocab = dict(letters)
    rng = random.Random(3)
    for word in ["Ġcontraflow", "interface", "Ġ" * 7, "ĊĊĊ", "Ġhttps", "12", "123"] + rng.sample(["Ġ" + w for w in hardtext.WORDS if w.isascii()], 20):
        vocab.setdefault(word, len(vocab))
    n = len(vocab)
    yield "llama3", file(
        bpe(vocab, merges, ignore_merges=True), [special("<|begin_of_text|>"), special("<|end_of_text|>"), special("<|eot_id|>")], None,
        sequence("Sequence", "pretokenizers", regex_split(LLAMA3), byte_level(regex=False)),
        sequence("Sequence", "processors", byte_level(regex=False),
                 template("<|begin_of_text|> $A", "<|begin_of_text|> $A <|begin_of_text|>:1 $B:1", {"<|begin_of_text|>": n})))
    vocab = with_specials(["<unk>", "<s>", "</s>", "[INST]", "<pad>"])
    yield "tekken", file(
        bpe(vocab, merges, ignore_merges=True), [special(s) for s in ("<unk>", "<s>", "</s>", "[INST]", "<pad>")], None,
        sequence("Sequence", "pretokenizers", regex_split(TEKKEN), byte_level(regex=False)),
        template("<s> $A", "<s> $A <s>:1 $B:1", {"<s>": 1}))

    yield "smollm2", file(
        bpe(letters, merges), [special("<|endoftext|>"), special("<|im_start|>")], None,
        sequence("Sequence", "pretokenizers", digits(True), byte_level()))

    # SentencePiece's BPE with byte fallback.
    pieces, _ = sentencepiece_model(
        texts, size, model_type="bpe", byte_fallback=True, normalization_rule_name="identity", add_dummy_prefix=False,
        remove_extra_whitespaces=False, split_digits=True, allow_whitespace_only_pieces=True, character_coverage=0.99)
    vocab = {piece: i for i, (piece, _) in enumerate(pieces)}
    merges = merges_of(pieces)
    llama = dict(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    controls = [special(s, normalized=True) for s in ("<unk>", "<s>", "</s>")]
    bos = template("<s> $A", "<s> $A <s>:1 $B:1", {"<s>": 1})
    yield "llama2", file(
        bpe(vocab, [" ".join(m) for m in merges], **llama), controls,
        sequence("Sequence", "normalizers", {"type": "Prepend", "prepend": "▁"}, replace({"String": " "}, "▁")), None, bos)
    eos = template("<s> $A </s>", "<s> $A </s> $B </s>", {"<s>": 1, "</s>": 2})
    yield "mistral", file(
        bpe(vocab, merges, **llama), [special(s) for s in ("<unk>", "<s>", "</s>", "[INST]", "[/INST]")], None,
        metaspace("first", split=False), eos)

    # Gemma: runs of line ends, of "▁", and HTML tags are tokens; unused ones, too.
    gemma = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "[multimodal]", "<unused0>"]
    own = [p for p, _ in pieces if p not in ("<unk>", "<s>", "</s>")]
    extra = ["\n" * k for k in range(1, 9)] + ["▁" * k for k in range(2, 9)] + ["<table>", "<h1>", "</b>", "\t", "\t\t", "<start_of_turn>"]
    vocab = {}
    for piece in gemma + own + extra:
        vocab.setdefault(piece, len(vocab))
    have = {tuple(m) for m in merges}
    more = [["\n" * i, "\n" * (k - i)] for k in range(2, 9) for i in range(1, k)]
    more += [["▁" * i, "▁" * (k - i)] for k in range(2, 9) for i in range(1, k)] + [["\t", "\t"]]
    more = [m for m in more if tuple(m) not in have and m[0] in vocab and m[1] in vocab]
    added = [special(s) for s in gemma[:5]] + [special(s, special=False) for s in (gemma[5:] + extra)]
    yield "gemma", file(
        bpe(vocab, more + merges, **llama), added, replace({"String": " "}, "▁"),
        {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
        template("<bos> $A", "<bos> $A <bos>:1 $B:1", {"<bos>": 2}))

    # XLM-RoBERTa: fairseq's order of the special tokens before SentencePiece's pieces.
    pieces, data = sentencepiece_model(texts, size, model_type="unigram", normalization_rule_name="nmt_nfkc", character_coverage=0.995)
    vocab = [["<s>", 0.0], ["<pad>", 0.0], ["</s>", 0.0], ["<unk>", 0.0]] + [list(p) for p in pieces[3:]] + [["<mask>", 0.0]]
    model = {"type": "Unigram", "unk_id": 3, "vocab": vocab, "byte_fallback": False}
    specials = [special(s) for s in ("<s>", "<pad>", "</s>", "<unk>")] + [special("<mask>", lstrip=True)]
    pair = template("<s> $A </s>", "<s> $A </s> </s> $B </s>", {"<s>": 0, "</s>": 2})
    old_model = {k: v for k, v in model.items() if k in ("unk_id", "vocab")}
    old_metaspace = {"type": "Metaspace", "replacement": "▁", "str_rep": "▁", "add_prefix_space": True}
    yield "xlm-roberta", file(old_model, specials, precompiled(data),
                              sequence("Sequence", "pretokenizers", {"type": "WhitespaceSplit"}, old_metaspace), pair)
    stripped = sequence("Sequence", "normalizers", precompiled(data), {"type": "Strip", "strip_left": False, "strip_right": True},
                        replace({"Regex": " {2,}"}, "▁"))
    yield "bge-m3", file(model, specials, stripped, metaspace(), pair)
    # T5 has bytes for what is unknown, and prepends to the beginning only.
    have = {p for p, _ in vocab}
    with_bytes = vocab + [[f"<0x{b:02X}>", -20.0] for b in range(256) if f"<0x{b:02X}>" not in have]
    yield "unigram-bytes", file({**model, "vocab": with_bytes, "byte_fallback": True}, specials, stripped, metaspace("first"), pair)

    # T5: no beginning, and sentinels at the end.
    t5 = [["<pad>", 0.0], ["</s>", 0.0], ["<unk>", 0.0]] + [list(p) for p in pieces[3:]] + [[f"<extra_id_{i}>", 0.0] for i in range(99, -1, -1)]
    t5 = file({"type": "Unigram", "unk_id": 2, "vocab": t5}, [special(s) for s in ("<pad>", "</s>", "<unk>", *(f"<extra_id_{i}>" for i in range(99, -1, -1)))],
              precompiled(data), sequence("Sequence", "pretokenizers", {"type": "WhitespaceSplit"}, old_metaspace),
              template("$A </s>", "$A </s> $B </s>", {"</s>": 1}))

    # MPNet is BERT with RoBERTa's special tokens.
    t = Tokenizer(M.WordPiece(unk_token="[UNK]"))
    t.normalizer, t.pre_tokenizer = N.BertNormalizer(), P.BertPreTokenizer()
    t.train_from_iterator(texts + hardtext.lines(100, 4000), T.WordPieceTrainer(vocab_size=size, limit_alphabet=900, show_progress=False,
                                                    special_tokens=["<s>", "<pad>", "</s>", "<unk>", "[UNK]"]))
    wordpiece = json.loads(t.to_str())
    wordpiece["model"]["vocab"]["<mask>"] = len(wordpiece["model"]["vocab"])
    yield "mpnet", file(
        wordpiece["model"], [special(s, normalized=True) for s in ("<s>", "<pad>", "</s>")] + [special("[UNK]"), special("<mask>", lstrip=True)],
        wordpiece["normalizer"], wordpiece["pre_tokenizer"],
        {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0], "trim_offsets": True, "add_prefix_space": False})
    yield "t5", t5

    # DeBERTa v3: SentencePiece's pieces behind other special tokens. As fine-tunes have it, made of the model's file; then as the class of
    # transformers 5 writes it; then with what that does on demand.
    vocab = [["[PAD]", 0.0], ["[CLS]", 0.0], ["[SEP]", 0.0], ["[UNK]", 0.0]] + [list(p) for p in pieces[3:]] + [["[MASK]", 0.0]]
    model = {"type": "Unigram", "unk_id": 3, "vocab": vocab, "byte_fallback": False}
    specials = [special(s) for s in ("[PAD]", "[CLS]", "[SEP]")] + [special("[UNK]", normalized=True), special("[MASK]")]
    pair = template("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", {"[CLS]": 1, "[SEP]": 2})
    strip = lambda left: {"type": "Strip", "strip_left": left, "strip_right": True}
    spaces = {"Regex": "\\s{2,}|[\\n\\r\\t]"}
    punctuation = {"type": "Punctuation", "behavior": "Isolated"}
    yield "deberta", file(model, specials, sequence("Sequence", "normalizers", strip(True), precompiled(data), replace({"Regex": " {2,}"}, " ")),
                          sequence("Sequence", "pretokenizers", metaspace()), pair)
    yield "deberta-class", file(model, specials, sequence("Sequence", "normalizers", replace(spaces, " "), {"type": "NFC"}, strip(False)),
                                sequence("Sequence", "pretokenizers", metaspace()), pair)
    yield "deberta-punct", file(
        model, specials, sequence("Sequence", "normalizers", {"type": "Lowercase"}, replace(spaces, " "), {"type": "NFC"}, strip(False)),
        sequence("Sequence", "pretokenizers", punctuation, metaspace()), pair)


def write(folder, file):
    """Writes tokenizer.json, and what makes its folder a model's."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(file, ensure_ascii=False), encoding="utf-8")
    (folder / "config.json").write_text('{"model_type": "none"}')
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")


def build(folder, vocab_size, megabytes, only=None):
    """Writes the tokenizers, or one of them, into folders of their own and returns their names."""
    names = []
    for name, file in families(corpus(megabytes), vocab_size):
        if only not in (None, name):
            continue
        ids = file["model"]["vocab"]
        ids = dict(ids) if isinstance(ids, dict) else {token: i for i, (token, _) in enumerate(ids)}
        for token in file["added_tokens"]:
            token["id"] = ids.setdefault(token["content"], len(ids))
        write(Path(folder) / name, file)
        names.append(name)
    return names
