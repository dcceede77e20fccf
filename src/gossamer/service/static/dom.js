// Builds DOM elements from plain values. Text stays text: nothing from a crawled page is parsed as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.entries(value).forEach(([key, text]) => element.style.setProperty(key, text));
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

export function card(title, ...content) {
  return h("section", { class: "card" }, title ? h("h2", {}, title) : null, ...content);
}

// A table of columns ({name, cell, sort}, with `number` or `when` for cells that do not wrap) and rows; `sorting` is {by, order, change}.
export function table(columns, rows, { empty = "No data yet", sorting = null, label = "" } = {}) {
  const head = columns.map((column) => {
    const mark = sorting && column.sort === sorting.by ? (sorting.order === "desc" ? " ↓" : " ↑") : "";
    const aria = mark ? (sorting.order === "desc" ? "descending" : "ascending") : null;
    const title = sorting && column.sort
      ? h("button", { type: "button", class: "link", onclick: () => sorting.change(column.sort) }, column.name + mark)
      : column.name;
    return h("th", { class: column.number ? "number" : null, scope: "col", "aria-sort": aria }, title);
  });
  const body = rows.map((row) =>
    h("tr", {}, columns.map((column) => h("td", { class: column.number ? "number" : column.when ? "when" : null }, column.cell(row)))));
  if (!rows.length) body.push(h("tr", {}, h("td", { class: "none", colspan: columns.length }, empty)));
  return h("div", { class: "scroll" }, h("table", { "aria-label": label || null }, h("thead", {}, h("tr", {}, head)),
    h("tbody", {}, body)));
}

export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter((pair) => pair && pair[1] !== null && pair[1] !== undefined)
    .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

// Width of a card's content in a two-column grid, computed as in style.css.
export function cardWidth(grid) {
  const whole = grid.clientWidth || 640, columns = Math.max(1, Math.floor((whole + 14) / (460 + 14)));
  return (whole - 14 * (columns - 1)) / columns - 34;
}
