"""Goldens for io/safetensors, by the reference implementation: python make.py (in this folder).

Made with safetensors 0.8.0, torch 2.9.0, Python 3.11.

- tensors.safetensors: tensors of many types as safetensors.torch writes them, also empty, scalar and odd-sized ones.
- values.json: their names in file order, and for the floating types the bits of each value widened (or, for F64,
  rounded) to float32 by torch.
- verdicts.json: small files, good and damaged (base64), and whether the reference reads them; with the tensors it saw.
"""

import base64
import json
import random
import struct

import torch
from safetensors import deserialize
from safetensors.torch import load_file, save_file

torch.manual_seed(1)
special = torch.tensor([0.0, -0.0, 1.0, -2.5, float("inf"), -float("inf"), 65504.0, 6e-8, 3e-5, 1e30, 1.17e-38, 1e-45])
tensors = {
    "encoder.weight": torch.randn(5, 7),
    "encoder.bias": torch.randn(7).to(torch.float16),
    "all.f16": torch.arange(0, 1 << 16, 13).to(torch.uint16).view(torch.float16),
    "all.bf16": torch.arange(0, 1 << 16, 257).to(torch.uint16).view(torch.bfloat16),
    "special": special,
    "special.f16": special.to(torch.float16),
    "special.bf16": special.to(torch.bfloat16),
    "double": torch.cat([torch.randn(3, dtype=torch.float64), torch.tensor([1e300, 1e-50, 1 + 2**-24, 1 + 3 * 2**-24, 0.1], dtype=torch.float64)]),
    "scalar": torch.tensor(1.5),
    "empty": torch.zeros(0, 4),
    "position_ids": torch.arange(5).unsqueeze(0),
    "mask": torch.tensor([True, False, True]),
    "bytes": torch.arange(5, dtype=torch.uint8),
    "short": torch.arange(3, dtype=torch.int16),
    "unicode.Größe \"q\" <&>\n": torch.ones(1),
}
save_file(tensors, "tensors.safetensors", metadata={"format": "pt"})


def bits(t):
    return [x & 0xFFFFFFFF for x in t.to(torch.float32).reshape(-1).view(torch.int32).tolist()]


order = [n for n, _ in sorted(
    ((n, v["data_offsets"]) for n, v in json.loads(open("tensors.safetensors", "rb").read()[8:].split(b"}}", 1)[0] + b"}}").items() if n != "__metadata__"),
    key=lambda x: (x[1], x[0]))]
loaded = load_file("tensors.safetensors")
with open("values.json", "w") as f:
    json.dump({
        "names": order,
        "shapes": {n: list(t.shape) for n, t in loaded.items()},
        "bits": {n: bits(t) for n, t in loaded.items() if t.is_floating_point()},
    }, f)

# --- verdicts


def file(header, data=b"", length=None):
    if not isinstance(header, (bytes, str)):
        header = json.dumps(header)
    if isinstance(header, str):
        header = header.encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def info(dtype, shape, offsets):
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


