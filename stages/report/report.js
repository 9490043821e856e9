// A line and the step under the pointer: each figure says its own range of steps.
for (const svg of document.querySelectorAll(".chart svg")) {
  const x0 = +svg.dataset.x0, x1 = +svg.dataset.x1, left = 52, width = 356;
  const line = document.createElementNS(svg.namespaceURI, "path"), text = document.createElementNS(svg.namespaceURI, "text");
  line.setAttribute("class", "cursor");
  text.setAttribute("class", "x");
  svg.append(line, text);
  svg.addEventListener("pointermove", e => {
    const box = svg.getBoundingClientRect();
    const px = Math.min(left + width, Math.max(left, (e.clientX - box.left) * 420 / box.width));
    line.setAttribute("d", `M${px} 10V194`);
    text.setAttribute("x", Math.min(380, Math.max(80, px)));
    text.setAttribute("y", 9);
    text.textContent = "step " + Math.round(x0 + (x1 - x0) * (px - left) / width);
  });
  svg.addEventListener("pointerleave", () => { line.removeAttribute("d"); text.textContent = ""; });
}
