// The key of a server that asks for one. It is kept in session storage alone, so it goes when the tab is closed.

import { $ } from "./dom.js";

const NAME = "leafbeam-key";

/** The header of a request, if there is a key. */
export function authorization() {
  const key = sessionStorage.getItem(NAME);
  return key ? { Authorization: `Bearer ${key}` } : {};
}

export const hasKey = () => sessionStorage.getItem(NAME) !== null;

let answer = null; // of the question that is open; a question that was dismissed stays so

/** Ask for a key after the server refused `refused`, the headers of a request; one question at a time. */
export function askForKey(refused) {
  if (refused.Authorization !== authorization().Authorization) return Promise.resolve(); // there is a newer key already
  answer ??= new Promise((resolve, reject) => {
    $("key-wrong").hidden = refused.Authorization === undefined;
    sessionStorage.removeItem(NAME);
    $("key").value = "";
    $("key-dialog").showModal();
    $("key-dialog").onclose = () => reject(new Error("This server needs a key. Reload the page to enter one."));
    $("key-form").onsubmit = (event) => {
      event.preventDefault();
      sessionStorage.setItem(NAME, $("key").value.trim());
      $("key-dialog").onclose = null;
      $("key-dialog").close();
      answer = null;
      resolve();
    };
  });
  return answer;
}

/** Show or hide what depends on a key: links cannot send one. */
export function showKey() {
  for (const link of document.querySelectorAll("nav a")) link.hidden = hasKey();
  $("forget").hidden = !hasKey();
  $("forget").onclick = () => {
    sessionStorage.removeItem(NAME);
    location.reload();
  };
}
