// Answers to "why?": the whole story of a URL, and every request to a site.

import * as api from "../ask.js";
import { card, facts, h, table } from "../dom.js";
import { bytes, clock, count, seconds } from "../format.js";
import { complain } from "../talk.js";
import { urlLink } from "./common.js";

export async function urlView(here) {
  const url = here.query.get("u") ?? "", site = here.query.get("audit") ?? "";
  const content = h("div", { class: "stack" });
  here.draw(h("div", { class: "title" }, h("h1", {}, "Why?")), card("", h("form", {
    class: "row",
    onsubmit: (event) => {
      event.preventDefault();
      const text = event.target.elements.text.value.trim();
      location.hash = here.link(here.job, "url", "", text.includes("/") ? { u: text } : { audit: text });
    },
  }, h("label", { class: "wide" }, h("span", {}, "A URL for its story, or a host for every request to it"),
    h("input", { name: "text", value: url || site, required: true, autofocus: !url && !site })),
  h("button", { type: "submit", class: "main" }, "Ask"))), content);
  if (url) await story(here, url, content);
  if (site) await audit(here, site, content);
}

async function story(here, url, content) {
  const told = await api.look(here.job, "why", { url });
  const versions = await api.look(here.job, "versions", { url }).catch(() => ({ versions: [] }));
  const page = told.referrer ? urlLink(here, told.referrer) : told.seen && !told.depth ? "none: it is a seed, or was added by hand" : null;
  content.replaceChildren(
    card(url,
      facts([["state", told.state], ["depth", told.depth === undefined ? null : count(told.depth)], ["answer", told.code ? String(told.code) : null], ["reason", told.reason || null],
        ["requests", count(told.attempts.length)], ["cut", told.cut || null]]),
      h("dl", { class: "story" }, [["found on", page], ["waits", told.waits?.words], ["next visit", told.next?.words]]
        .filter(([, words]) => words).map(([name, words]) => [h("dt", {}, name), h("dd", {}, words)]))),
    card("Rules, in the order in which they are asked", h("ul", { class: "rules" }, told.rules.map((rule) =>
      h("li", { class: rule.allows ? "good" : "bad" }, h("strong", {}, rule.allows ? "lets it in" : "keeps it out"), ` ${rule.words} `,
        rule.setting ? h("code", {}, rule.setting) : "")))),
    told.attempts.length ? card("Requests", table([
      { name: "when", when: true, cell: (one) => clock(one.at, true) },
      { name: "answer", cell: (one) => (one.skipped ? `kept back: ${one.skipped}` : one.error || String(one.status || "")) },
      { name: "took", number: true, cell: (one) => seconds(one.latency ?? null) },
      { name: "bytes", number: true, cell: (one) => bytes(one.bytes ?? null) },
      { name: "delay", number: true, cell: (one) => seconds(one.delay ?? null) }, { name: "worker", cell: (one) => one.worker ?? "" },
    ], told.attempts.toReversed())) : "",
    card("", h("details", {}, h("summary", {}, "all that is known"), h("dl", { class: "story" }, plain(told)))),
    versions.versions.length ? card("Stored versions", table([
      { name: "fetched", when: true, cell: (page) => clock(page.fetched_at, true) }, { name: "status", cell: (page) => page.error || String(page.status) },
      { name: "title", cell: (page) => page.title }, { name: "bytes", number: true, cell: (page) => bytes(page.bytes) },
      { name: "digest", cell: (page) => h("code", {}, page.digest.slice(0, 12)) },
      { name: "", cell: (page) => (page.has_body ? h("a", { href: api.bodyAddress(here.job, url, page.fetched_at), download: "" }, "body") : "") },
    ], versions.versions)) : "");
}

// Whatever the answer holds, as names and values: it grows with the product, and so does this page.
function plain(value) {
  return Object.entries(value).filter(([, one]) => one !== null && one !== "" && !(Array.isArray(one) && !one.length)).map(([name, one]) => [
    h("dt", {}, name.replaceAll("_", " ")),
    h("dd", {}, shown(name, one)),
  ]);
}

function shown(name, value) {
  if (Array.isArray(value)) return h("ul", {}, value.map((one) => h("li", {}, shown(name, one))));
  if (value && typeof value === "object") return h("dl", { class: "story" }, plain(value));
  if (typeof value === "number" && /(^|_)at$|until$/.test(name) && value > 1e9) return clock(value, true);
  return typeof value === "number" ? String(Math.round(value * 1000) / 1000) : String(value);
}

async function audit(here, site, content) {
  const found = await api.look(here.job, "audit", { site, limit: 500 });
  const requests = found.requests ?? [];
  content.replaceChildren(card(`${site}: ${count(found.sent)} requests, ${count(found.too_short)} sooner than the delay`, table([
    { name: "when", when: true, cell: (one) => clock(one.at, true) }, { name: "gap", number: true, cell: (one) => seconds(one.gap) },
    { name: "delay", number: true, cell: (one) => seconds(one.delay) }, { name: "URL", cell: (one) => urlLink(here, one.url) },
    { name: "answer", cell: (one) => one.error || String(one.status || "") }, { name: "rule", cell: (one) => one.rule ?? "" },
    { name: "worker", cell: (one) => one.worker ?? "" },
  ], requests.toReversed(), { empty: "no request was sent to it" })));
  if (!requests.length && found.skipped === undefined) complain(new Error(`nothing is known of ${site}`));
}
