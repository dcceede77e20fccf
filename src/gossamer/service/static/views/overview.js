// Overview of one job: rates, progress, responses, queue, and workers.

import * as api from "../client.js";
import { bars, timeChart } from "../charts.js";
import { card, facts, h, cardWidth, table } from "../dom.js";
import { ago, bytes, clock, count, rate, seconds, share } from "../format.js";
import { drawMap } from "../sites_map.js";
import { showError } from "../dialogs.js";
import { act, actions, poll, siteLink, state, urlLink, whenResized } from "./common.js";
import { gapBars } from "./errors.js";

const SPANS = [["10 min", 1, 600], ["1 h", 10, 360], ["1 day", 60, 1440]];

const SIZES = [["queued", "queue"], ["stored", "pages stored"], ["requests", "recent requests"]];

const LEAST_STEPS = 60, HELD_STEPS = 60;

// Cuts off the leading steps without data, but keeps at least LEAST_STEPS so that a chart stays readable.
function trimHistory({ start, step, series }) {
  const columns = Object.values(series), length = columns[0].length;
  let first = 0;
  while (first < length - LEAST_STEPS && columns.every((values) => values[first] === null)) first += 1;
  const cut = Object.entries(series).map(([name, values]) => [name, values.slice(first)]);
  return { start: start + first * step, step, series: Object.fromEntries(cut) };
}

// Repeats a sampled value until the next sample, for at most HELD_STEPS steps.
function carryForward(values) {
  let last = null, age = 0;
  return values.map((value) => {
    age = value === null ? age + 1 : 0;
    last = value ?? (age <= HELD_STEPS ? last : null);
    return last;
  });
}

// The limits that truncated pages, with the number of pages of each.
function cutLine(cut) {
  const reasons = Object.entries(cut ?? {}).sort(([, one], [, other]) => other - one);
  return reasons.length
    ? [h("p", { class: "problem" }, `Truncated pages: ${reasons.map(([reason, pages]) => `${reason} ${count(pages)}`).join(", ")}`)]
    : [];
}

