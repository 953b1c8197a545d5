"use strict";
const LARGEST_ZOOM = 200, FINE_TICKS_FROM = 8;

for (const timeline of document.querySelectorAll(".timeline")) {
  const frame = timeline.querySelector(".frame");
  const drawing = frame.querySelector(".gantt");
  const bars = [...drawing.querySelectorAll(".bar")].map((bar) => [bar.querySelector("rect"), bar.querySelector("text")]);
  let zoom = 1;

  const showLabels = () => {
    // All widths first: reading one after each change would lay the page out as often.
    const fits = bars.map(([rect, text]) => rect.getBoundingClientRect().width > text.getComputedTextLength() + 4);
    bars.forEach(([, text], index) => text.setAttribute("visibility", fits[index] ? "visible" : "hidden"));
  };

  const zoomTo = (wanted, at) => {
    const fixed = (frame.scrollLeft + at) / drawing.getBoundingClientRect().width;
    zoom = Math.min(LARGEST_ZOOM, Math.max(1, wanted));
    drawing.style.width = `${100 * zoom}%`;
    drawing.classList.toggle("near", zoom >= FINE_TICKS_FROM);
    frame.scrollLeft = fixed * drawing.getBoundingClientRect().width - at;
    showLabels();
  };

  for (const button of timeline.querySelectorAll("button")) {
    button.addEventListener("click", () => zoomTo(zoom * Number(button.dataset.factor), frame.clientWidth / 2));
  }
  frame.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      zoomTo(zoom * Math.exp(-event.deltaY / 300), event.clientX - frame.getBoundingClientRect().left);
    },
    { passive: false },
  );
  window.addEventListener("resize", showLabels);
  showLabels();
}
