// Workers, regions, and shards of a job, and the recommended number of workers.

import * as api from "../client.js";
import { card, facts, h, table } from "../dom.js";
import { bytes, count, rate, seconds, share } from "../format.js";
import { poll } from "./common.js";

export async function fleetView(here) {
  const content = h("div", {});
  here.draw(h("div", { class: "title" }, h("h1", {}, "Workers")), content);
  await poll(here, 4000, async () => {
    const get = (resource) => api.get(here.job, resource).catch((error) => { if (error.status !== 409) throw error; return null; });
    const [workers, regions, shards, scale] = await Promise.all([get("workers"), get("regions"), get("shards"), get("scale")]);
    content.replaceChildren(
      scale ? facts([["recommended", count(scale.workers)], ["running", count(scale.live)], ["lanes with work", count(scale.lanes)]]) : "",
      scale ? h("p", { class: "none" }, scale.why) : "",
      card("Workers", table([
        { name: "worker", cell: (one) => one.worker }, { name: "state", cell: (one) => workerState(one) },
        { name: "rate", number: true, cell: (one) => rate(one.rate) }, { name: "pages", number: true, cell: (one) => count(one.pages) },
        { name: "sites", number: true, cell: (one) => count(one.active) }, { name: "fetching", number: true, cell: (one) => (one.limit ? count(one.fetching) : "–") },
        { name: "CPU", number: true, cell: (one) => share(one.load) }, { name: "memory", number: true, cell: (one) => bytes(one.memory_bytes) },
        { name: "stale", number: true, cell: (one) => count(one.stale) }, { name: "uptime", number: true, cell: (one) => seconds(one.up_seconds) },
        { name: "region", cell: (one) => one.region }, { name: "shards", cell: (one) => one.shards },
        { name: "version", cell: (one) => one.version }, { name: "host", cell: (one) => `${one.host} ${one.pid}` },
      ], workers?.workers ?? [], { empty: "No workers", label: "workers" })),
      regions?.regions.length ? card("Regions", table([
        { name: "region", cell: (one) => one.region || "any" }, { name: "workers", number: true, cell: (one) => count(one.workers) },
        { name: "rate", number: true, cell: (one) => rate(one.rate) }, { name: "lanes ready", number: true, cell: (one) => count(one.ready) },
        { name: "lanes waiting", number: true, cell: (one) => count(one.later) }, { name: "next in", number: true, cell: (one) => seconds(one.due_in) },
      ], regions.regions)) : "",
      shards?.shards.length ? card("Shards", table([
        { name: "shard", number: true, cell: (one) => count(one.shard) }, { name: "server", cell: (one) => one.server },
        { name: "queued", number: true, cell: (one) => count(one.counts.queued) }, { name: "done", number: true, cell: (one) => count(one.counts.done) },
        { name: "failed", number: true, cell: (one) => count(one.counts.failed) }, { name: "sites", number: true, cell: (one) => count(one.counts.sites) },
      ], shards.shards)) : "");
  });
}

function workerState(one) {
  if (one.left) return h("span", { class: "state finished" }, "left");
  if (!one.live) return h("span", { class: "state failed" }, `no heartbeat for ${seconds(one.silent)}`);
  return h("span", { class: "state running" }, one.idle ? "idle" : "working");
}
