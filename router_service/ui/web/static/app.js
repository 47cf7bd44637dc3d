/** Signing in, then the tabs and the views that they show. */

import { Accounts } from "./accounts.js";
import { addressOf, enterView, readAddress } from "./address.js";
import { DecisionDialog } from "./details.js";
import { byId } from "./dom.js";
import { LiveTraffic } from "./live.js";
import { TrafficOverview } from "./overview.js";
import { Playground } from "./playground.js";
import { startReference } from "./reference.js";
import { startRouter } from "./router.js";
import { signIn } from "./session.js";

const session = await signIn();
for (const tab of document.querySelectorAll("[data-admin]")) if (!session.is_admin) tab.remove();

const tabs = /** @type {HTMLElement[]} */ ([...document.querySelectorAll('[role="tab"]')]);
const names = tabs.map((tab) => tab.getAttribute("aria-controls") ?? "");

const overview = new TrafficOverview(session);
const accounts = new Accounts(session);
const details = new DecisionDialog();
const live = new LiveTraffic(session, details);

/** @type {Record<string, () => void>} loaded when the tab is first opened */
const starts = {
  overview: () => overview.start(),
  keys: () => accounts.start(),
  live: () => live.start(),
  playground: () => new Playground().start(),
  router: startRouter,
  api: () => startReference(session),
};

/** Views whose filters are in the page's address.
 * @type {Record<string, TrafficOverview | Accounts | LiveTraffic>} */
const filtered = { overview, keys: accounts, live };

/** @param {string} name @param {Record<string, string>} filters */
function select(name, filters) {
  for (const [index, tab] of tabs.entries()) {
    const isSelected = names[index] === name;
    tab.setAttribute("aria-selected", String(isSelected));
    tab.tabIndex = isSelected ? 0 : -1;
    byId(names[index]).hidden = !isSelected;
  }
  starts[name]?.();
  delete starts[name];
  filtered[name]?.filterBy(filters);
}

/** @param {KeyboardEvent} event (WAI-ARIA Authoring Practices, "Tabs") */
function move(event) {
  const at = tabs.indexOf(/** @type {HTMLElement} */ (event.target));
  const last = tabs.length - 1;
  /** @type {Record<string, number>} */
  const targets = {
    ArrowRight: at === last ? 0 : at + 1,
    ArrowLeft: at === 0 ? last : at - 1,
    Home: 0,
    End: last,
  };
  const to = targets[event.key];
  if (to === undefined) return;
  event.preventDefault();
  tabs[to].focus();
  go(names[to]);
}

/** Selects a tab without following the fragment, which would move the focus away from the tabs.
 * @param {string} name */
async function go(name) {
  const filters = filtered[name]?.filters() ?? {};
  await enterView(name, filters);
  select(name, filters);
}

/** @param {string} view @param {Record<string, string>} filters */
const isShown = (view, filters) =>
  !byId(view).hidden &&
  addressOf(view, filtered[view]?.filters() ?? {}) === addressOf(view, filters);

/** Shows what the address names; a step that only opens or closes a dialog changes nothing else. */
function follow() {
  const { view, filters, dialog } = readAddress();
  const isKnown = names.includes(view);
  if (!isKnown) select(names[0], {});
  else if (!isShown(view, filters)) select(view, filters);
  const isAccount = view === "keys" && isKnown;
  accounts.dialog.follow(isAccount ? dialog : null);
  details.follow(isAccount ? null : dialog);
}

/** Keeps the focus where it is. After `popstate`, browsers move it to the element that the fragment
 * names, for example away from the row whose dialog was closed. */
function keepFocus() {
  const { activeElement } = document;
  setTimeout(() => {
    const isMoved = document.activeElement?.getAttribute("role") === "tabpanel";
    if (isMoved && activeElement instanceof HTMLElement && activeElement !== document.body)
      activeElement.focus({ preventScroll: true });
  });
}

byId("tabs").hidden = false;
for (const [index, tab] of tabs.entries()) {
  tab.addEventListener("click", () => go(names[index]));
  tab.addEventListener("keydown", move);
}
addEventListener("popstate", () => {
  follow();
  keepFocus();
});
follow();
