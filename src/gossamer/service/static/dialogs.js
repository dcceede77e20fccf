// Notifications, confirmations, and forms in a dialog.

import { h } from "./dom.js";

const NOTIFICATION_MILLISECONDS = 7000;

export function notify(text, { bad = false, hint = "" } = {}) {
  const place = document.getElementById("notes");
  const shown = h("div", { class: bad ? "note bad" : "note" }, text, hint ? h("small", {}, hint) : null);
  place.append(shown);
  while (place.children.length > 4) place.firstChild.remove();
  setTimeout(() => shown.remove(), NOTIFICATION_MILLISECONDS);
}

export const showError = (error) => {
  if (error.name !== "AbortError") notify(error.message, { bad: true, hint: error.hint });
};

// Shows a dialog. Resolves with the value that `read` returns on submit, or with null on cancel.
export function openDialog(title, content, { submit = "OK", danger = false, read = () => true } = {}) {
  const dialog = document.getElementById("dialog");
  return new Promise((resolve) => {
    let value = null;
    const form = h("form", {
      onsubmit: (event) => { event.preventDefault(); value = read(form); dialog.close(); },
    }, h("h1", {}, title), content, h("div", { class: "actions" },
      h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"),
      submit ? h("button", { type: "submit", class: danger ? "danger" : "main" }, submit) : null));
    dialog.replaceChildren(form);
    dialog.onclose = () => resolve(value);
    dialog.showModal();
  });
}

export const confirm = (title, text, submit, danger = false) => openDialog(title, h("p", {}, text), { submit, danger });

export const field = (label, name, attributes = {}) =>
  h("label", {}, h("span", {}, label), h("input", { name, ...attributes }));
