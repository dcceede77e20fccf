// The dashboard's frame: routing by the address, live events, theme, and keyboard shortcuts.

import * as api from "./client.js";
import { h } from "./dom.js";
import { showError, field, openDialog } from "./dialogs.js";
import { jobsView } from "./views/jobs.js";
import { overviewView } from "./views/overview.js";
import { siteView, sitesView } from "./views/sites.js";
import { errorsView, politenessView } from "./views/errors.js";
import { fleetView } from "./views/fleet.js";
import { pagesView } from "./views/pages.js";
import { urlView } from "./views/url.js";

const TABS = [
  ["", "Overview", overviewView], ["sites", "Sites", sitesView], ["errors", "Errors", errorsView],
  ["politeness", "Politeness", politenessView], ["fleet", "Workers", fleetView], ["pages", "Pages", pagesView],
  ["url", "URL history", urlView],
];
const view = document.getElementById("view");
const live = document.getElementById("live");
let current = null;
let stream = null;

// Parses the address: the job, the tab, the item, and the query parameters.
function route() {
  const [path, search = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [, job = "", tab = "", item = ""] = path.split("/").map(decodeURIComponent);
  return { job, tab, item, query: new URLSearchParams(search) };
}

export const link = (job, tab = "", item = "", query = {}) => {
  const parameters = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const path = ["job", job, tab, item].map(encodeURIComponent).join("/").replace(/\/+$/, "");
  return `#/${path}${parameters.length ? `?${new URLSearchParams(parameters)}` : ""}`;
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
  const target = route();
  current?.end.abort();
  const end = new AbortController();
  const here = { ...target, end, link, draw: (...content) => end.signal.aborted || view.replaceChildren(...content) };
  current = here;
  drawTabs(target);
  listen(target.job);
  try {
    here.about = await api.about();
    const make = target.job ? (target.tab === "site" ? siteView : TABS.find(([name]) => name === target.tab)?.[2]) : jobsView;
    if (!make) throw new api.ApiError(404, { message: `No view named ${target.tab}`, hint: "choose a tab above" });
    await make(here);
  } catch (error) {
    await failed(error, here);
  }
  view.focus({ preventScroll: true });
}

async function failed(error, here) {
  if (error.status === 401) {
    const token = await openDialog("This service requires a token", field("Token", "token", { type: "password", autofocus: true }), {
      submit: "Log in", read: (form) => form.elements.token.value,
    });
    if (token === null) return here.draw(h("p", { class: "none" }, "Not logged in."));
    return api.login(token).then(show, showError);
  }
  here.draw(h("section", { class: "card" }, h("h1", {}, "Request failed"), h("p", { class: "problem" }, error.message),
    h("p", { class: "none" }, error.hint ?? ""), h("button", { type: "button", onclick: show }, "Retry")));
}

// One event stream for all views; a view that uses it defines `onSample` or `onJob`.
function listen(job) {
  if (stream?.job === job && stream.source.readyState !== EventSource.CLOSED) return;
  stream?.source.close();
  const source = api.events(job);
  stream = { job, source };
  source.onopen = () => { live.className = "live on"; live.textContent = "live"; };
  source.onerror = () => { live.className = "live off"; live.textContent = "disconnected"; };
  const dispatch = (name) => (event) => {
    try {
      current?.[name]?.(JSON.parse(event.data));
    } catch (error) {
      showError(error);
    }
  };
  source.addEventListener("sample", dispatch("onSample"));
  source.addEventListener("job", dispatch("onJob"));
}

function changeTheme() {
  const order = ["", "light", "dark"];
  const next = order[(order.indexOf(document.documentElement.dataset.theme ?? "") + 1) % 3];
  setTheme(next);
  try { localStorage.setItem("theme", next); } catch { /* without storage, the theme lasts until the page is closed */ }
}

function setTheme(name) {
  if (name) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
}

const KEYS = [
  ["1 … 7", "switch between the views of a job"], ["j", "list all jobs"], ["/", "search in this view"], ["p", "pause or resume the job"],
  ["t", "change the theme"], ["?", "show the keyboard shortcuts"], ["Esc", "close a dialog"],
];

const showKeys = () => openDialog("Keyboard shortcuts", h("dl", {}, KEYS.map(([key, action]) =>
  h("p", {}, h("kbd", {}, key), ` ${action}`))), { submit: "" });

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.getElementById("dialog").open) return;
  if (/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
  const { job } = route();
  if (/^[1-7]$/.test(event.key) && job) location.hash = link(job, TABS[event.key - 1][0]);
  else if (event.key === "j") location.hash = "#/";
  else if (event.key === "t") changeTheme();
  else if (event.key === "?") showKeys();
  else if (event.key === "p") current?.pauseOrResume?.();
  else if (event.key === "/") { event.preventDefault(); view.querySelector("input")?.focus(); }
});
document.getElementById("theme").addEventListener("click", changeTheme);
document.getElementById("keys").addEventListener("click", showKeys);
try { setTheme(localStorage.getItem("theme") ?? ""); } catch { /* without storage, the system's theme applies */ }
addEventListener("hashchange", show);
addEventListener("pagehide", () => stream?.source.close());
addEventListener("pageshow", (event) => event.persisted && show());
show();
