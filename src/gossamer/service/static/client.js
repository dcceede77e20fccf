// Client of the service's API: one function per call; errors carry the service's message and hint.

export class ApiError extends Error {
  constructor(status, { message = "The service did not respond", hint = "", error = "" } = {}) {
    super(message);
    Object.assign(this, { status, hint, code: error });
  }
}

async function request(path, { method = "GET", body = null, query = {}, signal } = {}) {
  const parameters = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const search = parameters.length ? `?${new URLSearchParams(parameters)}` : "";
  let response;
  try {
    const content = body && { body: JSON.stringify(body), headers: { "content-type": "application/json" } };
    response = await fetch(`api${path}${search}`, { method, signal, ...content });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, { message: "Cannot reach the service", hint: "check that `gossamer serve` is still running" });
  }
  if (response.status === 204) return null;
  const content = await response.json().catch(() => ({}));
  if (!response.ok) throw new ApiError(response.status, content);
  return content;
}

const jobPath = (job, rest = "") => `/jobs/${encodeURIComponent(job)}${rest}`;

export const about = () => request("");
export const login = (token) => request("/session", { method: "POST", body: { token } });
export const jobs = (cursor) => request("/jobs", { query: { cursor, limit: 200 } });
export const job = (name) => request(jobPath(name));
export const submit = (submission) => request("/jobs", { method: "POST", body: submission });
export const control = (name, action) => request(jobPath(name, `/${action}`), { method: "POST" });
export const addUrls = (name, urls) => request(jobPath(name, "/urls"), { method: "POST", body: { urls } });
export const limit = (name, limits) => request(jobPath(name, "/limits"), { method: "PATCH", body: limits });
export const history = (name, step, steps) => request(jobPath(name, "/history"), { query: { step, steps } });
export const get = (name, resource, query) => request(jobPath(name, `/${resource}`), { query });
export const bodyAddress = (name, url, time) =>
  `api${jobPath(name, "/body")}?${new URLSearchParams(time ? { url, at: time } : { url })}`;
export const events = (name) => new EventSource(`api/events${name ? `?job=${encodeURIComponent(name)}` : ""}`);
