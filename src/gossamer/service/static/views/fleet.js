// Who works: workers, regions, shards, and how many workers the job could feed.

import * as api from "../ask.js";
import { card, facts, h, table } from "../dom.js";
import { bytes, count, rate, seconds, share } from "../format.js";
import { keepFresh } from "./common.js";

export async function fleetView(here) {
  const content = h("div", {});
  here.draw(h("div", { class: "title" }, h("h1", {}, "Workers")), content);
  await keepFresh(here, 4000, async () => {
    const ask = (what) => api.look(here.job, what).catch((error) => { if (error.status !== 409) throw error; return null; });
    const [workers, regions, shards, scale] = await Promise.all([ask("workers"), ask("regions"), ask("shards"), ask("scale")]);
    content.replaceChildren(
      scale ? facts([["advised", count(scale.workers)], ["there", count(scale.live)], ["lanes with work", count(scale.lanes)]]) : "",
      scale ? h("p", { class: "none" }, scale.why) : "",
      card("Workers", table([
        { name: "worker", cell: (one) => one.worker }, { name: "state", cell: (one) => standing(one) },
        { name: "rate", number: true, cell: (one) => rate(one.rate) }, { name: "pages", number: true, cell: (one) => count(one.pages) },
        { name: "sites", number: true, cell: (one) => count(one.active) }, { name: "fetching", number: true, cell: (one) => (one.limit ? count(one.fetching) : "–") },
        { name: "processor", number: true, cell: (one) => share(one.load) }, { name: "memory", number: true, cell: (one) => bytes(one.memory_bytes) },
        { name: "too late", number: true, cell: (one) => count(one.stale) }, { name: "up", number: true, cell: (one) => seconds(one.up_seconds) },
        { name: "region", cell: (one) => one.region }, { name: "shards", cell: (one) => one.shards },
        { name: "version", cell: (one) => one.version }, { name: "machine", cell: (one) => `${one.host} ${one.pid}` },
      ], workers?.workers ?? [], { empty: "nobody works on this job", label: "workers" })),
      regions?.regions.length ? card("Regions", table([
        { name: "region", cell: (one) => one.region || "any" }, { name: "workers", number: true, cell: (one) => count(one.workers) },
        { name: "rate", number: true, cell: (one) => rate(one.rate) }, { name: "lanes ready", number: true, cell: (one) => count(one.ready) },
        { name: "later", number: true, cell: (one) => count(one.later) }, { name: "next in", number: true, cell: (one) => seconds(one.due_in) },
      ], regions.regions)) : "",
      shards?.shards.length ? card("Shards", table([
        { name: "shard", number: true, cell: (one) => count(one.shard) }, { name: "server", cell: (one) => one.server },
        { name: "queued", number: true, cell: (one) => count(one.counts.queued) }, { name: "done", number: true, cell: (one) => count(one.counts.done) },
        { name: "failed", number: true, cell: (one) => count(one.counts.failed) }, { name: "sites", number: true, cell: (one) => count(one.counts.sites) },
      ], shards.shards)) : "");
  });
}

function standing(one) {
  if (one.left) return h("span", { class: "state finished" }, "left");
  if (!one.live) return h("span", { class: "state failed" }, `silent for ${seconds(one.silent)}`);
  return h("span", { class: "state running" }, one.idle ? "idle" : "works");
}