export async function overviewView(here) {
  let [, step, steps] = SPANS[0];
  let job = await api.job(here.job);
  const head = h("div", {}), charts = h("div", { class: "grid2" }), lists = h("div", { class: "grid2" });
  const spans = h("div", { class: "actions", role: "group", "aria-label": "Time span" }, SPANS.map(([label, one, length]) =>
    h("button", {
      type: "button", "aria-pressed": String(one === step),
      onclick: (event) => {
        [step, steps] = [one, length];
        for (const button of spans.children) button.setAttribute("aria-pressed", String(button === event.target));
        drawCharts().catch(showError);
      },
    }, label)));
  const map = h("div", {});
  let by = "queued";
  const sizes = h("div", { class: "actions", role: "group", "aria-label": "Size of a site" }, SIZES.map(([name, label]) =>
    h("button", {
      type: "button", "aria-pressed": String(name === by),
      onclick: (event) => {
        by = name;
        for (const button of sizes.children) button.setAttribute("aria-pressed", String(button === event.target));
        redrawMap().catch(showError);
      },
    }, label)));
  const reload = async () => { job = await api.job(here.job); drawHead(); };

  function drawHead() {
    const counts = job.counts ?? {};
    head.replaceChildren(
      h("div", { class: "title" }, h("h1", {}, job.name), state(job.state), actions(here, job, reload)),
      job.problem ? h("p", { class: "problem" }, job.problem) : "",
      ...job.warnings.map((text) => h("p", { class: "problem" }, text)),
      facts([
        ["pages", count(counts.stored)], ["pages per second", rate(job.pages_per_second)],
        ["traffic", `${bytes(job.bytes_per_second)}/s`], ["queued", count(counts.queued)], ["known URLs", count(counts.known)],
        ["failed", count(counts.failed)], ["sites", count(counts.sites)],
        ["ready · held", `${count(counts.ready_sites)} · ${count(counts.held_sites)}`], ["workers", count(job.workers)],
        counts.revisits ? ["scheduled revisits", count(counts.revisits)] : null,
        counts.freshness !== null && counts.freshness !== undefined ? ["fresh", share(counts.freshness)] : null,
        counts.parked ? ["parked", count(counts.parked)] : null,
      ]),
      ...cutLine(job.cut));
  }

  async function drawCharts() {
    const past = trimHistory(await api.history(here.job, step, steps));
    const per = (values) => values.map((value) => (value === null ? null : value / past.step));
    const { series: all } = past;
    const wide = cardWidth(charts);
    const chart = (label, series, options = {}) =>
      card(label, timeChart(label, { start: past.start, step: past.step, series, wide, ...options }));
    charts.replaceChildren(
      chart("Pages per second", [{ name: "pages", tone: "a", values: per(all.pages) }]),
      chart("Traffic", [{ name: "traffic", tone: "b", values: per(all.bytes) }], { unit: "B/s" }),
      chart("Responses per second, by status", [
        { name: "2xx", tone: "a", values: per(all.ok) }, { name: "3xx", tone: "b", values: per(all.redirects) },
        { name: "4xx", tone: "c", values: per(all.client_errors) }, { name: "5xx", tone: "d", values: per(all.server_errors) },
        { name: "no response", tone: "e", values: per(all.faults) },
      ], { stacked: true }),
      chart("Frontier", [
        { name: "known", tone: "b", values: carryForward(all.known) }, { name: "queued", tone: "a", values: carryForward(all.queued) },
        { name: "stored", tone: "c", values: carryForward(all.stored) },
      ]),
      chart("Response time", [{ name: "mean", tone: "c", values: carryForward(all.latency) }], { unit: "s" }),
      chart("Active sites and workers", [
        { name: "sites", tone: "a", values: carryForward(all.active_sites) }, { name: "workers", tone: "d", values: carryForward(all.workers) },
      ]));
  }

  async function drawLists() {
    const get = (resource, query) => api.get(here.job, resource, query);
    const [busy, slow, errors, gaps, recent, scale] = await Promise.all([
      get("sites", { sort: "rate", limit: 8 }), get("sites", { sort: "latency", limit: 8 }),
      get("errors"), get("politeness"), get("recent"),
      job.place === "fleet" ? get("scale").catch(() => null) : null,
    ]);
    lists.replaceChildren(
      card("Busiest sites", table([
        { name: "site", cell: (row) => siteLink(here, row.site) },
        { name: "rate", number: true, cell: (row) => rate(row.requests_per_second) },
        { name: "queued", number: true, cell: (row) => count(row.queued) },
        { name: "errors", number: true, cell: (row) => count(row.errors) },
      ], busy.sites)),
      card("Slowest sites", table([
        { name: "site", cell: (row) => siteLink(here, row.site) },
        { name: "response time", number: true, cell: (row) => seconds(row.latency) },
        { name: "delay", number: true, cell: (row) => seconds(row.delay) },
        { name: "requests", number: true, cell: (row) => count(row.requests) },
      ], slow.sites.filter((row) => row.latency !== null))),
      card("Errors", table([
        { name: "kind", cell: (row) => [row.kind, row.examples[0] ? [": ", urlLink(here, row.examples[0].url)] : null] },
        { name: "requests", number: true, cell: (row) => count(row.count) },
        { name: "share", number: true, cell: (row) => share(row.share) },
      ], errors.faults.slice(0, 6), { empty: "No errors" })),
      card(`Politeness: time between requests to a site${gaps.too_short ? `, ${count(gaps.too_short)} too short` : ""}`,
        bars("intervals between requests", gapBars(gaps), cardWidth(lists))),
      card("Latest requests", table([
        { name: "time", cell: (row) => h("span", { title: ago(row.at) }, clock(row.at)) },
        { name: "URL", cell: (row) => urlLink(here, row.url) },
        { name: "", cell: (row) => row.error || String(row.status || "") },
        { name: "took", number: true, cell: (row) => seconds(row.latency) },
      ], recent.visits.slice(0, 10))),
      scale ? card("Recommended workers", facts([["recommended", count(scale.workers)], ["running", count(scale.live)]]),
        h("p", { class: "none" }, scale.why)) : "");
  }

  async function redrawMap() {
    const found = await api.get(here.job, "map", { by });
    drawMap(map, found, {
      link: (site) => here.link(here.job, "site", site), rest: here.link(here.job, "sites"), wide: Math.max(240, map.clientWidth),
    });
  }

  drawHead();
  here.onSample = (sample) => {
    if (sample.job !== here.job) return;
    Object.assign(job, {
      state: sample.state, counts: sample.counts ?? job.counts, pages_per_second: sample.pages_per_second,
      bytes_per_second: sample.bytes_per_second, workers: sample.workers, cut: sample.cut,
    });
    drawHead();
  };
  here.onJob = (changed) => { if (changed.name === here.job) { Object.assign(job, changed); drawHead(); } };
  here.pauseOrResume = () => here.about.role === "write" && act(job.name, job.state === "running" ? "pause" : "resume", reload);
  here.draw(head, h("div", { class: "title" }, spans), charts,
    h("section", { class: "card map" }, h("div", { class: "title" }, h("h2", {}, "Sites by region"), sizes), map), lists);
  whenResized(here, () => Promise.all([drawCharts(), redrawMap()]).catch(showError));
  await Promise.all([
    poll(here, 5000, drawCharts), poll(here, 7000, redrawMap), poll(here, 7000, drawLists), poll(here, 4000, reload),
  ]);
}
