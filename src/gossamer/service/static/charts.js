// Charts as SVG: lines and areas over time, bars, and a map of sites. Each says in words what it shows.

import { h, s } from "./dom.js";
import { clock, short } from "./format.js";

const WIDTH = 640, HEIGHT = 200, LEFT = 48, RIGHT = 8, TOP = 8, BOTTOM = 24;
const INNER_WIDTH = WIDTH - LEFT - RIGHT, INNER_HEIGHT = HEIGHT - TOP - BOTTOM;

function topOf(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 5, 8, 10].map((step) => step * power).find((step) => step >= value) ?? 10 * power;
}

function frame(label, top, unit) {
  const parts = [0, 1, 2, 3, 4].map((part) => {
    const y = TOP + INNER_HEIGHT * (1 - part / 4);
    return [
      s("path", { class: "grid", d: `M${LEFT} ${y}H${WIDTH - RIGHT}` }),
      s("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, `${short((top * part) / 4)}${unit}`),
    ];
  });
  return s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label }, parts);
}

function legend(series) {
  if (series.length < 2) return null;
  return h("p", { class: "legend" }, series.map((one) =>
    h("span", {}, h("i", { class: `dot ${one.tone}` }), one.name)));
}

// Series ({name, tone, values}) of equal length over time; stacked, or each by itself. null is a gap.
export function overTime(label, { start, step, series, stacked = false, unit = "" }) {
  const length = series[0]?.values.length ?? 0;
  if (length < 2) return h("p", { class: "none" }, "not enough of the past yet");
  const bases = new Array(length).fill(0);
  const layers = series.map((one) => one.values.map((value, place) => {
    if (value === null || value === undefined) return null;
    const base = stacked ? bases[place] : 0;
    if (stacked) bases[place] += value;
    return [base, base + value];
  }));
  const top = topOf(Math.max(...layers.flat().map((pair) => (pair ? pair[1] : 0))));
  const x = (place) => LEFT + (INNER_WIDTH * place) / (length - 1);
  const y = (value) => TOP + INNER_HEIGHT * (1 - value / top);
  const picture = frame(label, top, unit);
  layers.forEach((layer, number) => {
    for (const run of runs(layer)) {
      const line = run.map(([place, pair]) => `${x(place).toFixed(1)} ${y(pair[1]).toFixed(1)}`).join("L");
      const back = run.toReversed().map(([place, pair]) => `${x(place).toFixed(1)} ${y(pair[0]).toFixed(1)}`).join("L");
      picture.append(s("path", { class: `area ${series[number].tone}`, d: `M${line}L${back}Z` }));
      picture.append(s("path", { class: `line ${series[number].tone}`, d: `M${line}` }));
    }
  });
  for (const part of [0, 0.25, 0.5, 0.75, 1]) {
    const place = Math.round(part * (length - 1));
    const anchor = part === 0 ? "start" : part === 1 ? "end" : "middle";
    const time = clock(start + place * step);
    picture.append(s("text", { x: x(place), y: HEIGHT - 6, "text-anchor": anchor },
      step * length > 7200 ? time.slice(0, 5) : time));
  }
  const readout = h("p", { class: "readout", "aria-hidden": "true" }, " ");
  const hair = s("path", { class: "hair" });
  picture.append(hair);
  const show = (event) => {
    const box = picture.getBoundingClientRect();
    const inside = ((event.clientX - box.left) / box.width) * WIDTH;
    const place = Math.max(0, Math.min(length - 1, Math.round(((inside - LEFT) / INNER_WIDTH) * (length - 1))));
    hair.setAttribute("d", `M${x(place)} ${TOP}V${TOP + INNER_HEIGHT}`);
    const values = series.map((one) => `${one.name} ${short(one.values[place])}${unit}`).join(" · ");
    readout.textContent = `${clock(start + place * step)}  ${values}`;
  };
  picture.addEventListener("pointermove", show);
  picture.addEventListener("pointerleave", () => { hair.removeAttribute("d"); readout.textContent = " "; });
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

// Upright bars ({label, value, about, tone}) in their order.
export function bars(label, chart) {
  if (!chart.length) return h("p", { class: "none" }, "nothing yet");
  const top = topOf(Math.max(...chart.map((bar) => bar.value)));
  const picture = frame(label, top, "");
  const wide = INNER_WIDTH / chart.length;
  const every = Math.ceil(chart.length / 9);
  chart.forEach((bar, number) => {
    const tall = bar.value ? Math.max(1, (INNER_HEIGHT * bar.value) / top) : 0;
    const left = LEFT + number * wide;
    picture.append(s("rect", {
      class: `bar ${bar.tone ?? "a"}`, x: left + wide * 0.08, y: TOP + INNER_HEIGHT - tall, width: wide * 0.84, height: tall,
    }, s("title", {}, bar.about ?? `${bar.label}: ${bar.value}`)));
    if (number % every === 0) {
      picture.append(s("text", { x: left + wide / 2, y: HEIGHT - 6, "text-anchor": "middle" }, bar.label));
    }
  });
  return h("div", { class: "chart" }, picture);
}

// A square for each site, by region; `link` gives the address that a square leads to.
export function siteMap(sites, link) {
  const regions = new Map();
  for (const site of sites) regions.set(site.region, [...(regions.get(site.region) ?? []), site]);
  if (!regions.size) return h("p", { class: "none" }, "no sites yet");
  const names = [...regions.keys()].sort();
  return h("div", {}, names.map((region) => h("div", { class: "region" },
    names.length > 1 || region ? h("h3", {}, region || "any region", ` (${regions.get(region).length})`) : null,
    h("div", { class: "squares" }, regions.get(region).map((site) =>
      h("a", { class: `square ${standing(site)}`, href: link(site.site), title: `${site.site}: ${words(site)}`,
        "aria-label": `${site.site}: ${words(site)}` }))))));
}

export function standing(site) {
  if (site.closed) return "d";
  if (site.hold > 0) return "c";
  if (site.requests && site.errors / site.requests > 0.5) return "d";
  return site.leased ? "a" : site.queued ? "e" : "b";
}

function words(site) {
  if (site.closed) return `given up: ${site.closed}`;
  if (site.hold > 0) return `left alone for ${Math.round(site.hold)} s`;
  return site.leased ? `being fetched, ${short(site.queued)} queued` : `${short(site.queued)} queued`;
}
