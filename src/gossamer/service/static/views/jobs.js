// The list of jobs, and the form that starts one.

import * as api from "../client.js";
import { card, h, table } from "../dom.js";
import { bytes, count, rate } from "../format.js";
import { showError, field, openDialog, notify } from "../dialogs.js";
import { poll, state } from "./common.js";

export async function jobsView(here) {
  const rows = new Map();
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
  const draw = () => list.replaceChildren(table(columns, [...rows.values()], {
    empty: "No jobs yet", label: "jobs",
  }));
  here.onJob = (job) => { rows.set(job.name, job); draw(); };
  here.draw(
    h("div", { class: "title" }, h("h1", {}, "Jobs"), here.about.may_start
      ? h("div", { class: "actions" }, h("button", { class: "main", type: "button", onclick: () => start(here) }, "New crawl"))
      : null),
    card("", list));
  await poll(here, 3000, async () => {
    const { jobs } = await api.jobs();
    rows.clear();
    for (const job of jobs) rows.set(job.name, job);
    draw();
  });
}

async function start(here) {
  const spiders = here.about.spiders;
  const submission = await openDialog("New crawl", [
    h("label", {}, h("span", {}, "Start URLs, one per line"),
      h("textarea", { name: "urls", rows: 3, required: true, autofocus: true, placeholder: "https://example.com/" })),
    field("Job name", "job", { required: true, pattern: "[A-Za-z0-9][A-Za-z0-9.\\-]*", maxlength: 100 }),
    field("Max pages (empty for no limit)", "max_pages", { type: "number", min: 1 }),
    field(`Seconds between requests to a site (min ${here.about.least_delay})`, "delay",
      { type: "number", min: here.about.least_delay, step: "any", placeholder: here.about.least_delay }),
    h("label", {}, h("span", {}, "Follow links"), h("select", { name: "scope" },
      [["", "service default"], ["site", "on the same site"], ["domain", "on the same domain"], ["any", "to any site"]].map(
        ([value, label]) => h("option", { value }, label)))),
    spiders.length ? h("label", {}, h("span", {}, "Spider"), h("select", { name: "spider" },
      ["", ...spiders].map((name) => h("option", { value: name }, name || "none")))) : null,
  ], { submit: "Start", read: ({ elements }) => read(elements) });
  if (!submission) return;
  try {
    const job = await api.submit(submission);
    notify(`${job.name} is ${job.state}`);
    location.hash = here.link(job.name);
  } catch (error) {
    showError(error);
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
