"""Looks at reports in a real browser: python report.py CONTRAFLOW RUN

Draws RUN, the run with another, and a run of 10,000 steps, and opens each in headless Chromium at the width of a desk and of a phone, light and
dark, and as print: there must be no console error, no request, nothing wider than the page, no picture without a name, and no blank
screenshot. The 10,000 steps' report must be smaller than 2 MB and open in under a second.
"""
import io
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time

from PIL import Image
from playwright.sync_api import sync_playwright

binary, run = sys.argv[1:]
work = tempfile.mkdtemp()
long = os.path.join(work, "long")
os.mkdir(long)
with open(os.path.join(long, "metrics.jsonl"), "w") as f:
    for i in range(1, 10001):
        json.dump({"step": i, "epoch": 1, "loss": 5 * math.exp(-i / 3000) + 0.1 * math.sin(i), "grad_norm": 1 + math.cos(i), "lr": 1e-4 * (1 - i / 10000), "pairs": 256, "tokens": 20000, "pairs_per_s": 300 + 20 * math.sin(i / 7), "peak_mem_bytes": 1 << 30}, f)
        f.write("\n")
        if i % 500 == 0:
            f.write(json.dumps({"step": i, "metric": "ndcg@10", "value": 0.2 + i / 40000, "eval": {}}) + "\n")
for name in ["run.json", "recipe.yaml"]:
    shutil.copy(os.path.join(run, name), long)

pages = {}
for name, runs in {"run": [run], "several": [run, long], "long": [long]}.items():
    pages[name] = os.path.join(work, name + ".html")
    subprocess.run([binary, "report", *runs, "--out", pages[name]], check=True, stdout=subprocess.DEVNULL)

size = os.path.getsize(pages["long"])
assert size < 2e6, f"the report of 10,000 steps has {size} bytes"

with sync_playwright() as p:
    browser = p.chromium.launch(executable_path=shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome"), args=["--no-sandbox"])
    for name, path in pages.items():
        for width, looks in [(1280, ["light", "dark"]), (390, ["light", "dark"]), (794, ["print"])]:  # A4 is 794 pixels wide
            for look in looks:
                context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme="dark" if look == "dark" else "light")
                tab = context.new_page()
                wrong = []
                tab.on("console", lambda m: wrong.append(m.text) if m.type in ("error", "warning") else None)
                tab.on("pageerror", lambda e: wrong.append(str(e)))
                tab.on("request", lambda r: wrong.append("asks for " + r.url) if not r.url.startswith(("file:", "data:")) else None)
                if look == "print":
                    tab.emulate_media(media="print")
                began = time.time()
                tab.goto("file://" + path)
                took = time.time() - began
                where = f"{name}, {width} wide, {look}"
                assert not wrong, f"{where}: {wrong}"
                if name == "long" and look != "print":
                    assert took < 1, f"{where}: opens in {took:.2f} s"
                wide = tab.evaluate("document.documentElement.scrollWidth")
                assert wide <= width, f"{where}: the page is {wide} wide"
                figures = tab.locator("svg, img").count()
                named = tab.get_by_role("img").count()
                nameless = tab.evaluate("[...document.querySelectorAll('svg, img')].filter(s => !(s.getAttribute('aria-label') || s.alt || '').trim()).length")
                assert figures >= 6 and named == figures and nameless == 0, f"{where}: {figures} figures, {named} of them pictures, {nameless} without a name"
                box = tab.locator(".chart svg").first.bounding_box()
                tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
                cursor = tab.locator(".chart svg").first.locator("text").last.text_content()
                assert cursor.startswith("step "), f"{where}: the pointer says {cursor!r}"
                shot = Image.open(io.BytesIO(tab.screenshot(full_page=True))).convert("L")
                counts = shot.histogram()
                background = max(counts) / sum(counts)
                assert shot.size[0] == width and background < 0.97, f"{where}: {shot.size}, {background:.3f} of it background"
                assert (counts.index(max(counts)) < 64) == (look == "dark"), f"{where}: the background is {counts.index(max(counts))}"
                context.close()
                print(f"{where}: {took:.2f} s, {figures} figures, {shot.size[0]} x {shot.size[1]}")
    browser.close()
print(f"ok: {size} bytes for 10,000 steps")
shutil.rmtree(work)
