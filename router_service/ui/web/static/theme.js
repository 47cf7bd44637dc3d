// Runs before the page is drawn, so that a chosen theme does not flash in the other one's colours.
(() => {
  const KEY = "switchcraft-theme";
  /** @type {Record<string, string>} */
  const NEXT = { auto: "light", light: "dark", dark: "auto" };

  const stored = () => {
    try {
      return localStorage.getItem(KEY) ?? "auto";
    } catch {
      return "auto"; // storage may be forbidden
    }
  };

  const apply = (/** @type {string} */ theme) => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    const button = document.getElementById("theme");
    if (button) button.textContent = `Theme: ${theme}`;
  };

  const next = () => {
    const theme = NEXT[stored()] ?? "light";
    try {
      localStorage.setItem(KEY, theme);
    } catch {
      // then it holds for this page alone
    }
    apply(theme);
  };

  apply(stored());
  addEventListener("DOMContentLoaded", () => {
    apply(stored());
    document.getElementById("theme")?.addEventListener("click", next);
  });
})();
