// Errors with examples, and how well the crawl kept the delay of each site.

import * as api from "../client.js";
import { bars } from "../charts.js";
import { card, facts, h, table } from "../dom.js";
import { clock, count, seconds, share } from "../format.js";
import { poll, siteLink, urlLink } from "./common.js";

export async function errorsView(here) {
  const content = h("div", {});
  here.draw(h("div", { class: "title" }, h("h1", {}, "Errors")), content);
  await poll(here, 5000, async () => {
    const found = await api.get(here.job, "errors");
    const open = new Set([...content.querySelectorAll("details[open]")].map((one) => one.dataset.kind));
    content.replaceChildren(
      h("p", { class: "none" }, `${count(found.requests)} requests since ${clock(found.since, true)}`),
      ...(found.faults.length ? found.faults.map((fault) => card(`${fault.kind}: ${count(fault.count)} (${share(fault.share)})`,
        fault.advice ? h("p", {}, fault.advice) : "",
        h("p", { class: "none" }, `first ${clock(fault.first_at, true)}, last ${clock(fault.last_at, true)}`),
        h("p", {}, "Sites with the most: ", Object.entries(fault.sites).slice(0, 8).map(([site, number]) => [siteLink(here, site), ` ${count(number)}  `])),
        h("details", { "data-kind": fault.kind, open: open.has(fault.kind) }, h("summary", {}, "Examples"), table([
          { name: "URL", cell: (one) => urlLink(here, one.url) }, { name: "time", when: true, cell: (one) => clock(one.at, true) },
          { name: "found on", cell: (one) => (one.page ? urlLink(here, one.page) : "") },
        ], fault.examples)))) : [card("", h("p", { class: "none" }, "No failed requests."))]));
  });
}

export const gapBars = (found) => found.gaps.map((gap) => ({
  label: seconds(gap.least), value: gap.count, about: `at least ${seconds(gap.least)}: ${count(gap.count)}`,
}));

export async function politenessView(here) {
  const content = h("div", {});
  here.draw(h("div", { class: "title" }, h("h1", {}, "Politeness")), content);
  await poll(here, 5000, async () => {
    const found = await api.get(here.job, "politeness");
    content.replaceChildren(
      facts([["intervals", count(found.counted)], ["shortest interval", seconds(found.shortest)], ["shorter than the delay", count(found.too_short)]]),
      card("Time between a response and the next request to the same site", bars("intervals between requests", gapBars(found), content.clientWidth - 34)),
      found.too_short ? card("Intervals shorter than the delay", table([
        { name: "URL", cell: (one) => urlLink(here, one.url) }, { name: "site", cell: (one) => siteLink(here, one.site) },
        { name: "time", when: true, cell: (one) => clock(one.at, true) },
      ], found.examples)) : "");
  });
}
