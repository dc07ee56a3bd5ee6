// ---------------------------------------------------------------- start

const THEMES = ["auto", "light", "dark"];

function nextTheme() {
  const root = document.documentElement;
  const to = THEMES[(THEMES.indexOf(root.dataset.theme || "auto") + 1) % THEMES.length];
  root.dataset.theme = to;
  byId("theme").setAttribute("aria-label", `Colours: ${to}`);
  byId("theme").title = `Colours: ${to}`;
  try {
    localStorage.setItem("coevolve-theme", to);
  } catch {
    /* a browser may forbid it to pages from disk */
  }
}

function jumpTo(id) {
  byId(id).scrollIntoView({ behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
  byId(id).focus({ preventScroll: true });
}

async function begin() {
  try {
    document.documentElement.dataset.theme = localStorage.getItem("coevolve-theme") || "auto";
  } catch {
    /* as above */
  }
  byId("theme").addEventListener("click", nextTheme);
  for (const button of document.querySelectorAll("[data-to]"))
    button.addEventListener("click", () => jumpTo(button.dataset.to));
  [run, table] = await Promise.all([part("run"), part("table")]);
  table.tasksById = new Map(table.tasks.map((row) => [row[TASK.id], row]));
  table.contextsById = new Map(table.contexts.map((row) => [row[CONTEXT.id], row]));
  drawNotices();
  drawStrip();
  drawEffect();
  drawMap();
  drawTable();
  drawAbout();
  byId("picker").addEventListener("keydown", (event) =>
    rove(event, [...byId("picker").querySelectorAll("a")], "ArrowLeft", "ArrowRight"),
  );
  byId("drawer").addEventListener("cancel", (event) => {
    event.preventDefault();
    go(address({}));
  });
  byId("drawer").addEventListener("click", (event) => {
    if (event.target === byId("drawer")) go(address({}));
  });
  window.addEventListener("hashchange", route);
  route();
  document.documentElement.dataset.ready = "true";
}

begin().catch((error) => {
  console.error(error);
  byId("notices").append(
    $.p({ class: "notice" }, `The records cannot be shown: ${error}. A browser of 2023 or later can.`),
  );
});
