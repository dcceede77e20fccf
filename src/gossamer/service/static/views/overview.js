// One job at a glance: how fast, how far, what answers come, what waits, who works.

import * as api from "../ask.js";
import { bars, overTime } from "../charts.js";
import { card, facts, h, roomIn, table } from "../dom.js";
import { ago, bytes, clock, count, rate, seconds, share } from "../format.js";
import { drawMap } from "../sitemap.js";
import { complain } from "../talk.js";
import { act, actions, keepFresh, siteLink, state, urlLink, whenResized } from "./common.js";
import { gapBars } from "./faults.js";

const SPANS = [["10 min", 1, 600], ["1 h", 10, 360], ["1 day", 60, 1440]];

const SIZES = [["queued", "queue"], ["stored", "pages stored"], ["requests", "requests of late"]];

const LEAST_STEPS = 60, HELD_STEPS = 60;

// The past without the time before anything was known of it, but never so short that a chart is all slope.
function known({ start, step, series }) {
  const columns = Object.values(series), length = columns[0].length;
  let first = 0;
  while (first < length - LEAST_STEPS && columns.every((values) => values[first] === null)) first += 1;
  const cut = Object.entries(series).map(([name, values]) => [name, values.slice(first)]);
  return { start: start + first * step, step, series: Object.fromEntries(cut) };
}

// What is looked at only now and then holds until the next look, unless that never came.
function held(values) {
  let last = null, age = 0;
  return values.map((value) => {
    age = value === null ? age + 1 : 0;
    last = value ?? (age <= HELD_STEPS ? last : null);
    return last;
  });
}

// Which limits dropped something of pages, if any did.
function cutLine(cut) {
  const reasons = Object.entries(cut ?? {}).sort(([, one], [, other]) => other - one);
  return reasons.length
    ? [h("p", { class: "problem" }, `Pages that were cut: ${reasons.map(([reason, pages]) => `${reason} ${count(pages)}`).join(", ")}`)]
    : [];
}

