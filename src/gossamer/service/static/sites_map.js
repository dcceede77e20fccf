// Treemap of a job's sites: one area per region, one rectangle per site, sized by queue length and colored by state.
// The Tab key moves between regions, the arrow keys between sites, and Enter opens a site.

import { h, s } from "./dom.js";
import { count, cut, seconds, short } from "./format.js";

const LETTER = 6.2, LEAST_HEIGHT = 72, MOST_HEIGHT = 340, LEAST_SHARE = 0.15;
export const STATES = [
  ["fetching", "fetching", ""], ["waits", "queued", ""], ["idle", "idle", ""], ["held", "on hold", "‖"],
  ["failing", "failing", "!"], ["closed", "closed", "×"],
];
const WORDS = Object.fromEntries(STATES), MARKS = Object.fromEntries(STATES.map(([state, , mark]) => [state, mark]));

// Squarified treemap: rectangles for weights (largest first) that fill `field`, each as close to a square as possible.
export function layOut(weights, field) {
  const total = weights.reduce((sum, weight) => sum + weight, 0) || 1;
  const areas = weights.map((weight) => (weight / total) * field.width * field.height);
  const found = [];
  let { x, y, width, height } = field, first = 0;
  while (first < areas.length) {
    const side = Math.max(1e-6, Math.min(width, height));
    let last = first, sum = areas[first], worst = worstRatio(areas[first], areas[first], sum, side);
    while (last + 1 < areas.length) {
      const wider = sum + areas[last + 1], next = worstRatio(areas[first], areas[last + 1], wider, side);
      if (next > worst) break;
      [sum, worst, last] = [wider, next, last + 1];
    }
    const thick = sum / side;
    let along = 0;
    for (let number = first; number <= last; number += 1) {
      const long = areas[number] / Math.max(thick, 1e-9);
      found.push(width >= height ? { x, y: y + along, width: thick, height: long } : { x: x + along, y, width: long, height: thick });
      along += long;
    }
    if (width >= height) { x += thick; width -= thick; } else { y += thick; height -= thick; }
    first = last + 1;
  }
  return found;
}

const worstRatio = (largest, smallest, sum, side) =>
  Math.max((side * side * largest) / (sum * sum), (sum * sum) / (side * side * smallest));

function describe(site) {
  const size = `${count(site.queued)} queued, ${count(site.stored)} stored`;
  if (site.state === "closed") return `closed (${site.closed}), ${size}`;
  if (site.state === "held") return `on hold for ${seconds(site.hold)}, ${size}`;
  if (site.state === "failing") return `${count(site.errors)} of ${count(site.requests)} requests failed, ${size}`;
  return `${WORDS[site.state]}, ${size}`;
}

function label(text, box) {
  const letters = Math.floor((box.width - 8) / LETTER);
  // Where space is short, drop the port first.
  const fits = text.length > letters ? text.replace(/:\d+$/, "") : text;
  return box.height < 16 || letters < 4 ? "" : cut(fits, letters);
}

function rectangle({ href, about, name, amount, state }, box) {
  const top = label(`${MARKS[state] ? `${MARKS[state]} ` : ""}${name}`, box);
  const lines = [s("rect", { x: box.x + 0.5, y: box.y + 0.5, width: Math.max(0.5, box.width - 1), height: Math.max(0.5, box.height - 1), rx: 2 }),
    s("title", {}, about)];
  if (top) lines.push(s("text", { x: box.x + 5, y: box.y + 14 }, top));
  else if (MARKS[state] && box.width >= 9 && box.height >= 12) lines.push(s("text", { x: box.x + box.width / 2, y: box.y + box.height / 2 + 4, "text-anchor": "middle" }, MARKS[state]));
  if (top && amount && box.height >= 32) lines.push(s("text", { x: box.x + 5, y: box.y + 28 }, cut(amount, Math.floor((box.width - 8) / LETTER))));
  return s("a", { href, class: `site ${state}`, "aria-label": about, tabindex: -1 }, lines);
}

