"""Lines of text that tokenizers disagree about. The golden script and the comparison with a binary both draw from here."""
import random
import unicodedata

ASSIGNED_BLOCKS = [
    (0x20, 0x7F), (0xA0, 0x250), (0x250, 0x300), (0x300, 0x370), (0x370, 0x400), (0x400, 0x530), (0x530, 0x590),
    (0x590, 0x600), (0x600, 0x780), (0x900, 0x980), (0x980, 0x0E00), (0xE00, 0xE80), (0xF00, 0x1000), (0x1000, 0x10A0),
    (0x10A0, 0x1100), (0x1100, 0x1200), (0x1200, 0x1380), (0x13A0, 0x1400), (0x1780, 0x1800), (0x1B00, 0x1B80),
    (0x1C90, 0x1CC0), (0x1D00, 0x1DC0), (0x1DC0, 0x1E00), (0x1E00, 0x1F00), (0x1F00, 0x2000), (0x2000, 0x2070),
    (0x2070, 0x20A0), (0x20D0, 0x2100), (0x2100, 0x2150), (0x2150, 0x2200), (0x2460, 0x2500), (0x25A0, 0x2700),
    (0x2C00, 0x2C60), (0x2E80, 0x3000), (0x3000, 0x3040), (0x3040, 0x3100), (0x3100, 0x3200), (0x3400, 0x3500),
    (0x4E00, 0x5000), (0x9F00, 0xA000), (0xA640, 0xA6A0), (0xA700, 0xA800), (0xAA60, 0xAAE0), (0xAB30, 0xABC0),
    (0xAC00, 0xD7B0), (0xE000, 0xE100), (0xF900, 0xFB00), (0xFB00, 0xFB50), (0xFB50, 0xFE00), (0xFE00, 0xFE70),
    (0xFF00, 0xFFF0), (0xFFF0, 0x10000), (0x10400, 0x10450), (0x11000, 0x11100), (0x11900, 0x11960), (0x16E40, 0x16EA0),
    (0x1D100, 0x1D200), (0x1D400, 0x1D500), (0x1E900, 0x1E960), (0x1F300, 0x1F700), (0x1F900, 0x1FA00),
    (0x20000, 0x20100), (0x2A6D0, 0x2A710), (0x2B730, 0x2B750), (0x2B810, 0x2B930), (0x2CEA0, 0x2CEB0), (0x2F800, 0x2FA20),
    (0xE0000, 0xE0200), (0x10FF00, 0x110000),
]
MARKS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000 and unicodedata.category(chr(c)).startswith("M")]
# Marks that BERT's strip_accents keeps (they take up space) but that canonical ordering moves; and the common ones.
MOVING = [c for c in MARKS if unicodedata.category(chr(c)) != "Mn" and unicodedata.combining(chr(c))]
COMMON_MARKS = list(range(0x300, 0x370))
SPACES = [0x9, 0xA, 0xB, 0xC, 0xD, 0x1C, 0x1F, 0x20, 0x85, 0xA0, 0x1680, 0x180E, 0x2000, 0x2003, 0x200B, 0x2028, 0x2029,
          0x202F, 0x205F, 0x2060, 0x3000, 0xFEFF]
ODD = [0x0, 0x1, 0x7, 0x1B, 0x7F, 0x80, 0x9F, 0xAD, 0x130, 0x131, 0x1E9E, 0x3A3, 0x3C2, 0x212A, 0x2126, 0x200C, 0x200D,
       0x200E, 0x202E, 0xFFFC, 0xFFFD, 0xFFFE, 0xFFFF, 0x378, 0x1FFFE, 0xE0001, 0xE0020, 0xF0000, 0x10FFFF]
SPECIALS = ["[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]", "[cls]", "[ MASK ]", "[MASK", "MASK]", "[[MASK]]", "##ing", "##"]
EMOJI = ["👩‍💻", "👨‍👩‍👧‍👦", "🇩🇪", "👍🏽", "❤️", "1️⃣", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "😀", "☃", "✈️"]
WORDS = """the of and a to in is it you that was for on are with as his they at be this have from or one had by word but
not what all were we when your can said there use an each which she do how their if will up other about out many then them
these so some her would make like him into time has look two more write go see number no way could people my than first
water been call who oil its now find long down day did get come made may part naïve café Übermaß señor façade coöperate
İstanbul ISTANBUL ıssız ΟΔΥΣΣΕΥΣ όδος Straße STRASSE ﬁnance Ⅷ ２０２６ Привет МОСКВА ёлка שָׁלוֹם مَرْحَبًا नमस्ते क्षत्रिय ภาษาไทย
한국어 각 日本語 カタカナ ﾊﾝｶｸ 中文字符 Tiếng Việt ﷺ don't it's re-use e.g. http://x.y/z?a=b#c foo_bar fooBar x=1;
int main() {} C++ 3.14 1,000,000 $5.00 €9 50% a@b.co #tag""".split()


def char(rng):
    kind = rng.random()
    if kind < 0.25:
        return chr(rng.randrange(0x20, 0x7F))
    if kind < 0.65:
        return chr(rng.randrange(*rng.choice(ASSIGNED_BLOCKS)))
    if kind < 0.75:
        return chr(rng.choice(MARKS))
    if kind < 0.82:
        return chr(rng.choice(SPACES))
    if kind < 0.88:
        return chr(rng.choice(ODD))
    while True:
        c = rng.randrange(0x110000) if rng.random() < 0.3 else rng.randrange(0x10000)
        if not 0xD800 <= c < 0xE000:
            return chr(c)


def word(rng):
    kind = rng.random()
    if kind < 0.5:
        w = rng.choice(WORDS)
        return rng.choice([w, w, w.upper(), w.title(), unicodedata.normalize("NFD", w), unicodedata.normalize("NFKC", w)])
    if kind < 0.6:
        return rng.choice(SPECIALS)
    if kind < 0.66:
        return rng.choice(EMOJI)
    if kind < 0.72:  # a base with a run of marks
        marks = rng.choice([MARKS, COMMON_MARKS, COMMON_MARKS[:20], MOVING, MOVING + COMMON_MARKS])
        return rng.choice("aeioukבक가ཀ") + "".join(chr(rng.choice(marks)) for _ in range(rng.randrange(1, 45)))
    if kind < 0.75:  # around the limit of 100 characters, and far beyond
        n = rng.choice([99, 100, 101, 300, rng.randrange(90, 110)])
        return "".join(rng.choice(["a", "b", "e", "é", "ж"]) for _ in range(n))
    return "".join(char(rng) for _ in range(rng.randrange(1, 9)))


def line(rng, extra=()):
    """One hard line. extra: further snippets to mix in (added tokens)."""
    if rng.random() < 0.1:
        return "".join(char(rng) for _ in range(rng.randrange(1, 60)))
    parts = []
    for _ in range(rng.randrange(0, 16)):
        parts.append(rng.choice(extra) if extra and rng.random() < 0.25 else word(rng))
        parts.append(rng.choice([" ", " ", " ", " ", " ", "", "", "  ", "\t", "\r\n", "\n", chr(rng.choice(SPACES))]))
    return "".join(parts)


def lines(seed, count, extra=()):
    rng = random.Random(seed)
    return [line(rng, extra) for _ in range(count)]
