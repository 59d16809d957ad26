// Applies the chosen theme before anything is painted, and follows it and the system after that. A plain script, since
// modules run too late. `data-theme` is the choice (auto, light or dark); `data-dark` is there if that means dark now.
(() => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    const { theme } = root.dataset;
    root.toggleAttribute("data-dark", theme === "dark" || (theme === "auto" && system.matches));
  };
  try {
    const chosen = localStorage.getItem("holdfast.theme");
    if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  } catch {
    // Storage is switched off: there is no choice to restore.
  }
  apply();
  system.addEventListener("change", apply);
  new MutationObserver(apply).observe(root, { attributeFilter: ["data-theme"] });
})();
