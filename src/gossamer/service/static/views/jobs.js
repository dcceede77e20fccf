// All jobs of the service, and the form that starts one.

import * as api from "../ask.js";
import { card, h, table } from "../dom.js";
import { bytes, count, rate } from "../format.js";
import { complain, field, inquire, note } from "../talk.js";
import { keepFresh, state } from "./common.js";

export async function jobsView(here) {
  const places = new Map();
  const list = h("div", {});
  const columns = [
    { name: "job", cell: (job) => h("a", { href: here.link(job.name) }, job.name) },
    { name: "state", cell: (job) => state(job.state) },
    { name: "pages", number: true, cell: (job) => count(job.counts?.stored) },
    { name: "rate", number: true, cell: (job) => rate(job.pages_per_second) },
    { name: "traffic", number: true, cell: (job) => `${bytes(job.bytes_per_second)}/s` },
    { name: "queued", number: true, cell: (job) => count(job.counts?.queued) },
    { name: "failed", number: true, cell: (job) => count(job.counts?.failed) },
    { name: "sites", number: true, cell: (job) => count(job.counts?.sites) },
    { name: "workers", number: true, cell: (job) => count(job.workers) },
    { name: "", cell: (job) => (job.problem ? h("span", { class: "problem" }, job.problem) : "") },
  ];
  const draw = () => list.replaceChildren(table(columns, [...places.values()], {
    empty: "There is no job yet.", label: "jobs",
  }));
  here.onJob = (job) => { places.set(job.name, job); draw(); };
  here.draw(
    h("div", { class: "title" }, h("h1", {}, "Jobs"), here.about.may_start
      ? h("div", { class: "actions" }, h("button", { class: "main", type: "button", onclick: () => start(here) }, "New crawl"))
      : null),
    card("", list));
  await keepFresh(here, 3000, async () => {
    const { jobs } = await api.jobs();
    places.clear();
    for (const job of jobs) places.set(job.name, job);
    draw();
  });
}

async function start(here) {
  const spiders = here.about.spiders;
  const submission = await inquire("New crawl", [
    h("label", {}, h("span", {}, "URLs to begin with, one a line"),
      h("textarea", { name: "urls", rows: 3, required: true, autofocus: true, placeholder: "https://example.com/" })),
    field("Name of the job", "job", { required: true, pattern: "[A-Za-z0-9][A-Za-z0-9.\\-]*", maxlength: 100 }),
    field("Pages at most; empty for all", "max_pages", { type: "number", min: 1 }),
    field(`Seconds between two requests to a site, at least ${here.about.least_delay}`, "delay",
      { type: "number", min: here.about.least_delay, step: "any", placeholder: here.about.least_delay }),
    h("label", {}, h("span", {}, "Follow links"), h("select", { name: "scope" },
      [["", "as the service has it"], ["site", "on the same site"], ["domain", "on the same domain"], ["any", "anywhere"]].map(
        ([value, label]) => h("option", { value }, label)))),
    spiders.length ? h("label", {}, h("span", {}, "Spider"), h("select", { name: "spider" },
      ["", ...spiders].map((name) => h("option", { value: name }, name || "none")))) : null,
  ], { agree: "Start", read: ({ elements }) => read(elements) });
  if (!submission) return;
  try {
    const job = await api.submit(submission);
    note(`${job.name} is ${job.state}`);
    location.hash = here.link(job.name);
  } catch (error) {
    complain(error);
  }
}

function read(elements) {
  const number = (name) => (elements[name].value === "" ? null : Number(elements[name].value));
  return {
    job: elements.job.value.trim(),
    urls: elements.urls.value.split("\n").map((line) => line.trim()).filter(Boolean),
    max_pages: number("max_pages"), delay: number("delay"), scope: elements.scope.value || null,
    spider: elements.spider?.value ?? "",
  };
}
