// What was stored: search by site, status, time and beginning of the URL; one page with its versions and its body.

import * as api from "../ask.js";
import { card, h, table } from "../dom.js";
import { bytes, clock, count, cut } from "../format.js";
import { complain } from "../talk.js";
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
    const found = await api.look(here.job, "pages", { ...wanted, cursor });
    rows = cursor ? [...rows, ...found.pages] : found.pages;
    next = found.next;
    list.replaceChildren(table(columns, rows, { label: "pages", empty: next ? "none among the newest" : "no page matches" }));
    more.replaceChildren(next ? h("button", { type: "button", onclick: () => load(next).catch(complain) }, "More") : "");
  }
  const input = (label, name, attributes = {}) =>
    h("label", { class: name === "prefix" ? "wide" : null }, h("span", {}, label), h("input", { name, value: wanted[name], ...attributes }));
  here.draw(h("div", { class: "title" }, h("h1", {}, "Pages")), card("", h("form", {
    class: "row",
    onsubmit: (event) => {
      event.preventDefault();
      for (const name of ["site", "status", "prefix"]) wanted[name] = event.target.elements[name].value.trim();
      for (const name of ["since", "until"]) wanted[name] = moment(event.target.elements[name].value);
      load().catch(complain);
    },
  }, input("Site", "site"), input("Status", "status", { type: "number", min: 0, max: 999 }), input("Fetched from", "since", { type: "datetime-local" }),
  input("Up to", "until", { type: "datetime-local" }), input("URLs that begin with", "prefix"),
  h("button", { type: "submit" }, "Search")), list, more));
  await load();
}

// Epoch seconds of a time as a field has it, which is the reader's own; nothing where it is empty.
const moment = (text) => (text ? String(new Date(text).getTime() / 1000) : "");
