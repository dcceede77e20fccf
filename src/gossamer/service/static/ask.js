// The service's API: one function a question, errors with the words and the hint that it gave.

export class Refusal extends Error {
  constructor(status, { message = "the service did not answer", hint = "", error = "" } = {}) {
    super(message);
    Object.assign(this, { status, hint, word: error });
  }
}

async function ask(path, { method = "GET", body = null, query = {}, signal } = {}) {
  const words = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const search = words.length ? `?${new URLSearchParams(words)}` : "";
  let answer;
  try {
    const content = body && { body: JSON.stringify(body), headers: { "content-type": "application/json" } };
    answer = await fetch(`api${path}${search}`, { method, signal, ...content });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, { message: "the service cannot be reached", hint: "is `gossamer serve` still running?" });
  }
  if (answer.status === 204) return null;
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refusal(answer.status, told);
  return told;
}

const at = (job, what = "") => `/jobs/${encodeURIComponent(job)}${what}`;

export const about = () => ask("");
export const login = (token) => ask("/session", { method: "POST", body: { token } });
export const jobs = (cursor) => ask("/jobs", { query: { cursor, limit: 200 } });
export const job = (name) => ask(at(name));
export const submit = (submission) => ask("/jobs", { method: "POST", body: submission });
export const steer = (name, action) => ask(at(name, `/${action}`), { method: "POST" });
export const addUrls = (name, urls) => ask(at(name, "/urls"), { method: "POST", body: { urls } });
export const limit = (name, limits) => ask(at(name, "/limits"), { method: "PATCH", body: limits });
export const history = (name, step, steps) => ask(at(name, "/history"), { query: { step, steps } });
export const look = (name, what, query) => ask(at(name, `/${what}`), { query });
export const bodyAddress = (name, url, time) =>
  `api${at(name, "/body")}?${new URLSearchParams(time ? { url, at: time } : { url })}`;
export const events = (name) => new EventSource(`api/events${name ? `?job=${encodeURIComponent(name)}` : ""}`);
