#!/usr/bin/env python3
"""Writes the golden files of package tokenize for the model families: what Hugging Face says. Made with tokenizers 0.23.3,
sentencepiece 0.2.3, Go 1.26 (whose sources are part of the text that vocabularies are trained on).

    python make_families.py [--out DIR] [--seed 1] [--lines 80] [--variants 140] [--t5]

families.jsonl.gz  tokenizers as the families have them: hard lines with their ids, pairs truncated in each way; and each
                   regular expression, and the grapheme clusters, made visible in ids
t5.jsonl.gz        T5's, by itself, with a small normalization map; with --t5 nothing else is written
random.jsonl.gz    small random models in random pipelines
scores.json        numbers and what Unigram scores they are

A test can be pointed to another folder with such files, of another seed: CONTRAFLOW_TOKENIZE_GOLDEN.
"""
import argparse
import gzip
import json
import random
import sys
import tempfile
from pathlib import Path

from tokenizers import Tokenizer, pre_tokenizers

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "../../peers/tokenize"))
import clusters  # noqa: E402
import families  # noqa: E402
import hardtext  # noqa: E402

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, default=HERE)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--lines", type=int, default=80)
parser.add_argument("--variants", type=int, default=140)
parser.add_argument("--t5", action="store_true")
args = parser.parse_args()
args.out.mkdir(parents=True, exist_ok=True)
rng = random.Random(args.seed)


def write(name, rows):
    with gzip.GzipFile(args.out / name, "wb", mtime=0) as f:
        for row in rows:
            f.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")


def encode(tokenizer, *texts):
    """None: it panicked, as it does in some pipelines that make no sense."""
    try:
        return tokenizer.encode(*texts)
    except BaseException as e:  # pyo3's PanicException is no Exception
        if "too short" in str(e):
            return "too short"
        if type(e).__name__ != "PanicException":
            raise
        return None


def snippets(tokenizer):
    return [t.content for t in tokenizer.get_added_tokens_decoder().values()]


def cases(tokenizer, count):
    seed = rng.randrange(1 << 30)
    extra = snippets(tokenizer)
    texts = hardtext.lines(seed, count // 2) + hardtext.lines(seed + 1, count - count // 2, extra)
    texts += ["", " ", "  ", " ".join(hardtext.lines(seed + 2, 30, extra))]  # the last one goes through in chunks
    out = []
    for text in texts:
        if (e := encode(tokenizer, text)) is not None:
            out.append([text, e.ids])
    return out


def dense(alphabet, count):
    """Texts of what differs for a regular expression, or for grapheme clusters."""
    return ["".join(rng.choice(alphabet) for _ in range(rng.randrange(1, 40))) for _ in range(count)]


SPLIT = ["'s", "'T", "'ſ", "'re", "'VE", "'lL", "'x", "'", " ", " ", "  ", "\n", "\r\n", "\t", "\u00A0", "\u2028", "a", "bc", "A", "Bc",
         "ǅ", "ʰ", "ª", "中", "ß", "İ", "\u0301", "\u0903", "\u20DD", "1", "12", "1234", "٣", "Ⅷ", "½", "\U00011DE3", "/", "//", ".", "!?", "_", "😀", "\x01", "\u0378"]


def pairs(file, count):
    out = []
    for _ in range(count):
        a, b = hardtext.lines(rng.randrange(1 << 30), 2)
        how, limit = rng.choice(["longest_first", "longest_first", "only_first", "only_second"]), rng.choice([0, 5, 6, 9, 16, 17, 31])
        tokenizer = Tokenizer.from_str(file)
        if limit:
            tokenizer.enable_truncation(limit, strategy=how)
        row = {"a": a, "b": b, "how": how, "max_length": limit}
        if (e := encode(tokenizer, a, b)) is not None:
            out.append(row | ({"error": True} if e == "too short" else {"ids": e.ids, "types": e.type_ids}))
    return out


LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())


