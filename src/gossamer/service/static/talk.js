// What is said to people: short notes, questions before something is done, and forms in a dialog.

import { h } from "./dom.js";

const NOTE_MILLISECONDS = 7000;

export function note(text, { bad = false, hint = "" } = {}) {
  const place = document.getElementById("notes");
  const shown = h("div", { class: bad ? "note bad" : "note" }, text, hint ? h("small", {}, hint) : null);
  place.append(shown);
  while (place.children.length > 4) place.firstChild.remove();
  setTimeout(() => shown.remove(), NOTE_MILLISECONDS);
}

export const complain = (error) => {
  if (error.name !== "AbortError") note(error.message, { bad: true, hint: error.hint });
};

// A dialog with these contents; resolves with what `read` gives once it is agreed to, with null otherwise.
export function inquire(title, content, { agree = "OK", danger = false, read = () => true } = {}) {
  const dialog = document.getElementById("dialog");
  return new Promise((resolve) => {
    let given = null;
    const form = h("form", {
      onsubmit: (event) => { event.preventDefault(); given = read(form); dialog.close(); },
    }, h("h1", {}, title), content, h("div", { class: "actions" },
      h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"),
      agree ? h("button", { type: "submit", class: danger ? "danger" : "main" }, agree) : null));
    dialog.replaceChildren(form);
    dialog.onclose = () => resolve(given);
    dialog.showModal();
  });
}

export const confirmed = (title, text, agree, danger = false) => inquire(title, h("p", {}, text), { agree, danger });

export const field = (label, name, attributes = {}) =>
  h("label", {}, h("span", {}, label), h("input", { name, ...attributes }));