export async function overviewView(here) {
  let [, step, steps] = SPANS[0];
  let job = await api.job(here.job);
  const head = h("div", {}), charts = h("div", { class: "grid2" }), lists = h("div", { class: "grid2" });
  const spans = h("div", { class: "actions", role: "group", "aria-label": "Time span" }, SPANS.map(([label, one, many]) =>
    h("button", {
      type: "button", "aria-pressed": String(one === step),
      onclick: (event) => {
        [step, steps] = [one, many];
        for (const button of spans.children) button.setAttribute("aria-pressed", String(button === event.target));
        drawCharts().catch(complain);
      },
    }, label)));
  const map = h("div", {});
  let by = "queued";
  const sizes = h("div", { class: "actions", role: "group", "aria-label": "What makes a site large" }, SIZES.map(([name, label]) =>
    h("button", {
      type: "button", "aria-pressed": String(name === by),
      onclick: (event) => {
        by = name;
        for (const button of sizes.children) button.setAttribute("aria-pressed", String(button === event.target));
        redrawMap().catch(complain);
      },
    }, label)));
  const again = async () => { job = await api.job(here.job); drawHead(); };

  function drawHead() {
    const counts = job.counts ?? {};
    head.replaceChildren(
      h("div", { class: "title" }, h("h1", {}, job.name), state(job.state), actions(here, job, again)),
      job.problem ? h("p", { class: "problem" }, job.problem) : "",
      ...job.warnings.map((text) => h("p", { class: "problem" }, text)),
      facts([
        ["pages", count(counts.stored)], ["pages a second", rate(job.pages_per_second)],
        ["traffic", `${bytes(job.bytes_per_second)}/s`], ["queued", count(counts.queued)], ["known URLs", count(counts.known)],
        ["failed", count(counts.failed)], ["sites", count(counts.sites)],
        ["ready · held", `${count(counts.ready_sites)} · ${count(counts.held_sites)}`], ["workers", count(job.workers)],
        counts.revisits ? ["to be visited again", count(counts.revisits)] : null,
        counts.freshness !== null && counts.freshness !== undefined ? ["fresh", share(counts.freshness)] : null,
        counts.parked ? ["parked", count(counts.parked)] : null,
      ]),
      ...cutLine(job.cut));
  }

  async function drawCharts() {
    const past = known(await api.history(here.job, step, steps));
    const per = (values) => values.map((value) => (value === null ? null : value / past.step));
    const { series: all } = past;
    const wide = roomIn(charts);
    const chart = (label, series, options = {}) =>
      card(label, overTime(label, { start: past.start, step: past.step, series, wide, ...options }));
    charts.replaceChildren(
      chart("Pages a second", [{ name: "pages", tone: "a", values: per(all.pages) }]),
      chart("Traffic", [{ name: "traffic", tone: "b", values: per(all.bytes) }], { unit: "B/s" }),
      chart("Answers a second, by status", [
        { name: "2xx", tone: "a", values: per(all.ok) }, { name: "3xx", tone: "b", values: per(all.redirects) },
        { name: "4xx", tone: "c", values: per(all.client_errors) }, { name: "5xx", tone: "d", values: per(all.server_errors) },
        { name: "no answer", tone: "e", values: per(all.faults) },
      ], { stacked: true }),
      chart("Frontier", [
        { name: "known", tone: "b", values: held(all.known) }, { name: "queued", tone: "a", values: held(all.queued) },
        { name: "stored", tone: "c", values: held(all.stored) },
      ]),
      chart("Time to an answer", [{ name: "mean", tone: "c", values: held(all.latency) }], { unit: "s" }),
      chart("At work", [
        { name: "sites", tone: "a", values: held(all.active_sites) }, { name: "workers", tone: "d", values: held(all.workers) },
      ]));
  }

  async function drawLists() {
    const ask = (what, query) => api.look(here.job, what, query);
    const [busy, slow, errors, gaps, recent, scale] = await Promise.all([
      ask("sites", { sort: "rate", limit: 8 }), ask("sites", { sort: "latency", limit: 8 }),
      ask("errors"), ask("politeness"), ask("recent"),
      job.place === "fleet" ? ask("scale").catch(() => null) : null,
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
        { name: "answer", number: true, cell: (row) => seconds(row.latency) },
        { name: "delay", number: true, cell: (row) => seconds(row.delay) },
        { name: "requests", number: true, cell: (row) => count(row.requests) },
      ], slow.sites.filter((row) => row.latency !== null))),
      card("Failures", table([
        { name: "kind", cell: (row) => [row.kind, row.examples[0] ? [": ", urlLink(here, row.examples[0].url)] : null] },
        { name: "requests", number: true, cell: (row) => count(row.count) },
        { name: "share", number: true, cell: (row) => share(row.share) },
      ], errors.faults.slice(0, 6), { empty: "none" })),
      card(`Politeness: rests between two requests to a site${gaps.too_short ? `, ${count(gaps.too_short)} too short` : ""}`,
        bars("rests between requests", gapBars(gaps), roomIn(lists))),
      card("Latest requests", table([
        { name: "when", cell: (row) => h("span", { title: ago(row.at) }, clock(row.at)) },
        { name: "URL", cell: (row) => urlLink(here, row.url) },
        { name: "", cell: (row) => row.error || String(row.status || "") },
        { name: "took", number: true, cell: (row) => seconds(row.latency) },
      ], recent.visits.slice(0, 10))),
      scale ? card("Workers that this job can feed", facts([["advised", count(scale.workers)], ["there", count(scale.live)]]),
        h("p", { class: "none" }, scale.why)) : "");
  }

  async function redrawMap() {
    const found = await api.look(here.job, "map", { by });
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
  here.pauseOrResume = () => here.about.role === "write" && act(job.name, job.state === "running" ? "pause" : "resume", again);
  here.draw(head, h("div", { class: "title" }, spans), charts,
    h("section", { class: "card map" }, h("div", { class: "title" }, h("h2", {}, "Sites by region"), sizes), map), lists);
  whenResized(here, () => Promise.all([drawCharts(), redrawMap()]).catch(complain));
  await Promise.all([
    keepFresh(here, 5000, drawCharts), keepFresh(here, 7000, redrawMap), keepFresh(here, 7000, drawLists), keepFresh(here, 4000, again),
  ]);
}
