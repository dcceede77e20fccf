// The frame of the dashboard: which view the address names, live events, theme and keys.

import * as api from "./ask.js";
import { h } from "./dom.js";
import { complain, field, inquire } from "./talk.js";
import { jobsView } from "./views/jobs.js";
import { overviewView } from "./views/overview.js";
import { siteView, sitesView } from "./views/sites.js";
import { errorsView, politenessView } from "./views/faults.js";
import { fleetView } from "./views/fleet.js";
import { pagesView } from "./views/pages.js";
import { urlView } from "./views/url.js";

const TABS = [
  ["", "Overview", overviewView], ["sites", "Sites", sitesView], ["errors", "Errors", errorsView],
  ["politeness", "Politeness", politenessView], ["fleet", "Workers", fleetView], ["pages", "Pages", pagesView],
  ["url", "Why?", urlView],
];
const view = document.getElementById("view");
const live = document.getElementById("live");
let shown = null;
let stream = null;

// Where the address leads: the job, the tab, what of it, and the words behind the question mark.
function place() {
  const [path, search = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [word = "", job = "", tab = "", item = ""] = path.split("/").map(decodeURIComponent);
  return { word, job, tab, item, query: new URLSearchParams(search) };
}

export const link = (job, tab = "", item = "", query = {}) => {
  const words = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const path = ["job", job, tab, item].map(encodeURIComponent).join("/").replace(/\/+$/, "");
  return `#/${path}${words.length ? `?${new URLSearchParams(words)}` : ""}`;
};

function drawTabs({ job, tab }) {
  document.getElementById("tabs").replaceChildren(...(job ? [
    h("b", {}, job),
    ...TABS.map(([name, label], number) => h("a", {
      href: link(job, name), title: `${label} (${number + 1})`,
      "aria-current": name === tab || (name === "sites" && tab === "site") ? "page" : null,
    }, label)),
  ] : [h("a", { href: "#/", "aria-current": "page" }, "Jobs")]));
  document.title = job ? `${job} · Gossamer` : "Gossamer";
}

async function show() {
  const where = place();
  shown?.end.abort();
  const end = new AbortController();
  const here = { ...where, end, link, draw: (...content) => end.signal.aborted || view.replaceChildren(...content) };
  shown = here;
  drawTabs(where);
  listen(where.job);
  try {
    here.about = await api.about();
    const make = where.job ? (where.tab === "site" ? siteView : TABS.find(([name]) => name === where.tab)?.[2]) : jobsView;
    if (!make) throw new api.Refusal(404, { message: `there is no view ${where.tab}`, hint: "choose one above" });
    await make(here);
  } catch (error) {
    await failed(error, here);
  }
  view.focus({ preventScroll: true });
}

async function failed(error, here) {
  if (error.status === 401) {
    const token = await inquire("This service wants a token", field("Token", "token", { type: "password", autofocus: true }), {
      agree: "Log in", read: (form) => form.elements.token.value,
    });
    if (token === null) return here.draw(h("p", { class: "none" }, "Not logged in."));
    return api.login(token).then(show, complain);
  }
  here.draw(h("section", { class: "card" }, h("h1", {}, "That did not work"), h("p", { class: "problem" }, error.message),
    h("p", { class: "none" }, error.hint ?? ""), h("button", { type: "button", onclick: show }, "Try again")));
}

// One stream of events; a view that wants them has `onSample` or `onJob`.
function listen(job) {
  if (stream?.job === job && stream.source.readyState !== EventSource.CLOSED) return;
  stream?.source.close();
  const source = api.events(job);
  stream = { job, source };
  source.onopen = () => { live.className = "live on"; live.textContent = "live"; };
  source.onerror = () => { live.className = "live off"; live.textContent = "not connected"; };
  const tell = (name) => (event) => {
    try {
      shown?.[name]?.(JSON.parse(event.data));
    } catch (error) {
      complain(error);
    }
  };
  source.addEventListener("sample", tell("onSample"));
  source.addEventListener("job", tell("onJob"));
}

function changeTheme() {
  const order = ["", "light", "dark"];
  const next = order[(order.indexOf(document.documentElement.dataset.theme ?? "") + 1) % 3];
  setTheme(next);
  try { localStorage.setItem("theme", next); } catch { /* a browser that keeps nothing still shows it */ }
}

function setTheme(name) {
  if (name) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
}

const KEYS = [
  ["1 … 7", "the views of a job"], ["j", "all jobs"], ["/", "search in this view"], ["p", "pause or resume"], ["t", "theme"],
  ["?", "this list"], ["Esc", "close"],
];

const showKeys = () => inquire("Keys", h("dl", {}, KEYS.map(([key, what]) =>
  h("p", {}, h("kbd", {}, key), ` ${what}`))), { agree: "" });

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.getElementById("dialog").open) return;
  if (/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
  const { job } = place();
  if (/^[1-7]$/.test(event.key) && job) location.hash = link(job, TABS[event.key - 1][0]);
  else if (event.key === "j") location.hash = "#/";
  else if (event.key === "t") changeTheme();
  else if (event.key === "?") showKeys();
  else if (event.key === "p") shown?.pauseOrResume?.();
  else if (event.key === "/") { event.preventDefault(); view.querySelector("input")?.focus(); }
});
document.getElementById("theme").addEventListener("click", changeTheme);
document.getElementById("keys").addEventListener("click", showKeys);
try { setTheme(localStorage.getItem("theme") ?? ""); } catch { /* as the system has it */ }
addEventListener("hashchange", show);
addEventListener("pagehide", () => stream?.source.close());
addEventListener("pageshow", (event) => event.persisted && show());
show();
