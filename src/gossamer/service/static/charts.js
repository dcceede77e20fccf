// SVG charts: lines and areas over time, and bars. Each has a text label for screen readers.

import { h, s } from "./dom.js";
import { clock, short } from "./format.js";

const HEIGHT = 200, RIGHT = 8, TOP = 8, BOTTOM = 24, LETTER = 6.4;
const INNER_HEIGHT = HEIGHT - TOP - BOTTOM;

// One SVG unit is one pixel, so text has the same size on every screen. The caller measures `wide`, the available width.
function dimensions(wide, labels) {
  const left = 12 + LETTER * Math.max(...labels.map((label) => label.length));
  const width = Math.max(240, Math.round(wide));
  return { width, left, inner: width - left - RIGHT };
}

function topOf(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 5, 8, 10].map((step) => step * power).find((step) => step >= value) ?? 10 * power;
}

function frame(label, top, unit, wide) {
  const labels = [0, 1, 2, 3, 4].map((part) => `${short((top * part) / 4)}${unit}`);
  const { width, left, inner } = dimensions(wide, labels);
  const parts = labels.map((text, part) => {
    const y = TOP + INNER_HEIGHT * (1 - part / 4);
    return [
      s("path", { class: "grid", d: `M${left} ${y}H${width - RIGHT}` }),
      s("text", { x: left - 6, y: y + 4, "text-anchor": "end" }, text),
    ];
  });
  return { picture: s("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": label }, parts), width, left, inner };
}

function legend(series) {
  if (series.length < 2) return null;
  return h("p", { class: "legend" }, series.map((one) =>
    h("span", {}, h("i", { class: `dot ${one.tone}` }), one.name)));
}

// Time series ({name, tone, values}) of equal length, stacked or overlaid; null leaves a gap.
export function timeChart(label, { start, step, series, stacked = false, unit = "", wide = 640 }) {
  const length = series[0]?.values.length ?? 0;
  if (length < 2) return h("p", { class: "none" }, "Not enough data yet");
  const bases = Array.from({ length }, () => 0);
  const layers = series.map((one) => one.values.map((value, place) => {
    if (value === null || value === undefined) return null;
    const base = stacked ? bases[place] : 0;
    if (stacked) bases[place] += value;
    return [base, base + value];
  }));
  const top = topOf(Math.max(...layers.flat().map((pair) => (pair ? pair[1] : 0))));
  const { picture, width, left, inner } = frame(label, top, unit, wide);
  const x = (place) => left + (inner * place) / (length - 1);
  const y = (value) => TOP + INNER_HEIGHT * (1 - value / top);
  layers.forEach((layer, number) => {
    for (const run of runs(layer)) {
      const line = run.map(([place, pair]) => `${x(place).toFixed(1)} ${y(pair[1]).toFixed(1)}`).join("L");
      const back = run.toReversed().map(([place, pair]) => `${x(place).toFixed(1)} ${y(pair[0]).toFixed(1)}`).join("L");
      picture.append(s("path", { class: `area ${series[number].tone}`, d: `M${line}L${back}Z` }));
      picture.append(s("path", { class: `line ${series[number].tone}`, d: `M${line}` }));
    }
  });
  for (const part of inner < 340 ? [0, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1]) {
    const place = Math.round(part * (length - 1));
    const anchor = part === 0 ? "start" : part === 1 ? "end" : "middle";
    const time = clock(start + place * step);
    picture.append(s("text", { x: x(place), y: HEIGHT - 6, "text-anchor": anchor },
      step * length > 7200 ? time.slice(0, 5) : time));
  }
  const readout = h("p", { class: "readout", "aria-hidden": "true" }, " ");
  const crosshair = s("path", { class: "hair" });
  picture.append(crosshair);
  const show = (event) => {
    const box = picture.getBoundingClientRect();
    const inside = ((event.clientX - box.left) / box.width) * width;
    const place = Math.max(0, Math.min(length - 1, Math.round(((inside - left) / inner) * (length - 1))));
    crosshair.setAttribute("d", `M${x(place)} ${TOP}V${TOP + INNER_HEIGHT}`);
    const values = series.map((one) => `${one.name} ${short(one.values[place])}${unit}`).join(" · ");
    readout.textContent = `${clock(start + place * step)}  ${values}`;
  };
  picture.addEventListener("pointermove", show);
  picture.addEventListener("pointerleave", () => { crosshair.removeAttribute("d"); readout.textContent = " "; });
  return h("div", { class: "chart" }, picture, legend(series), readout);
}

function runs(layer) {
  const found = [];
  let run = [];
  layer.forEach((pair, place) => {
    if (pair) run.push([place, pair]);
    else if (run.length) { found.push(run); run = []; }
  });
  if (run.length) found.push(run);
  return found;
}

// Vertical bars ({label, value, about, tone}), in the given order.
export function bars(label, chart, wide = 640) {
  if (!chart.length) return h("p", { class: "none" }, "No data yet");
  const top = topOf(Math.max(...chart.map((bar) => bar.value)));
  const { picture, left, inner } = frame(label, top, "", wide);
  const each = inner / chart.length;
  const every = Math.ceil(chart.length / (inner / 60));
  chart.forEach((bar, number) => {
    const tall = bar.value ? Math.max(1, (INNER_HEIGHT * bar.value) / top) : 0;
    const begin = left + number * each;
    picture.append(s("rect", {
      class: `bar ${bar.tone ?? "a"}`, x: begin + each * 0.08, y: TOP + INNER_HEIGHT - tall, width: each * 0.84, height: tall,
    }, s("title", {}, bar.about ?? `${bar.label}: ${bar.value}`)));
    if (number % every === 0) {
      picture.append(s("text", { x: begin + each / 2, y: HEIGHT - 6, "text-anchor": "middle" }, bar.label));
    }
  });
  return h("div", { class: "chart" }, picture);
}