one = info("F32", [1], [0, 4])
cases = {
    "no tensors": file({}),
    "trailing white space": file("{}\n  "),
    "one": file({"a": one}, b"1234"),
    "unknown field": file({"a": {**one, "x": [1, {"y": "]}"}]}}, b"1234"),
    "nothing": b"",
    "seven bytes": b"\0" * 7,
    "header of length 0": file(b""),
    "header longer than the file": file({"a": one}, b"1234", 1000),
    "header longer than 2^63": file({"a": one}, b"1234", 2**63 + 5),
    "header longer than the bound": file({}, b"", 100_000_001),
    "header cut": file({"a": one}, b"1234", 20),
    "not UTF-8": file(b'{"\xff":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', b"1234"),
    "BOM": file(b"\xef\xbb\xbf{}"),
    "NUL padding": file(b"{}\0\0"),
    "array": file("[]"),
    "two objects": file("{}{}"),
    "null tensor": file({"a": None}),
    "duplicate dtype": file('{"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}', b"1234"),
    "duplicate metadata": file('{"__metadata__":{},"__metadata__":{}}'),
    "metadata": file({"__metadata__": {"a": "b", "c": ""}}),
    "metadata number": file({"__metadata__": {"a": 1}}),
    "metadata list": file({"__metadata__": []}),
    "missing dtype": file({"a": {"shape": [1], "data_offsets": [0, 4]}}, b"1234"),
    "missing shape": file({"a": {"dtype": "F32", "data_offsets": [0, 4]}}, b"1234"),
    "missing offsets": file({"a": {"dtype": "F32", "shape": [1]}}, b"1234"),
    "dtype f32": file({"a": info("f32", [1], [0, 4])}, b"1234"),
    "key DTYPE": file('{"a":{"DTYPE":"F32","shape":[1],"data_offsets":[0,4]}}', b"1234"),
    "dtype number": file({"a": info(1, [1], [0, 4])}, b"1234"),
    "three offsets": file({"a": info("F32", [1], [0, 4, 4])}, b"1234"),
    "one offset": file({"a": info("F32", [1], [0])}, b"1234"),
    "offset 4.0": file({"a": info("F32", [1], [0, 4.0])}, b"1234"),
    "offset -1": file({"a": info("F32", [1], [-1, 3])}, b"1234"),
    "offset -0": file('{"a":{"dtype":"F32","shape":[1],"data_offsets":[-0,4]}}', b"1234"),
    "offset string": file({"a": info("F32", [1], ["0", 4])}, b"1234"),
    "offset 2^64": file({"a": info("F32", [1], [0, 2**64])}, b"1234"),
    "offsets reversed": file({"a": info("F32", [1], [4, 0])}, b"1234"),
    "offsets from 2^64-4": file({"a": info("F32", [1], [2**64 - 4, 0])}, b"1234"),
    "shape 1e0": file('{"a":{"dtype":"F32","shape":[1e0],"data_offsets":[0,4]}}', b"1234"),
    "shape negative": file({"a": info("F32", [-1], [0, 4])}, b"1234"),
    "shape too large": file({"a": info("F32", [2], [0, 4])}, b"1234"),
    "shape too small": file({"a": info("F32", [1], [0, 8])}, b"12345678"),
    "shape overflows": file({"a": info("F32", [2**62, 4], [0, 0])}),
    "shape overflows to the right size": file({"a": info("F32", [2**62 + 1], [0, 4])}, b"1234"),
    "shape overflows, then 0": file({"a": info("F32", [2**62, 2**62, 0], [0, 0])}),
    "0, then large": file({"a": info("F32", [0, 2**62, 2**62], [0, 0])}),
    "scalar": file({"a": info("F32", [], [0, 4])}, b"1234"),
    "file cut": file({"a": one}, b"123"),
    "file too long": file({"a": one}, b"12345"),
    "hole at the start": file({"a": info("U8", [2], [1, 3])}, b"123"),
    "hole": file({"a": info("U8", [1], [0, 1]), "b": info("U8", [1], [2, 3])}, b"123"),
    "overlap": file({"a": info("U8", [2], [0, 2]), "b": info("U8", [2], [1, 3])}, b"123"),
    "same bytes": file({"a": info("U8", [2], [0, 2]), "b": info("U8", [2], [0, 2])}, b"12"),
    "order of the header": file({"b": info("U8", [2], [2, 4]), "a": info("U8", [2], [0, 2])}, b"1234"),
    "empty between": file({"a": info("U8", [2], [0, 2]), "b": info("U8", [0], [2, 2]), "c": info("U8", [2], [2, 4])}, b"1234"),
    "empty inside": file({"a": info("U8", [2], [0, 2]), "b": info("U8", [0], [1, 1]), "c": info("U8", [2], [2, 4])}, b"1234"),
    "empty at the start": file({"a": info("U8", [2], [0, 2]), "b": info("U8", [0], [0, 0])}, b"12"),
    "unaligned": file({"a": info("U8", [1], [0, 1]), "b": info("F32", [1], [1, 5])}, b"12345"),
    "F4": file({"a": info("F4", [8], [0, 4])}, b"1234"),
    "F4 odd": file({"a": info("F4", [7], [0, 4])}, b"1234"),
    "F6": file({"a": info("F6_E3M2", [4], [0, 3])}, b"123"),
    "name with NUL": file('{"a\\u0000":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"1"),
    "name with raw control": file(b'{"a\x01":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"1"),
    "half of a surrogate pair": file('{"\\ud800":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"1"),
    "surrogate pair": file('{"\\ud83d\\ude00":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"1"),
    "empty name": file({"": info("U8", [1], [0, 1])}, b"1"),
    # The reference reads these; the format's description forbids them, and so do we.
    "strict: leading space": file(" {}"),
    "strict: duplicate tensor": file('{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', b"1234"),
    "strict: duplicate key of metadata": file('{"__metadata__":{"a":"b","a":"c"}}'),
    "strict: tensor as a list": file('{"a":["F32",[1],[0,4]]}', b"1234"),
}
for d in "BOOL U8 I8 U16 I16 U32 I32 U64 I64 F16 BF16 F32 F64 C64 F8_E4M3 F8_E5M2 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ F6_E2M3 F6_E3M2 F4 Q4".split():
    size = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "C64": 64, "BOOL": 8, "Q4": 8}.get(d) or int(d.split("_")[0].lstrip("UIBF"))
    cases["dtype " + d] = file({"a": info(d, [8], [0, size])}, bytes(size))
    cases["dtype " + d + " one less"] = file({"a": info(d, [8], [0, size - 1])}, bytes(size - 1))

# Random damage to one good file: a byte changed, inserted or dropped.
rng = random.Random(7)
good = file({"__metadata__": {"format": "pt"}, "a": info("F32", [2, 1], [0, 8]), "bb": info("I64", [], [8, 16]), "c": info("U8", [3], [16, 19])}, bytes(range(19)))
cases["good"] = good
for i in range(400):
    b = bytearray(good)
    at = rng.choice([rng.randrange(0, 8), rng.randrange(8, len(b) - 19), rng.randrange(8, len(b) - 19), rng.randrange(len(b))])
    match rng.randrange(3):
        case 0:
            b[at] = rng.choice([*b'0123456789[]{},:" -.', rng.randrange(256)])
        case 1:
            b.insert(at, rng.choice([*b'0123456789[]{},:" -.', rng.randrange(256)]))
        case 2:
            del b[at]
    cases[f"damage {i}"] = bytes(b)

verdicts = []
for name, b in cases.items():
    v = {"name": name, "file": base64.b64encode(b).decode(), "ok": True}
    try:
        v["tensors"] = sorted([k, t["dtype"], t["shape"], base64.b64encode(t["data"]).decode()] for k, t in deserialize(b))
    except Exception as e:
        v["ok"], v["error"] = False, str(e)
    verdicts.append(v)
with open("verdicts.json", "w") as f:
    f.write("[\n" + ",\n".join(json.dumps(v) for v in verdicts) + "\n]\n")
print(len(verdicts), "files,", sum(v["ok"] for v in verdicts), "good")
