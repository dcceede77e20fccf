// The history of a URL (why it was or was not fetched), and every request to a site.

import * as api from "../client.js";
import { card, facts, h, table } from "../dom.js";
import { bytes, clock, count, seconds } from "../format.js";
import { showError } from "../dialogs.js";
import { urlLink } from "./common.js";

export async function urlView(here) {
  const url = here.query.get("u") ?? "", site = here.query.get("audit") ?? "";
  const content = h("div", { class: "stack" });
  here.draw(h("div", { class: "title" }, h("h1", {}, "URL history")), card("", h("form", {
    class: "row",
    onsubmit: (event) => {
      event.preventDefault();
      const text = event.target.elements.text.value.trim();
      location.hash = here.link(here.job, "url", "", text.includes("/") ? { u: text } : { audit: text });
    },
  }, h("label", { class: "wide" }, h("span", {}, "A URL for its history, or a host for all requests to it"),
    h("input", { name: "text", value: url || site, required: true, autofocus: !url && !site })),
  h("button", { type: "submit", class: "main" }, "Look up"))), content);
  if (url) await urlHistory(here, url, content);
  if (site) await audit(here, site, content);
}

async function urlHistory(here, url, content) {
  const found = await api.get(here.job, "why", { url });
  const versions = await api.get(here.job, "versions", { url }).catch(() => ({ versions: [] }));
  const page = found.referrer ? urlLink(here, found.referrer) : found.seen && !found.depth ? "none (a seed, or added by a user)" : null;
  content.replaceChildren(
    card(url,
      facts([["state", found.state], ["depth", found.depth === undefined ? null : count(found.depth)], ["response", found.code ? String(found.code) : null], ["reason", found.reason || null],
        ["requests", count(found.attempts.length)], ["truncated", found.cut || null]]),
      h("dl", { class: "definitions" }, [["found on", page], ["waiting for", found.waits?.words], ["next visit", found.next?.words]]
        .filter(([, text]) => text).map(([name, text]) => [h("dt", {}, name), h("dd", {}, text)]))),
    card("Rules, in the order of evaluation", h("ul", { class: "rules" }, found.rules.map((rule) =>
      h("li", { class: rule.allows ? "good" : "bad" }, h("strong", {}, rule.allows ? "allows" : "rejects"), ` ${rule.words} `,
        rule.setting ? h("code", {}, rule.setting) : "")))),
    found.attempts.length ? card("Requests", table([
      { name: "time", when: true, cell: (one) => clock(one.at, true) },
      { name: "status", cell: (one) => (one.skipped ? `skipped: ${one.skipped}` : one.error || String(one.status || "")) },
      { name: "took", number: true, cell: (one) => seconds(one.latency ?? null) },
      { name: "bytes", number: true, cell: (one) => bytes(one.bytes ?? null) },
      { name: "delay", number: true, cell: (one) => seconds(one.delay ?? null) }, { name: "worker", cell: (one) => one.worker ?? "" },
    ], found.attempts.toReversed())) : "",
    card("", h("details", {}, h("summary", {}, "All details"), h("dl", { class: "definitions" }, definitions(found)))),
    versions.versions.length ? card("Stored versions", table([
      { name: "fetched", when: true, cell: (page) => clock(page.fetched_at, true) }, { name: "status", cell: (page) => page.error || String(page.status) },
      { name: "title", cell: (page) => page.title }, { name: "bytes", number: true, cell: (page) => bytes(page.bytes) },
      { name: "digest", cell: (page) => h("code", {}, page.digest.slice(0, 12)) },
      { name: "", cell: (page) => (page.has_body ? h("a", { href: api.bodyAddress(here.job, url, page.fetched_at), download: "" }, "body") : "") },
    ], versions.versions)) : "");
}

// All fields of a response as names and values, so that new fields need no change here.
function definitions(value) {
  return Object.entries(value).filter(([, one]) => one !== null && one !== "" && !(Array.isArray(one) && !one.length)).map(([name, one]) => [
    h("dt", {}, name.replaceAll("_", " ")),
    h("dd", {}, shown(name, one)),
  ]);
}

function shown(name, value) {
  if (Array.isArray(value)) return h("ul", {}, value.map((one) => h("li", {}, shown(name, one))));
  if (value && typeof value === "object") return h("dl", { class: "definitions" }, definitions(value));
  if (typeof value === "number" && /(^|_)at$|until$/.test(name) && value > 1e9) return clock(value, true);
  return typeof value === "number" ? String(Math.round(value * 1000) / 1000) : String(value);
}

async function audit(here, site, content) {
  const found = await api.get(here.job, "audit", { site, limit: 500 });
  const requests = found.requests ?? [];
  content.replaceChildren(card(`${site}: ${count(found.sent)} requests, ${count(found.too_short)} sooner than the delay allows`, table([
    { name: "time", when: true, cell: (one) => clock(one.at, true) }, { name: "gap", number: true, cell: (one) => seconds(one.gap) },
    { name: "delay", number: true, cell: (one) => seconds(one.delay) }, { name: "URL", cell: (one) => urlLink(here, one.url) },
    { name: "status", cell: (one) => one.error || String(one.status || "") }, { name: "rule", cell: (one) => one.rule ?? "" },
    { name: "worker", cell: (one) => one.worker ?? "" },
  ], requests.toReversed(), { empty: "No requests were sent to this site" })));
  if (!requests.length && found.skipped === undefined) showError(new Error(`This job has no site ${site}`));
}
