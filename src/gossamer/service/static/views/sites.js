// The sites of a job, and the details of one site: queue, delay, robots.txt rules, and why it waits.

import * as api from "../client.js";
import { card, facts, h, table } from "../dom.js";
import { bytes, clock, count, rate, seconds } from "../format.js";
import { poll, siteLink, urlLink } from "./common.js";

export async function sitesView(here) {
  const wanted = { sort: "queued", order: "desc", find: here.query.get("find") ?? "", held: "", limit: 50, cursor: null };
  const list = h("div", {}), summary = h("p", { class: "none" }), more = h("div", { class: "actions" });
  const cursors = [];
  const change = (values) => { Object.assign(wanted, { cursor: null }, values); cursors.length = 0; load(); };
  const columns = [
    { name: "site", sort: "site", cell: (row) => siteLink(here, row.site) },
    { name: "queued", sort: "queued", number: true, cell: (row) => count(row.queued) },
    { name: "stored", number: true, cell: (row) => count(row.stored) },
    { name: "rate", sort: "rate", number: true, cell: (row) => rate(row.requests_per_second) },
    { name: "response time", sort: "latency", number: true, cell: (row) => seconds(row.latency) },
    { name: "delay", sort: "delay", number: true, cell: (row) => seconds(row.delay) },
    { name: "requests", sort: "requests", number: true, cell: (row) => count(row.requests) },
    { name: "errors", sort: "errors", number: true, cell: (row) => count(row.errors) },
    { name: "bytes", sort: "bytes", number: true, cell: (row) => bytes(row.bytes) },
    { name: "on hold", sort: "hold", cell: (row) => row.closed || (row.hold > 0 ? `for ${seconds(row.hold)}` : "") },
    { name: "region", cell: (row) => row.region },
  ];
  async function load() {
    const found = await api.get(here.job, "sites", wanted);
    const all = wanted.sort === "site" && wanted.order === "asc" && !wanted.find && !wanted.held;
    summary.textContent = `${count(found.total)} sites. ` + (all ? "The list has all of them, sorted by name."
      : `The list has ${count(found.looked_at)}: those with the longest queues and those with recent requests. `
        + "Sort by name, ascending, to list all sites.");
    list.replaceChildren(table(columns, found.sites, {
      label: "sites", empty: "No matching sites",
      sorting: {
        by: wanted.sort, order: wanted.order,
        change: (by) => change({ sort: by, order: by === wanted.sort ? (wanted.order === "desc" ? "asc" : "desc") : (by === "site" ? "asc" : "desc") }),
      },
    }));
    more.replaceChildren(
      cursors.length ? h("button", { type: "button", onclick: () => { wanted.cursor = cursors.pop(); load(); } }, "Previous") : "",
      found.next ? h("button", { type: "button", onclick: () => { cursors.push(wanted.cursor); wanted.cursor = found.next; load(); } }, "Next") : "");
  }
  here.draw(h("div", { class: "title" }, h("h1", {}, "Sites")), card("", h("form", {
    class: "row", onsubmit: (event) => { event.preventDefault(); change({ find: event.target.elements.find.value }); },
  }, h("label", { class: "wide" }, h("span", {}, "Site name contains"), h("input", { name: "find", value: wanted.find, type: "search" })),
  h("label", {}, h("input", { type: "checkbox", onchange: (event) => change({ held: event.target.checked ? "true" : "" }) }),
    " only sites on hold or closed"), h("button", { type: "submit" }, "Find")), summary, list, more));
  await poll(here, 5000, load);
}

export async function siteView(here) {
  const site = here.item;
  const content = h("div", {});
  here.draw(h("div", { class: "title" }, h("h1", {}, site),
    h("div", { class: "actions" }, h("a", { href: here.link(here.job, "pages", "", { site }) }, "Stored pages"),
      h("a", { href: here.link(here.job, "url", "", { audit: site }) }, "All requests"))), content);
  await poll(here, 5000, async () => {
    const found = await api.get(here.job, "site", { site });
    const { row } = found;
    content.replaceChildren(
      facts([
        ["queued", count(row.queued)], ["stored", count(row.stored)], ["leased", count(row.leased)],
        ["rate", rate(row.requests_per_second)], ["response time", seconds(row.latency)], ["errors", `${count(row.errors)} of ${count(row.requests)}`],
      ]),
      h("div", { class: "grid2" },
        card("Why it waits", found.reasons.length ? h("ul", {}, found.reasons.map((text) => h("li", {}, text))) : h("p", { class: "none" }, "It does not wait."),
          facts([
            ["delay", seconds(row.delay)], ["lanes", count(found.lanes)], ["hold", row.hold > 0 ? seconds(row.hold) : "none"],
            ["next request in", found.workers.length ? "one delay" : found.ready_in === null ? "–" : seconds(found.ready_in)],
            ["budget", found.budget === null ? "none" : count(found.budget)], ["quota left", count(found.share_left)],
            ["closed", row.closed || "no"], ["region", row.region || "any"],
            ["leased by", found.workers.join(", ") || "none"],
          ])),
        card("robots.txt", table([
          { name: "origin", cell: (one) => one.origin }, { name: "result", cell: (one) => one.kind },
          { name: "rules", number: true, cell: (one) => count(one.rules) },
          { name: "Crawl-delay", number: true, cell: (one) => seconds(one.crawl_delay) },
          { name: "fetched", cell: (one) => clock(one.fetched_at, true) },
        ], found.robots, { empty: "Not fetched yet" }),
        Object.keys(found.memo).length ? h("details", {}, h("summary", {}, "Site state"), h("pre", {}, JSON.stringify(found.memo, null, 2))) : "")),
      card("Latest requests", table([
        { name: "time", when: true, cell: (one) => clock(one.at, true) }, { name: "URL", cell: (one) => urlLink(here, one.url) },
        { name: "status", cell: (one) => one.error || String(one.status || "") },
        { name: "took", number: true, cell: (one) => seconds(one.latency) }, { name: "bytes", number: true, cell: (one) => bytes(one.bytes) },
        { name: "worker", cell: (one) => one.worker },
      ], found.recent)));
  });
}
