// Shared by the views: polling while the page is visible, links to sites and URLs, and the job's actions.

import * as api from "../client.js";
import { h } from "../dom.js";
import { cut } from "../format.js";
import { showError, confirm, field, openDialog, notify } from "../dialogs.js";

const NOT_READY = new Set([409, 503]), RETRY_MILLISECONDS = 700;

// Runs `work` now and every `milliseconds` while the page is visible. Retries soon when the job is not ready yet (409, 503).
// Throws any other error of the first run, and shows a notification for later ones.
export async function poll(here, milliseconds, work) {
  let failing = false, timer = 0;
  const schedule = (wait) => { timer = setTimeout(run, wait); };
  const run = async () => {
    if (document.hidden) return schedule(milliseconds);
    try {
      await work();
      failing = false;
    } catch (error) {
      if (here.end.signal.aborted) return undefined;
      if (NOT_READY.has(error.status)) return schedule(RETRY_MILLISECONDS);
      if (!failing) showError(error);
      failing = true;
    }
    return here.end.signal.aborted ? undefined : schedule(milliseconds);
  };
  here.end.signal.addEventListener("abort", () => clearTimeout(timer));
  try {
    await work();
    schedule(milliseconds);
  } catch (error) {
    if (!NOT_READY.has(error.status)) throw error;
    schedule(RETRY_MILLISECONDS);
  }
  if (here.end.signal.aborted) clearTimeout(timer);
}

// Charts are drawn for a fixed width: redraw them when the window's width changes.
export function whenResized(here, draw) {
  let timer = 0, width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    clearTimeout(timer);
    timer = setTimeout(() => here.end.signal.aborted || draw(), 200);
  }, { signal: here.end.signal });
}

export const siteLink = (here, site) => h("a", { href: here.link(here.job, "site", site) }, cut(site, 60));
export const urlLink = (here, url) => h("a", { href: here.link(here.job, "url", "", { u: url }), title: url }, cut(url));

export const state = (name) => h("span", { class: `state ${name}` }, name);

const ACTIONS = {
  pause: ["Pause", "Workers finish the current fetches and wait. Nothing is lost.", false],
  resume: ["Resume", "The crawl continues where it left off.", false],
  stop: ["Stop", "Workers finish the current fetches, and the run ends. You can resume it at any time.", true],
};

export async function act(job, action, after) {
  const [label, effect, danger] = ACTIONS[action];
  if (!(await confirm(`${label} ${job}?`, effect, label, danger))) return;
  try {
    const changed = await api.control(job, action);
    notify(`${job} is ${changed.state}`);
    await after?.(changed);
  } catch (error) {
    showError(error);
  }
}

export function actions(here, job, after) {
  if (here.about.role !== "write" || here.about.only === "pages") return null;
  const available = {
    pause: job.state === "running", resume: ["paused", "resting", "failed", "finished"].includes(job.state),
    stop: ["running", "paused", "starting"].includes(job.state),
  };
  return h("div", { class: "actions" },
    Object.keys(ACTIONS).filter((action) => available[action]).map((action) =>
      h("button", { type: "button", class: action === "stop" ? "danger" : null, onclick: () => act(job.name, action, after) },
        ACTIONS[action][0])),
    h("button", { type: "button", onclick: () => addUrls(job.name, after) }, "Add URLs"),
    job.settings ? h("button", { type: "button", onclick: () => changeLimits(job, after) }, "Limits") : null);
}

async function addUrls(job, after) {
  const urls = await openDialog(`Add URLs to ${job}`, h("label", {}, h("span", {}, "URLs, one per line"),
    h("textarea", { name: "urls", rows: 6, required: true, autofocus: true })), {
    submit: "Add", read: (form) => form.elements.urls.value.split("\n").map((line) => line.trim()).filter(Boolean),
  });
  if (!urls?.length) return;
  try {
    const result = await api.addUrls(job, urls);
    notify(`${result.added} added, ${result.known} already known`, { hint: result.refused.length ? `not valid URLs: ${result.refused.join(" ")}` : "" });
    await after?.();
  } catch (error) {
    showError(error);
  }
}

const number = (text) => (text.trim() === "" ? null : Number(text));

async function changeLimits(job, after) {
  const now = job.settings;
  const limits = await openDialog(`Limits of ${job.name}`, [
    field("Max pages (empty for no limit)", "max_pages", { type: "number", min: 1, value: now.max_pages ?? "" }),
    field("Max seconds per run (empty for no limit)", "max_seconds", { type: "number", min: 0, step: "any", value: now.max_seconds ?? "" }),
    field("Seconds between requests to a site", "delay", { type: "number", min: 0, step: "any", required: true, value: now.delay }),
  ], {
    submit: "Save",
    read: ({ elements }) => ({
      max_pages: number(elements.max_pages.value), max_seconds: number(elements.max_seconds.value), delay: number(elements.delay.value),
    }),
  });
  if (!limits) return;
  const changed = Object.fromEntries(Object.entries(limits).filter(([name, value]) => value !== (now[name] ?? null)));
  if (!Object.keys(changed).length) return;
  try {
    const result = await api.limit(job.name, changed);
    notify(result.in_force === "now" ? "The new limits apply now" : "The new limits apply from the next run");
    await after?.();
  } catch (error) {
    showError(error);
  }
}
