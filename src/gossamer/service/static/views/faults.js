// What went wrong, with examples; and whether the delay was kept.

import * as api from "../ask.js";
import { bars } from "../charts.js";
import { card, facts, h, table } from "../dom.js";
import { clock, count, seconds, share } from "../format.js";
import { keepFresh, siteLink, urlLink } from "./common.js";

export async function errorsView(here) {
  const content = h("div", {});
  here.draw(h("div", { class: "title" }, h("h1", {}, "Errors")), content);
  await keepFresh(here, 5000, async () => {
    const found = await api.look(here.job, "errors");
    const open = new Set([...content.querySelectorAll("details[open]")].map((one) => one.dataset.kind));
    content.replaceChildren(
      h("p", { class: "none" }, `of ${count(found.requests)} requests since ${clock(found.since, true)}`),
      ...(found.faults.length ? found.faults.map((fault) => card(`${fault.kind}: ${count(fault.count)} (${share(fault.share)})`,
        fault.advice ? h("p", {}, fault.advice) : "",
        h("p", { class: "none" }, `first ${clock(fault.first_at, true)}, last ${clock(fault.last_at, true)}`),
        h("p", {}, "most on: ", Object.entries(fault.sites).slice(0, 8).map(([site, many]) => [siteLink(here, site), ` ${count(many)}  `])),
        h("details", { "data-kind": fault.kind, open: open.has(fault.kind) }, h("summary", {}, "examples"), table([
          { name: "URL", cell: (one) => urlLink(here, one.url) }, { name: "when", when: true, cell: (one) => clock(one.at, true) },
          { name: "found on", cell: (one) => (one.page ? urlLink(here, one.page) : "") },
        ], fault.examples)))) : [card("", h("p", { class: "none" }, "Nothing has failed."))]));
  });
}

export const gapBars = (found) => found.gaps.map((gap) => ({
  label: seconds(gap.least), value: gap.count, about: `at least ${seconds(gap.least)}: ${count(gap.count)}`,
}));

export async function politenessView(here) {
  const content = h("div", {});
  here.draw(h("div", { class: "title" }, h("h1", {}, "Politeness")), content);
  await keepFresh(here, 5000, async () => {
    const found = await api.look(here.job, "politeness");
    content.replaceChildren(
      facts([["rests counted", count(found.counted)], ["shortest", seconds(found.shortest)], ["shorter than the delay", count(found.too_short)]]),
      card("Rests between an answer and the next request to the same site", bars("rests between requests", gapBars(found), content.clientWidth - 34)),
      found.too_short ? card("Too short", table([
        { name: "URL", cell: (one) => urlLink(here, one.url) }, { name: "site", cell: (one) => siteLink(here, one.site) },
        { name: "when", when: true, cell: (one) => clock(one.at, true) },
      ], found.examples)) : "");
  });
}
