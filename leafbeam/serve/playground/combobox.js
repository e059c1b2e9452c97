// A text field with a list of suggestions, by the ARIA pattern "combobox": arrows, Enter, Escape, or the mouse.

import { el } from "./dom.js";

/**
 * suggest(text, caret) -> a promise of [{label, note, value}]; choose(value) is called with the one that was taken.
 * eager: whether Enter without a choice takes the first.
 */
export function combobox(input, list, { suggest, choose, eager }) {
  let options = [];
  let active = -1;
  let asked = 0;

  function close() {
    asked++;
    options = [];
    show();
  }

  function show() {
    active = -1;
    list.replaceChildren(
      ...options.map((option, number) =>
        el(
          "li",
          {
            role: "option",
            id: `${list.id}-${number}`,
            "aria-selected": "false",
            onmousedown: (event) => event.preventDefault(), // keeps the focus in the field
            onclick: () => take(number),
          },
          option.label,
          option.note ? el("small", {}, option.note) : null,
        ),
      ),
    );
    list.hidden = options.length === 0;
    input.setAttribute("aria-expanded", String(!list.hidden));
    input.removeAttribute("aria-activedescendant");
  }

  function move(step) {
    if (!options.length) return;
    list.children[active]?.setAttribute("aria-selected", "false");
    active = (active + step + options.length + (active < 0 && step < 0 ? 1 : 0)) % options.length;
    list.children[active].setAttribute("aria-selected", "true");
    list.children[active].scrollIntoView({ block: "nearest" });
    input.setAttribute("aria-activedescendant", `${list.id}-${active}`);
  }

  function take(number) {
    const { value } = options[number];
    close();
    choose(value);
  }

  async function refresh() {
    const mine = ++asked;
    const found = await suggest(input.value, input.selectionStart ?? input.value.length);
    if (mine !== asked || document.activeElement !== input) return; // a newer list is on its way
    options = found;
    show();
  }

  input.addEventListener("input", refresh);
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (options.length) move(event.key === "ArrowDown" ? 1 : -1);
      else refresh();
    } else if (event.key === "Escape" && options.length) {
      event.preventDefault();
      close();
    } else if (event.key === "Enter" && options.length && (active >= 0 || eager)) {
      event.preventDefault();
      take(Math.max(active, 0));
    }
  });
}
