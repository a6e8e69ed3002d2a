// Light and dark, and paper: what a page does when the scheme changes.
"use strict";

(() => {
  /** Has `button` change between light and dark, and calls `recolour` after any change, also when the page is printed. */
  Seam.theme = (button, recolour) => {
    const named = () => (button.textContent = Seam.isDark() ? "Light" : "Dark");
    button.addEventListener("click", () => {
      document.documentElement.dataset.theme = Seam.isDark() ? "light" : "dark";
      named();
      recolour();
    });
    named();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => (named(), recolour()));
    // Paper is white and narrow, and waits for no frame.
    let screen;
    const print = (printing) => {
      const root = document.documentElement;
      if (printing) screen = root.dataset.theme;
      root.classList.toggle("printing", printing);
      if (printing) root.dataset.theme = "light";
      else if (screen) root.dataset.theme = screen;
      else delete root.dataset.theme;
      recolour();
    };
    addEventListener("beforeprint", () => print(true));
    addEventListener("afterprint", () => print(false));
  };
})();
