// What several views share: refreshing while they are looked at, links to sites and URLs, and what may be done to a job.

import * as api from "../ask.js";
import { h } from "../dom.js";
import { cut } from "../format.js";
import { complain, confirmed, field, inquire, note } from "../talk.js";

const NOT_YET = new Set([409, 503]), SOON_MILLISECONDS = 700;

// Runs `work` now and every so often, but not while nobody looks. What a job that is just starting cannot tell yet is asked
// for again soon; any other failure is thrown the first time, and noted later.
export async function keepFresh(here, milliseconds, work) {
  let failing = false, timer = 0;
  const soon = (wait) => { timer = setTimeout(again, wait); };
  const again = async () => {
    if (document.hidden) return soon(milliseconds);
    try {
      await work();
      failing = false;
    } catch (error) {
      if (here.end.signal.aborted) return undefined;
      if (NOT_YET.has(error.status)) return soon(SOON_MILLISECONDS);
      if (!failing) complain(error);
      failing = true;
    }
    return here.end.signal.aborted ? undefined : soon(milliseconds);
  };
  here.end.signal.addEventListener("abort", () => clearTimeout(timer));
  try {
    await work();
    soon(milliseconds);
  } catch (error) {
    if (!NOT_YET.has(error.status)) throw error;
    soon(SOON_MILLISECONDS);
  }
  if (here.end.signal.aborted) clearTimeout(timer);
}

// Pictures are drawn for the width that they have: when that changes, they are drawn again.
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
  pause: ["Pause", "Workers finish the fetches under way and wait. Nothing is lost.", false],
  resume: ["Resume", "The crawl goes on where it was.", false],
  stop: ["Stop", "The run ends after the fetches under way. It can be resumed at any time.", true],
};

export async function act(job, action, after) {
  const [word, what, danger] = ACTIONS[action];
  if (!(await confirmed(`${word} ${job}?`, what, word, danger))) return;
  try {
    const told = await api.steer(job, action);
    note(`${job} is ${told.state}`);
    await after?.(told);
  } catch (error) {
    complain(error);
  }
}

export function actions(here, job, after) {
  if (here.about.role !== "write" || here.about.only === "pages") return null;
  const may = {
    pause: job.state === "running", resume: ["paused", "resting", "failed", "finished"].includes(job.state),
    stop: ["running", "paused", "starting"].includes(job.state),
  };
  return h("div", { class: "actions" },
    Object.keys(ACTIONS).filter((action) => may[action]).map((action) =>
      h("button", { type: "button", class: action === "stop" ? "danger" : null, onclick: () => act(job.name, action, after) },
        ACTIONS[action][0])),
    h("button", { type: "button", onclick: () => addUrls(job.name, after) }, "Add URLs"),
    job.settings ? h("button", { type: "button", onclick: () => changeLimits(job, after) }, "Limits") : null);
}

async function addUrls(job, after) {
  const urls = await inquire(`Add URLs to ${job}`, h("label", {}, h("span", {}, "One a line"),
    h("textarea", { name: "urls", rows: 6, required: true, autofocus: true })), {
    agree: "Add", read: (form) => form.elements.urls.value.split("\n").map((line) => line.trim()).filter(Boolean),
  });
  if (!urls?.length) return;
  try {
    const told = await api.addUrls(job, urls);
    note(`${told.added} added, ${told.known} known already`, { hint: told.refused.length ? `refused: ${told.refused.join(" ")}` : "" });
    await after?.();
  } catch (error) {
    complain(error);
  }
}

const number = (text) => (text.trim() === "" ? null : Number(text));

async function changeLimits(job, after) {
  const now = job.settings;
  const limits = await inquire(`Limits of ${job.name}`, [
    field("Pages in all; empty for no limit", "max_pages", { type: "number", min: 1, value: now.max_pages ?? "" }),
    field("Seconds of a run; empty for no limit", "max_seconds", { type: "number", min: 0, step: "any", value: now.max_seconds ?? "" }),
    field("Seconds between two requests to a site", "delay", { type: "number", min: 0, step: "any", required: true, value: now.delay }),
  ], {
    agree: "Change",
    read: ({ elements }) => ({
      max_pages: number(elements.max_pages.value), max_seconds: number(elements.max_seconds.value), delay: number(elements.delay.value),
    }),
  });
  if (!limits) return;
  const changed = Object.fromEntries(Object.entries(limits).filter(([name, value]) => value !== (now[name] ?? null)));
  if (!Object.keys(changed).length) return;
  try {
    const told = await api.limit(job.name, changed);
    note(`the new limits count ${told.in_force === "now" ? "now" : "from the next run on"}`);
    await after?.();
  } catch (error) {
    complain(error);
  }
}
