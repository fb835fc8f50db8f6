// Optional: under the pointer, say the step and the smoothed loss. The page is whole without it.
for (const plot of document.querySelectorAll(".plot")) {
  const points = JSON.parse(plot.dataset.points || "[]");
  if (!points.length) continue;
  const dot = document.createElement("span"), tip = document.createElement("span");
  dot.className = "dot";
  tip.className = "tip";
  plot.append(dot, tip);
  const show = (event) => {
    const box = plot.getBoundingClientRect();
    const x = 1000 * (event.clientX - box.left) / box.width;
    let best = points[0];
    for (const p of points) if (Math.abs(p[0] - x) < Math.abs(best[0] - x)) best = p;
    dot.style.left = tip.style.left = best[0] / 10 + "%";
    dot.style.top = tip.style.top = best[1] / 10 + "%";
    tip.textContent = "step " + best[2].toLocaleString("en") + " · " + best[3].toFixed(3);
    tip.classList.toggle("left", best[0] > 700);
    plot.classList.add("hover");
  };
  plot.addEventListener("pointermove", show);
  plot.addEventListener("pointerdown", show);
  plot.addEventListener("pointerleave", () => plot.classList.remove("hover"));
}
