/** Signing in. The key is kept in this tab's session storage, and sent as a header. A cookie would
 * be sent by every request that another site's page makes, and to other programs on this machine. */

import { byId, h, showError } from "./dom.js";

const KEY = "switchcraft-key";

/** @import { Session } from "../types" */

/** Why a model answered, in a few words, by the decision's reason; known after `signIn`.
 * @type {Record<string, string>} */
export const REASONS = {};

/** The published names of policies by their rules; known after `signIn`.
 * @type {Record<string, string>} */
export const POLICY_NAMES = {};

/** @type {string | null} the key while the session storage is forbidden */
let unstored = null;

/** The header with the key, if the user has entered one.
 * @returns {Record<string, string>} */
export function keyHeader() {
  const key = stored() ?? unstored;
  // Not `Authorization`, which a proxy in front of the gateway may use for its own password.
  return key ? { "x-api-key": key } : {};
}

/** Ends the session.
 * @param {boolean} [isExpired] whether the gateway no longer accepts the key */
export function signOut(isExpired = false) {
  if (isExpired && !stored() && !unstored) return;
  store(null);
  location.reload();
}

/** Continues the session with the new secret of its own key.
 * @param {string} secret */
export const keepSignedIn = (secret) => store(secret);

/** Asks for a key until the gateway accepts one; a gateway without keys needs none.
 * @returns {Promise<Session>} */
export async function signIn() {
  const { session } = await ask();
  if (session) return welcome(session);
  store(null); // a key that is no longer valid
  byId("sign-in").hidden = false;
  byId("key").focus();
  return new Promise((resolve) => {
    byId("sign-in-form").addEventListener("submit", async (event) => {
      event.preventDefault();
      const field = byId("key", HTMLInputElement);
      store(field.value.trim());
      const { session, problem } = await ask();
      showError("sign-in-error", problem);
      if (!session) {
        store(null);
        field.select();
        return;
      }
      field.value = "";
      byId("sign-in").hidden = true;
      resolve(welcome(session));
    });
  });
}

/** @param {Session} session */
function welcome(session) {
  Object.assign(REASONS, session.reasons);
  Object.assign(POLICY_NAMES, session.policy_names);
  const button = byId("sign-out");
  button.hidden = session.key === null;
  button.replaceChildren(
    "Sign out",
    h("span", { class: "who", title: session.key }, ` (${session.key})`),
  );
  button.addEventListener("click", () => signOut());
  return session;
}

/** @returns {Promise<{session?: Session, problem?: string}>} */
async function ask() {
  try {
    const response = await fetch("ui/api/traffic/session", { headers: keyHeader() });
    if (response.ok) return { session: await response.json() };
    const body = await response.json().catch(() => null);
    if (response.status === 401)
      return { problem: "This key is not valid here. Check it, or ask the operator for a key." };
    return {
      problem: body?.error?.message ?? `The gateway answered with status ${response.status}.`,
    };
  } catch (error) {
    // A key with characters that no header can carry is not sent at all.
    return {
      problem:
        error instanceof TypeError && !navigator.onLine
          ? "The gateway does not answer."
          : "The key could not be checked. Check that it has no special characters and that the gateway is running.",
    };
  }
}

function stored() {
  try {
    return sessionStorage.getItem(KEY);
  } catch {
    return null;
  }
}

/** @param {string | null} key */
function store(key) {
  unstored = key;
  try {
    if (key === null) sessionStorage.removeItem(KEY);
    else sessionStorage.setItem(KEY, key);
  } catch {
    // then the key is forgotten with the next reload
  }
}