# Families. Only the first of those with a normalization map has it: 300 kB that don't compress well.
def family_rows():
    seen = None
    with tempfile.TemporaryDirectory() as folder:
        for name in families.build(folder, 1600, 0.3):
            if name == "t5":  # has a file of its own
                continue
            file = (Path(folder) / name / "tokenizer.json").read_text(encoding="utf-8")
            tokenizer = Tokenizer.from_str(file)
            row = {"name": name, "file": json.loads(file), "cases": cases(tokenizer, args.lines), "pairs": pairs(file, args.lines // 8)}
            normalizer = row["file"]["normalizer"] or {}
            for part in [normalizer, *normalizer.get("normalizers", [])]:
                if part.get("type") == "Precompiled":
                    if part["precompiled_charsmap"] == seen:
                        part["precompiled_charsmap"] = "as before"
                    else:
                        seen = part["precompiled_charsmap"]
            yield row
    # Bytes are tokens, and each piece gets a space before it: ids tell where a text is cut.
    model = families.bpe({letter: i for i, letter in enumerate(LETTERS)}, [])
    prefix = families.byte_level(prefix=True, regex=False)
    for name, regex in families.REGEXES.items():
        yield bytes_row(name, None, families.sequence("Sequence", "pretokenizers", families.regex_split(regex), prefix), model, dense(SPLIT, 250))
    for one in (True, False):
        yield bytes_row(f"Digits, {one}", None, families.sequence("Sequence", "pretokenizers", families.digits(one), prefix), model, dense(SPLIT, 250))
    ones = families.precompiled(charsmap({c: "1" for c in clusters.HARD}))  # how many tells where clusters end
    yield bytes_row("clusters", ones, prefix, model, dense(clusters.HARD + clusters.TEXTS, 300))


def charsmap(rules):
    """SentencePiece's normalization map for rules: a text to what it becomes."""
    def line(key, value):
        return " ".join(f"{ord(c):X}" for c in key) + "\t" + " ".join(f"{ord(c):X}" for c in value) + "\n"

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rules.tsv"
        path.write_text("".join(line(k, v) for k, v in rules.items() if k != v))
        _, data = families.sentencepiece_model(["word"], 9, model_type="char", normalization_rule_tsv=str(path))
    return data


def bytes_row(name, normalizer, pre_tokenizer, model, texts):
    file = {"version": "1.0", "added_tokens": [], "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "model": model}
    tokenizer = Tokenizer.from_str(json.dumps(file))
    return {"name": name, "file": file, "cases": [[text, tokenizer.encode(text).ids] for text in texts], "pairs": []}


def t5_row():
    with tempfile.TemporaryDirectory() as folder:
        families.build(folder, 1600, 0.3, only="t5")
        file = json.loads((Path(folder) / "t5" / "tokenizer.json").read_text(encoding="utf-8"))
    file["normalizer"] = families.precompiled(charsmap({"ﬁ": "fi", "İ": "I\u0307", "e\u0301": "é", "\t": " ", "\n": " ", "\x01": "", "½": "1⁄2", "…": "..."}))
    text = json.dumps(file)
    return {"name": "t5", "file": file, "cases": cases(Tokenizer.from_str(text), args.lines), "pairs": pairs(text, args.lines // 8)}


if args.t5:
    write("t5.jsonl.gz", [t5_row()])
    sys.exit()
write("families.jsonl.gz", family_rows())

# Random models. The alphabet has what pipelines treat differently.
ALPHABET = list("aabbcde1 '.\n") + ["▁", "▁", "é", "中", "ж", "\u0301", "İ", "ﬁ", "©", "\u200d", "\x01", "\u0600"]


def text_of(n):
    return "".join(rng.choice(ALPHABET) for _ in range(n))


def byte_tokens():
    return rng.choice([[], [f"<0x{b:02X}>" for b in range(256)], [f"<0x{b:02X}>" for b in range(256) if rng.random() < 0.8]])


def letters(text):
    """A text as ByteLevel writes it."""
    out = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    return out[0][0] if out else ""


def bpe_model(byte_level):
    if byte_level:
        tokens = rng.choice([LETTERS, LETTERS, [c for c in LETTERS if rng.random() < 0.9]]) + [""]
        corpus = [letters(text_of(rng.randrange(1, 30))) for _ in range(60)]
        tokens = [t for t in tokens if t]
    else:
        tokens = [c for c in dict.fromkeys(ALPHABET) if rng.random() < 0.85] + byte_tokens()
        corpus = [text_of(rng.randrange(1, 30)) for _ in range(60)]
    tokens = list(dict.fromkeys(["<unk>"] + tokens))
    have, merges = set(tokens), []
    for _ in range(rng.randrange(5, 120)):  # join what stands side by side in a text, or anything
        if rng.random() < 0.9:
            text = rng.choice(corpus)
            i = rng.randrange(len(text))
            left = next((text[i:j] for j in range(min(len(text), i + 4), i, -1) if text[i:j] in have), None)
            j = i + len(left or "")
            right = next((text[j:k] for k in range(min(len(text), j + 4), j, -1) if text[j:k] in have), None)
        else:
            left, right = rng.choice(tokens), rng.choice(tokens)
        if not left or not right:
            continue
        if left + right not in have:
            have.add(left + right)
            tokens.append(left + right)
        merges.append([left, right])
    rng.shuffle(merges)
    tokens += [t for t in {letters(text_of(rng.randrange(1, 5))) if byte_level else text_of(rng.randrange(1, 5)) for _ in range(10)}
               if t and t not in have]  # for ignore_merges: no merges lead here
    rng.shuffle(tokens)
    return families.bpe({t: i for i, t in enumerate(tokens)}, merges, unk_token=rng.choice([None, "<unk>"]),
                        fuse_unk=rng.random() < 0.5, byte_fallback=rng.random() < 0.5, ignore_merges=rng.random() < 0.4)


def unigram_model():
    tokens = ["<unk>"] + byte_tokens() + [c for c in dict.fromkeys(ALPHABET) if rng.random() < 0.7]
    tokens += [text_of(rng.randrange(1, 6)) for _ in range(rng.randrange(5, 150))]
    if rng.random() < 0.9:
        tokens = list(dict.fromkeys(tokens))  # else some are there twice
    rng.shuffle(tokens)
    scores = rng.choice([[-1.0, -2.0, -3.0, -6.0], [-1.5, 0.0, 3.0, 17.0, 40.0], [-rng.random() * 10 for _ in range(50)],
                         [30.0, 35.0, 90.0]])  # unknown text may then be better than a token for it
    return {"type": "Unigram", "unk_id": tokens.index("<unk>"), "vocab": [[t, rng.choice(scores)] for t in tokens],
            "byte_fallback": rng.random() < 0.5}


def random_rules():
    """A normalization map with keys of several characters, and some that are prefixes of others."""
    rules = {text_of(rng.randrange(1, 4)): text_of(rng.randrange(4)) for _ in range(30)}
    return rules | {"\r\n": " ", "e\u0301": "é", "é": "a", "©\u200d": "c"}


# The last ones leave ASCII alone, but for clusters of it.
NORMALIZERS = [families.precompiled(charsmap(rules)) for rules in [random_rules() for _ in range(6)]
               + [{"é": " x", "\x01": "", " \u0301": "y"}, {"é": "", "\u0600a": "b "}, {"\u0301": "", "中": "  "}]]


def normalizer(depth=0):
    kind = rng.randrange(13)
    if kind == 0:
        return {"type": "Prepend", "prepend": rng.choice(["▁", "ab"])}
    if kind in (1, 2):
        return {"type": "Strip", "strip_left": rng.random() < 0.5, "strip_right": rng.random() < 0.5}
    if kind in (3, 4):
        return rng.choice(NORMALIZERS)
    if kind in (5, 6):
        return families.replace({"String": rng.choice([" ", " ", "  ", "a", "ab", "aa", "中", " a"])}, rng.choice(["▁", "▁", "", " ", "aa", "b c"]))
    if kind == 7:
        return families.replace({"Regex": rng.choice([" {2,}", r"\s{2,}|[\n\r\t]"])}, rng.choice(["▁", " ", "", "x"]))
    if kind == 8:
        return {"type": rng.choice(["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents"])}
    if kind == 9 and not depth:
        return families.sequence("Sequence", "normalizers", *[n for _ in range(rng.randrange(4)) if (n := normalizer(1))])
    return None


def pre_tokenizer(byte_level, depth=0):
    if byte_level:
        last = families.byte_level(rng.random() < 0.5, True, rng.random() < 0.5)
        first = rng.choice([None, families.regex_split(rng.choice([families.LLAMA3, families.QWEN, families.QWEN35, families.TEKKEN, families.O200K])),
                            pre_tokenizer(False, 1)])
        return families.sequence("Sequence", "pretokenizers", first, last) if first else last
    kind = rng.randrange(9)
    if kind < 3:
        return families.metaspace(rng.choice(["always", "first", "never"]), rng.random() < 0.5)
    if kind == 3:
        return {"type": rng.choice(["WhitespaceSplit", "Whitespace", "BertPreTokenizer"])}
    if kind < 6:
        return {"type": "Split", "pattern": {"String": rng.choice([" ", "▁", "a", "ab", "."])}, "invert": rng.random() < 0.3,
                "behavior": rng.choice(["Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"])}
    if kind == 7:
        return families.digits(rng.random() < 0.5)
    if kind == 6 and not depth:
        return families.sequence("Sequence", "pretokenizers", *[p for _ in range(rng.randrange(1, 4)) if (p := pre_tokenizer(False, 1))])
    return None


def post_processor():
    bert = {"sep": ["</s>", 1], "cls": ["<s>", 2]}
    adding = rng.choice([{"type": "BertProcessing", **bert}, {"type": "RobertaProcessing", **bert, "trim_offsets": True, "add_prefix_space": False},
                         families.template("<s> $A", "<s> $A $B:1 <s>:2", {"<s>": 3}), families.template("$A:3", "$B $A:1", {})])
    return rng.choice([None, adding, families.byte_level(), families.sequence("Sequence", "processors", families.byte_level(), adding),
                       families.sequence("Sequence", "processors", adding, families.byte_level())])


def variants():
    count = 0
    while count < args.variants:
        kind = rng.randrange(5)
        byte_level = kind in (0, 1)
        model = bpe_model(byte_level) if kind < 3 else unigram_model()
        tokens = list(model["vocab"]) if kind < 3 else [t for t, _ in model["vocab"]]
        contents = rng.sample([t for t in tokens if t] + ["<s>", "ab", " a", " a", "a ", "a b", "▁a", "  ", "fi", "b\n"], rng.choice([0, 0, 1, 3]))
        flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
        file = {"version": "1.0", "truncation": None, "padding": None,
                "added_tokens": [{"id": 0, "content": c, **{flag: rng.random() < 0.3 for flag in flags}} for c in dict.fromkeys(contents)],
                "normalizer": normalizer(), "pre_tokenizer": pre_tokenizer(byte_level), "post_processor": post_processor(),
                "decoder": None, "model": model}
        if count % 10 == 0:  # what chance finds too rarely
            file["normalizer"] = families.replace({"String": " "}, "▁")
            file["pre_tokenizer"] = {"type": "Split", "pattern": {"String": " "}, "invert": rng.random() < 0.5,
                                     "behavior": rng.choice(["Removed", "Isolated", "MergedWithPrevious"])}
            if kind == 2:
                model |= {"unk_token": "<unk>", "ignore_merges": False}
        if count % 10 == 2:
            for token in file["added_tokens"]:
                token.update(normalized=True, single_word=True)
        if count % 10 == 3:
            file["normalizer"] = families.replace({"Regex": " {2,}"}, "▁")
        if count % 10 == 1:
            file["normalizer"], file["pre_tokenizer"] = None, families.metaspace("first", rng.random() < 0.5)
            for token in file["added_tokens"]:
                token["normalized"] = True
        if byte_level and count % 10 < 2:
            continue
        try:
            tokenizer = Tokenizer.from_str(json.dumps(file))
        except Exception as e:
            print("left out:", str(e)[:100])
            continue
        normal = {c: tokenizer.normalizer.normalize_str(c) if tokenizer.normalizer else c for c in contents}
        if "" in normal.values():
            continue  # an empty token is found everywhere, in the middle of characters, too
        looked_for = [normal[token["content"]] for token in file["added_tokens"] if token["normalized"]]
        if len(set(looked_for)) < len(looked_for):
            continue  # of two that normalize to the same Hugging Face finds one or the other, by chance
        out = []
        for i in range(24):
            text = hardtext.line(rng, contents) if i % 6 == 5 else text_of(rng.randrange(30))
            if i % 8 == 7:
                text = "<unk>".join(text[j:j + 4] for j in range(0, len(text), 4))
            if i == 0 and count % 3 == 0:
                text = " ".join(text_of(40) for _ in range(45))  # goes through in chunks
            if (e := encode(tokenizer, text)) is not None:
                out.append([text, e.ids])
        count += 1
        yield {"file": file, "cases": out, "pairs": pairs(json.dumps(file), 2) if not file["added_tokens"] else []}


write("random.jsonl.gz", variants())

# Scores: serde_json's floats aren't always the nearest ones.
numbers = ["0", "-0.0", "-0", "12", "-7", "1e2", "-1.5e-3", "5e-324", "1e308", "123456789012345678901234567890", "-12345678901234567890.25",
           "0.000000000000000000000000000000123", "1.7976931348623157e308", "18446744073709551615.5", "1E-400", "0e999"]
numbers += [repr(-rng.random() * 20) for _ in range(150)] + [repr(rng.random() * 10 ** rng.randrange(-320, 300)) for _ in range(100)]
numbers += [f"{rng.randrange(10**6)}.{rng.randrange(10**25)}e{rng.randrange(-30, 30)}" for _ in range(50)]
file = '{"model":{"type":"Unigram","unk_id":0,"vocab":[%s]}}' % ",".join(f'["{i}",{n}]' for i, n in enumerate(numbers))
parsed = json.loads(Tokenizer.from_str(file).to_str())["model"]["vocab"]
(args.out / "scores.json").write_text(json.dumps([[n, score] for n, (_, score) in zip(numbers, parsed)]) + "\n")
rng = random.Random(args.seed)  # as with --t5
write("t5.jsonl.gz", [t5_row()])
