// Stored pages: search by site, status, time, and URL prefix, with links to each page's body.

import * as api from "../client.js";
import { card, h, table } from "../dom.js";
import { bytes, clock, count, cut } from "../format.js";
import { showError } from "../dialogs.js";
import { urlLink } from "./common.js";

export async function pagesView(here) {
  const wanted = { site: here.query.get("site") ?? "", status: "", prefix: "", since: "", until: "", limit: 50 };
  const list = h("div", {}), more = h("div", { class: "actions" });
  let rows = [], next = null;
  const columns = [
    { name: "URL", cell: (page) => urlLink(here, page.url) }, { name: "status", cell: (page) => page.error || String(page.status || "") },
    { name: "title", cell: (page) => cut(page.title, 80) }, { name: "fetched", when: true, cell: (page) => clock(page.fetched_at, true) },
    { name: "bytes", number: true, cell: (page) => bytes(page.bytes) }, { name: "links", number: true, cell: (page) => count(page.links) },
    { name: "", cell: (page) => (page.has_body ? h("a", { href: api.bodyAddress(here.job, page.url, page.fetched_at), download: "" }, "body") : "") },
  ];
  async function load(cursor = null) {
    const found = await api.get(here.job, "pages", { ...wanted, cursor });
    rows = cursor ? [...rows, ...found.pages] : found.pages;
    next = found.next;
    list.replaceChildren(table(columns, rows, { label: "pages", empty: next ? "No match among the newest pages" : "No matching pages" }));
    more.replaceChildren(next ? h("button", { type: "button", onclick: () => load(next).catch(showError) }, "More") : "");
  }
  const input = (label, name, attributes = {}) =>
    h("label", { class: name === "prefix" ? "wide" : null }, h("span", {}, label), h("input", { name, value: wanted[name], ...attributes }));
  here.draw(h("div", { class: "title" }, h("h1", {}, "Pages")), card("", h("form", {
    class: "row",
    onsubmit: (event) => {
      event.preventDefault();
      for (const name of ["site", "status", "prefix"]) wanted[name] = event.target.elements[name].value.trim();
      for (const name of ["since", "until"]) wanted[name] = epochSeconds(event.target.elements[name].value);
      load().catch(showError);
    },
  }, input("Site", "site"), input("Status", "status", { type: "number", min: 0, max: 999 }), input("Fetched after", "since", { type: "datetime-local" }),
  input("Fetched before", "until", { type: "datetime-local" }), input("URL prefix", "prefix"),
  h("button", { type: "submit" }, "Search")), list, more));
  await load();
}

// Epoch seconds of a datetime-local value (the browser's time zone); an empty string for an empty field.
const epochSeconds = (text) => (text ? String(new Date(text).getTime() / 1000) : "");
