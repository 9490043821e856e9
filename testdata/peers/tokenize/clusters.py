"""How Hugging Face's Precompiled normalizer cuts text into grapheme clusters: it maps a cluster of up to 5 bytes as a whole,
by the first key that is a prefix of it, and the characters of a longer one by themselves."""
import struct

# What takes part in the rules for clusters.
HARD = ["a", "a", "\r", "\n", "\x01", "\u0301", "\u0301", "\u200D", "\u200D", "\u00A9", "\u00A9", "\U0001F600", "\u0600", "\u0D4E",
        "\u0903", "\u0E33", "\u1100", "\u1161", "\u11A8", "\uAC00", "\uAC01", "\u0915", "\u0915", "\u094D", "\u094D", "\u093C", "\u09CD",
        "\U0001F1E6", "\u200B", "\U00016D67", "\U000E0001", "\U0001F3FB"]
# What of it depends on more than two neighbours.
TEXTS = ["\u0915\u094D\u0915\u0301", "\u0915\u093C\u094D\u0915\u0301", "\u00A9\u0301\u200D\u00A9\u0301", "\u1100\u1161\u11A8\u0301", "\u0600a"]


def everything_is_one():
    """The precompiled_charsmap that turns each character into "1": the number of ones tells how a text is cut. It knows
    all characters beyond ASCII, a, CR and LF."""
    root, one, two, three, leaf = 0x100, 0x200, 0x300, 0x400, 0x500  # blocks of a double array: that many bytes to come
    units = [root << 10] + [0] * (leaf + 0xFF)

    def link(block, labels, to):
        for c in labels:
            units[block + c] = (block + c ^ to) << 10 | (to == leaf) << 8 | c

    link(root, b"\r\na", leaf)
    link(root, range(0xC2, 0xE0), one)
    link(root, range(0xE0, 0xF0), two)
    link(root, range(0xF0, 0xF5), three)
    for block, to in ((three, two), (two, one), (one, leaf)):
        link(block, range(0x80, 0xC0), to)
    units[leaf] = 1 << 31
    return struct.pack(f"<I{len(units)}I", 4 * len(units), *units) + b"1\0"
