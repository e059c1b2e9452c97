// The history of the request: its items, oldest first, each with a button that takes it out.

import { $, el, plural, titleOf } from "./dom.js";
import { pictureOf } from "./pictures.js";

/** Draw the items; known: items by id. `changed(ids)` is called with those that are left. */
export function showHistory(ids, known, changed) {
  const rows = ids.map((id, place) => {
    const item = known.get(id);
    const title = item ? titleOf(item) : String(id);
    const drop = () => {
      const left = ids.filter((_, other) => other !== place);
      changed(left);
      ($("history").querySelectorAll("button")[Math.min(place, left.length - 1)] ?? $("search")).focus();
    };
    const button = el("button", { type: "button", class: "small", "aria-label": `Take out ${title}`, onclick: drop }, "✕");
    return el("li", {}, item ? pictureOf(item) : null, el("span", {}, title), button);
  });
  $("history").replaceChildren(...rows);
  $("history").scrollTop = $("history").scrollHeight; // the newest item counts most
  $("taken").textContent = rows.length ? plural(rows.length, "item") : "empty";
}