function region(found, { by, link, rest, wide, share, readout, alone }) {
  const total = found.sites.reduce((sum, site) => sum + site[by], found.rest[by]);
  // Sites with a count of zero are drawn too, as small rectangles.
  const least = Math.max(1, total) / (found.sites.length + 1) * LEAST_SHARE;
  const fields = found.sites.map((site) => ({
    weight: site[by] + least, href: link(site.site), name: site.site, state: site.state, amount: short(site[by]), about: `${site.site}: ${describe(site)}`,
  }));
  if (found.rest.sites) {
    const others = `${count(found.rest.sites)} more sites`;
    fields.push({ weight: found.rest[by] + least, href: rest, name: `+ ${others}`, state: "rest", amount: "", about: `${others}: ${count(found.rest.queued)} queued, ${count(found.rest.stored)} stored` });
  }
  fields.sort((one, other) => other.weight - one.weight);
  const height = Math.round(Math.min(MOST_HEIGHT, Math.max(LEAST_HEIGHT, MOST_HEIGHT * Math.sqrt(share))));
  const boxes = layOut(fields.map((one) => one.weight), { x: 0, y: 0, width: wide, height });
  const rectangles = fields.map((one, number) => rectangle(one, boxes[number]));
  rectangles[0]?.setAttribute("tabindex", 0);
  const name = found.region || (alone ? "all regions" : "no region");
  const states = STATES.map(([state, text]) => [found.sites.filter((site) => site.state === state).length, text]).filter(([number]) => number);
  const picture = s("svg", { viewBox: `0 0 ${wide} ${height}`, role: "group", "aria-label": `sites of ${name}, by ${by}`, "data-region": found.region }, rectangles);
  addArrowKeys(picture, rectangles, boxes, fields, readout);
  return h("div", { class: "region" }, h("h3", {}, h("b", {}, name), ` ${count(found.sites.length + found.rest.sites)} sites, ${count(total)} ${by}: `,
    states.map(([number, text]) => `${count(number)} ${text}`).join(" · ")), picture);
}

// Arrow keys move to the nearest rectangle in their direction, Home and End to the largest and the smallest.
function addArrowKeys(picture, rectangles, boxes, fields, readout) {
  const show = (number) => { readout.textContent = fields[number].about; };
  const go = (number) => {
    rectangles.forEach((one, place) => one.setAttribute("tabindex", place === number ? 0 : -1));
    rectangles[number].focus();
  };
  rectangles.forEach((one, number) => {
    one.addEventListener("pointerenter", () => show(number));
    one.addEventListener("focus", () => show(number));
  });
  picture.addEventListener("keydown", (event) => {
    const from = rectangles.indexOf(event.target.closest("a"));
    const to = event.key === "Home" ? 0 : event.key === "End" ? rectangles.length - 1 : nearest(boxes, from, event.key);
    if (from < 0 || to === null) return;
    event.preventDefault();
    go(to);
  });
}

function nearest(boxes, from, key) {
  const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[key];
  if (!way || from < 0) return null;
  const middle = (box) => [box.x + box.width / 2, box.y + box.height / 2];
  const [x, y] = middle(boxes[from]);
  let best = null, least = Infinity;
  boxes.forEach((box, number) => {
    const [dx, dy] = [middle(box)[0] - x, middle(box)[1] - y];
    const ahead = dx * way[0] + dy * way[1], aside = Math.abs(dx * way[1]) + Math.abs(dy * way[0]);
    if (number !== from && ahead > 0.1 && ahead + 2 * aside < least) [best, least] = [number, ahead + 2 * aside];
  });
  return best;
}

// Replaces the map and keeps the keyboard focus on the same site.
export function drawMap(place, found, { link, rest, wide }) {
  const now = document.activeElement, kept = place.contains(now) ? [now.closest("svg")?.dataset.region, now.getAttribute("href")] : null;
  const readout = h("p", { class: "readout", "aria-hidden": "true" }, " ");
  const amount = (one) => one.sites.reduce((sum, site) => sum + site[found.by], one.rest[found.by]) + one.sites.length;
  const most = Math.max(1, ...found.regions.map(amount));
  const parts = found.regions.map((one) => region(one, { by: found.by, link, rest, wide, share: amount(one) / most, readout, alone: found.regions.length === 1 }));
  place.replaceChildren(
    ...(parts.length ? parts : [h("p", { class: "none" }, "No sites yet")]),
    found.unseen ? h("p", { class: "none" }, `${count(found.unseen)} more sites have shorter queues and no recent requests. `, h("a", { href: rest }, "All sites")) : "",
    h("p", { class: "legend" }, STATES.map(([state, text, mark]) => h("span", {}, h("i", { class: `dot site ${state}` }), mark ? `${mark} ${text}` : text))),
    readout);
  if (!kept) return;
  const again = [...place.querySelectorAll("svg a")].find((one) => one.closest("svg").dataset.region === kept[0] && one.getAttribute("href") === kept[1]);
  if (!again) return;
  again.closest("svg").querySelectorAll("a").forEach((one) => one.setAttribute("tabindex", -1));
  again.setAttribute("tabindex", 0);
  again.focus({ preventScroll: true });
}
