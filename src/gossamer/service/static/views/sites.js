// The sites of a job, and one of them: its queue, its delay, its rules, and what it waits for.

import * as api from "../ask.js";
import { card, facts, h, table } from "../dom.js";
import { bytes, clock, count, rate, seconds } from "../format.js";
import { keepFresh, siteLink, urlLink } from "./common.js";

export async function sitesView(here) {
  const wanted = { sort: "queued", order: "desc", find: here.query.get("find") ?? "", held: "", limit: 50, cursor: null };
  const list = h("div", {}), summary = h("p", { class: "none" }), more = h("div", { class: "actions" });
  const trail = [];
  const change = (values) => { Object.assign(wanted, { cursor: null }, values); trail.length = 0; load(); };
  const columns = [
    { name: "site", sort: "site", cell: (row) => siteLink(here, row.site) },
    { name: "queued", sort: "queued", number: true, cell: (row) => count(row.queued) },
    { name: "stored", number: true, cell: (row) => count(row.stored) },
    { name: "rate", sort: "rate", number: true, cell: (row) => rate(row.requests_per_second) },
    { name: "answer", sort: "latency", number: true, cell: (row) => seconds(row.latency) },
    { name: "delay", sort: "delay", number: true, cell: (row) => seconds(row.delay) },
    { name: "requests", sort: "requests", number: true, cell: (row) => count(row.requests) },
    { name: "errors", sort: "errors", number: true, cell: (row) => count(row.errors) },
    { name: "bytes", sort: "bytes", number: true, cell: (row) => bytes(row.bytes) },
    { name: "left alone", sort: "hold", cell: (row) => row.closed || (row.hold > 0 ? `for ${seconds(row.hold)}` : "") },
    { name: "region", cell: (row) => row.region },
  ];
  async function load() {
    const found = await api.look(here.job, "sites", wanted);
    const all = wanted.sort === "site" && wanted.order === "asc" && !wanted.find && !wanted.held;
    summary.textContent = `${count(found.total)} sites; ` + (all ? "all of them, page by page, as the frontier keeps them."
      : `${count(found.looked_at)} were sorted: those with the most queued, and those that were asked lately. `
        + "By name, upwards, all are listed.");
    list.replaceChildren(table(columns, found.sites, {
      label: "sites", empty: "no site matches",
      sorting: {
        by: wanted.sort, order: wanted.order,
        change: (by) => change({ sort: by, order: by === wanted.sort ? (wanted.order === "desc" ? "asc" : "desc") : (by === "site" ? "asc" : "desc") }),
      },
    }));
    more.replaceChildren(
      trail.length ? h("button", { type: "button", onclick: () => { wanted.cursor = trail.pop(); load(); } }, "Before") : "",
      found.next ? h("button", { type: "button", onclick: () => { trail.push(wanted.cursor); wanted.cursor = found.next; load(); } }, "More") : "");
  }
  here.draw(h("div", { class: "title" }, h("h1", {}, "Sites")), card("", h("form", {
    class: "row", onsubmit: (event) => { event.preventDefault(); change({ find: event.target.elements.find.value }); },
  }, h("label", { class: "wide" }, h("span", {}, "Part of a name"), h("input", { name: "find", value: wanted.find, type: "search" })),
  h("label", {}, h("input", { type: "checkbox", onchange: (event) => change({ held: event.target.checked ? "true" : "" }) }),
    " only those left alone or given up"), h("button", { type: "submit" }, "Find")), summary, list, more));
  await keepFresh(here, 5000, load);
}

export async function siteView(here) {
  const site = here.item;
  const content = h("div", {});
  here.draw(h("div", { class: "title" }, h("h1", {}, site),
    h("div", { class: "actions" }, h("a", { href: here.link(here.job, "pages", "", { site }) }, "stored pages"),
      h("a", { href: here.link(here.job, "url", "", { audit: site }) }, "every request"))), content);
  await keepFresh(here, 5000, async () => {
    const found = await api.look(here.job, "site", { site });
    const { row } = found;
    content.replaceChildren(
      facts([
        ["queued", count(row.queued)], ["stored", count(row.stored)], ["being fetched", count(row.leased)],
        ["rate", rate(row.requests_per_second)], ["answer", seconds(row.latency)], ["errors", `${count(row.errors)} of ${count(row.requests)}`],
      ]),
      h("div", { class: "grid2" },
        card("What it waits for", found.reasons.length ? h("ul", {}, found.reasons.map((text) => h("li", {}, text))) : h("p", { class: "none" }, "nothing"),
          facts([
            ["delay", seconds(row.delay)], ["lanes", count(found.lanes)], ["hold", row.hold > 0 ? seconds(row.hold) : "none"],
            ["next request in", found.workers.length ? "its delay" : found.ready_in === null ? "–" : seconds(found.ready_in)],
            ["budget", found.budget === null ? "none" : count(found.budget)], ["left of its quota", count(found.share_left)],
            ["given up", row.closed || "no"], ["region", row.region || "any"],
            ["held by", found.workers.join(", ") || "nobody"],
          ])),
        card("robots.txt", table([
          { name: "origin", cell: (one) => one.origin }, { name: "answer", cell: (one) => one.kind },
          { name: "rules for us", number: true, cell: (one) => count(one.rules) },
          { name: "Crawl-delay", number: true, cell: (one) => seconds(one.crawl_delay) },
          { name: "asked", cell: (one) => clock(one.fetched_at, true) },
        ], found.robots, { empty: "not asked for yet" }),
        Object.keys(found.memo).length ? h("details", {}, h("summary", {}, "what else is remembered"), h("pre", {}, JSON.stringify(found.memo, null, 2))) : "")),
      card("Latest requests", table([
        { name: "when", when: true, cell: (one) => clock(one.at, true) }, { name: "URL", cell: (one) => urlLink(here, one.url) },
        { name: "answer", cell: (one) => one.error || String(one.status || "") },
        { name: "took", number: true, cell: (one) => seconds(one.latency) }, { name: "bytes", number: true, cell: (one) => bytes(one.bytes) },
        { name: "worker", cell: (one) => one.worker },
      ], found.recent)));
  });
}
